"""Passes that all threads of a learner run together, as oneDNN's primitives do: on the team of the same OpenMP.

A *team pass* is a pass whose argument block begins with TEAM_SLOTS slots of `team_slots`. Every thread of the team runs
it on the same block, asks `team_thread` and `team_size` which share of the work is its own, and meets the others at
`team_barrier`. With one thread it is an ordinary pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.compiled import call_address, inlined, int64_at, native
from crossbow.kernels.cpu.threads import max_threads, openmp_function

THREADS, _FUNCTION, _PARALLEL, _BARRIER, _NUMBER, _SIZE = range(6)
TEAM_SLOTS = 6
"""Threads; the pass itself; the functions of OpenMP's runtime."""

WORTH_A_THREAD = 2**15
"""Bytes of a thread's share, at least."""


def threads_for(nbytes: int) -> int:
    """How many of the calling thread's team are worth having for an operand of that size: waiting for each other has
    to cost less than the work."""
    return max(1, min(max_threads(), nbytes // WORTH_A_THREAD))


def team_slots(function: int, threads: int) -> tuple[int, ...]:
    """The first slots of the block of a team pass at an address."""
    if threads == 1:
        return (1, function, 0, 0, 0, 0)
    names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    return (threads, function, *map(openmp_function, names))


@native
def run_team(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Run the team pass of a block on every thread."""
    block = int64_at(arguments)
    call_address(block[_PARALLEL], block[_FUNCTION], np.int64(arguments), block[THREADS], 0)
    return 0


@inlined
def team_thread(arguments: int) -> Any:
    """The number of the thread that asks, from 0."""
    block = int64_at(arguments)
    return 0 if block[THREADS] == 1 else call_address(block[_NUMBER], 0, 0, 0, 0)


@inlined
def team_size(arguments: int) -> Any:
    """How many threads there are: at most the block's number, perhaps fewer."""
    block = int64_at(arguments)
    return 1 if block[THREADS] == 1 else call_address(block[_SIZE], 0, 0, 0, 0)


@inlined
def team_barrier(arguments: int) -> None:
    """Wait for all threads; what they wrote before can be read afterwards."""
    block = int64_at(arguments)
    if block[THREADS] != 1:
        call_address(block[_BARRIER], 0, 0, 0, 0)
