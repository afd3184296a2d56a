"""Passes that all threads of a learner run together, as oneDNN's primitives do, on the threads of the same OpenMP.

A *team pass* has a group `team` as the first field of its argument block. Every thread of the team runs it on the same
block, determines its share of the work by `team_thread` and `team_size`, and waits for the others at `team_barrier`.
With one thread it is an ordinary pass.
"""

from __future__ import annotations

from typing import Any

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import NativeFunction, address_of, call_address, inlined, native_pass
from crossbow.kernels.cpu.threads import max_threads, openmp_function

TEAM = Arguments(threads=int, function=Address, parallel=Address, barrier=Address, number=Address, size=Address)
"""Number of threads, the team pass, and functions of the OpenMP runtime (None with one thread)."""

WORTH_A_THREAD = 2**15
"""Minimum number of bytes in a thread's share."""


def threads_for(nbytes: int) -> int:
    """The number of threads for an operand of this size: at most that of the calling thread's team, and few enough that
    the work outweighs the barriers."""
    return max(1, min(max_threads(), nbytes // WORTH_A_THREAD))


def team_arguments(function: NativeFunction, threads: int) -> dict[str, Value]:
    """The group `team` of a team pass."""
    names = {
        "parallel": "GOMP_parallel",
        "barrier": "GOMP_barrier",
        "number": "omp_get_thread_num",
        "size": "omp_get_num_threads",
    }
    functions = {name: None if threads == 1 else openmp_function(symbol) for name, symbol in names.items()}
    return {"threads": threads, "function": function, **functions}


@native_pass(Arguments(team=TEAM))
def run_team(block: Any) -> int:
    """Run the team pass of a block, which begins with `team`, on every thread."""
    call_address(block.team.parallel, block.team.function, address_of(block), block.team.threads, 0)
    return 0


@inlined
def team_thread(team: Any) -> Any:
    """The number of the calling thread, from 0."""
    return 0 if team.threads == 1 else call_address(team.number, 0, 0, 0, 0)


@inlined
def team_size(team: Any) -> Any:
    """The number of threads, which may be fewer than requested."""
    return 1 if team.threads == 1 else call_address(team.size, 0, 0, 0, 0)


@inlined
def team_barrier(team: Any) -> None:
    """Wait for all threads. Afterwards, all their earlier writes can be read."""
    if team.threads != 1:
        call_address(team.barrier, 0, 0, 0, 0)
