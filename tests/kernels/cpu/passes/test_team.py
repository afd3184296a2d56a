"""Passes that several threads run together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.arguments import Address, Arguments
from crossbow.types import Tensor
from tests.kernels.cpu import REASON
from tests.kernels.cpu.buffers import FLOAT32, execute
from tests.kernels.cpu.own_convolutions import use_threads

from crossbow.kernels.compiled import float32_at, int64_at, native_pass  # isort: skip - after the module that skips without numba
from crossbow.kernels.cpu.passes.team import (
    TEAM,
    WORTH_A_THREAD,
    team_arguments,
    team_barrier,
    team_size,
    team_thread,
    threads_for,
)
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.requests import CopyForward

ROUNDS = 20
ROTATE = Arguments(team=TEAM, x=Address, y=Address, seen=Address, length=int)


@native_pass(ROTATE)
def rotate(block: Any) -> int:
    """y = x, whose numbers go round: in each of ROUNDS, a thread takes its part from the threads around it."""
    x, y, seen = float32_at(block.x), float32_at(block.y), int64_at(block.seen)
    thread, threads = team_thread(block.team), team_size(block.team)
    seen[thread] = threads
    first, last = block.length * thread // threads, block.length * (thread + 1) // threads
    source, target = x, y
    for _ in range(ROUNDS):
        team_barrier(block.team)
        for index in range(first, last):
            target[index] = source[(index + 1) % block.length]
        source, target = target, source
    team_barrier(block.team)
    return 0


@pytest.mark.parametrize(
    "threads", [1, *(pytest.param(n, marks=pytest.mark.skipif(REASON is not None, reason=str(REASON))) for n in (2, 3))]
)
def test_every_thread_runs_the_pass_and_waits_for_the_others(threads: int) -> None:
    """Without a barrier, a thread would take numbers of another round."""
    t, seen = Tensor((1000,), FLOAT32), np.zeros(4, np.int64)
    steps = Steps(CopyForward(t, t))
    steps.add_team_pass("rotate", rotate, threads, x="input0", y="output", seen=seen, length=1000)
    x = np.arange(1000, dtype=np.float32)
    execute(steps.prepared(), {"input0": x, "output": np.zeros_like(x)})
    assert seen.tolist() == [threads] * threads + [0] * (4 - threads)
    np.testing.assert_array_equal(x, np.roll(np.arange(1000), -ROUNDS))


def test_one_thread_needs_no_openmp() -> None:
    given = team_arguments(rotate, 1)
    assert given == {"threads": 1, "function": rotate, **dict.fromkeys(("parallel", "barrier", "number", "size"))}


def test_small_operands_are_not_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    if REASON is None:
        use_threads(monkeypatch, 4)
        assert [threads_for(count * WORTH_A_THREAD) for count in (0, 1, 2, 3, 4, 100)] == [1, 1, 2, 3, 4, 4]
        assert threads_for(2 * WORTH_A_THREAD - 1) == 1
    monkeypatch.setattr("crossbow.kernels.cpu.passes.team.max_threads", lambda: 1)
    assert threads_for(100 * WORTH_A_THREAD) == 1
