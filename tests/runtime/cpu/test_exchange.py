"""Exchanges on the learners' own threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from crossbow import SolverConf
from crossbow.compile import BoundStep
from crossbow.runtime.coefficients import BoundUpdate, Formula
from crossbow.runtime.cpu.exchange import CpuCombination, CpuMeeting
from crossbow.solver import Pace, Update
from crossbow.synch import SSP, AsynchronousSGD, Hogwild
from tests.support import context, engine_of


class Evaluated:
    """x ← rate · x + about · y, which counts its evaluations."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, pace: Pace, about: float) -> Update:
        self.count += 1
        return Update((("x", {"x": pace.rate, "y": about}),), depends_on=frozenset({"rate"}))


def combination(x: np.ndarray, y: np.ndarray) -> tuple[CpuCombination[float], Evaluated]:
    at = Evaluated()

    def bind(bound: BoundUpdate) -> list[BoundStep]:
        (numbers,) = bound.numbers.values()

        def call() -> None:
            x[...] = numbers[0] * x + numbers[1] * y

        return [BoundStep("merge", call)]

    made = CpuMeeting().combination(Formula(at, 0.5), bind)
    assert isinstance(made, CpuCombination)
    at.count = 0
    return made, at


def test_an_update_runs_with_the_coefficients_of_its_pace_and_arrival() -> None:
    x, y = np.array([1.0]), np.array([10.0])
    made, at = combination(x, y)
    made.run(Pace(0.5, 0.0), 0.1)
    assert x.tolist() == [1.5]
    made.run(Pace(2.0, 0.0), 0.1)
    assert x.tolist() == [4.0]
    made.run(Pace(2.0, 0.0), 1.0)
    assert x.tolist() == [18.0]
    assert at.count == 3


def test_coefficients_are_evaluated_only_if_something_changes() -> None:
    """A field that they do not depend on does not count."""
    made, at = combination(np.ones(1), np.ones(1))
    for tick in range(4):
        made.run(Pace(0.5, 0.9, tick), 0.25)
    assert at.count == 1


def test_exchanges_run_at_once_on_the_same_thread() -> None:
    meeting, seen = CpuMeeting(), list[Any]()

    def arrive() -> list[int]:
        seen.append(threading.current_thread())
        return [1, 0]

    assert meeting.exchange(3, arrive) == [1, 0]
    meeting.settle(lambda: seen.append(threading.current_thread()))
    assert seen == [threading.current_thread()] * 2


@pytest.mark.parametrize("rule", [AsynchronousSGD(), SSP(), Hogwild()], ids=str)
def test_a_learners_task_ends_with_its_own_step(rule: Any) -> None:
    """Under a rule that sends gradients, there is none. Tasks of both parities are one, as z has one buffer."""
    with context(rule=rule) as running:
        engine = engine_of(running)
        learner: Any = engine.coordination.learners[0]
        assert learner.tasks["train", 0] is learner.tasks["train", 1]
        assert learner.tasks["check", 0] is learner.tasks["check", 1]
        names = learner.tasks["train", 0].calls.names
        assert ("optimiser" in names) == (not rule.sends_gradient)
        assert "optimiser" not in learner.tasks["check", 0].calls.names


def test_a_learner_that_keeps_its_gradient_clips_it() -> None:
    """One that sends its gradient leaves that to the merge."""
    for rule, clips in ((AsynchronousSGD(), True), (SSP(), False)):
        with context(rule=rule, solver=SolverConf(clip_gradient_norm=1.0)) as running:
            learner: Any = engine_of(running).coordination.learners[0]
            assert ("clip" in learner.tasks["train", 0].calls.names) == clips
