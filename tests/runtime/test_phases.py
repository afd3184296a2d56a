"""Rules in turn: every phase has the engine of its rule, and is refused before the first begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from crossbow import SMA, SSGD, TrainingUnit
from crossbow.compile import memory
from crossbow.synch import SSP, AsynchronousSGD, RuleSequence
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError, bytes_text
from tests.runtime.engine_memory import taken
from tests.support import context

TASKS = TrainingUnit.TASKS
TURNS = RuleSequence(((AsynchronousSGD(), 4), (SSGD(), 2)))


@pytest.mark.parametrize(
    "options",
    [
        {"skip": 0.1},
        {"local_variables": ("*bias",)},
        {"wpc": 3},
        {"collective": FakeCollective(2), "devices": "cpu:0/2,cpu:1/2", "rule": RuleSequence(((SMA(), 2), (SSP(), 9)))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_later_phase_is_refused_before_the_first_begins(options: dict[str, Any]) -> None:
    options = {"rule": TURNS, **options}
    before, said = set(threading.enumerate()), list[str]()
    for rule in (options["rule"].phases[1].rule, options["rule"]):
        with pytest.raises(ConfigurationError) as caught:
            context(**{**options, "rule": rule}).close()
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not set(threading.enumerate()) - before


def test_only_the_same_sequence_goes_on_in_its_phase() -> None:
    with context(rule=TURNS, learners=2) as running:
        phases: Any = running.engine.course
        state = phases.state()
        assert state == {"phase": 0, "sequence": repr(TURNS)}
        for other in ({"phase": 3, "sequence": "another"}, {"learners": 2}, {**state, "phase": 0}):
            phases.restore(other)
            assert phases.state() == state
        for phase in (1, 4):
            phases.restore({**state, "phase": phase})
            assert phases.state() == {**state, "phase": phase}
            assert isinstance(running.engine.now.parts.setting.rule, (AsynchronousSGD, SSGD)[phase % 2])


def test_a_later_phase_that_does_not_fit_beside_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (taken(rule=phase.rule, learners=2) for phase in TURNS.phases)
    monkeypatch.setattr(memory, "physical_memory", lambda: first + second)
    with context(rule=TURNS, learners=2) as running:
        running.train(40, TASKS)
    monkeypatch.setattr(memory, "physical_memory", lambda: first + second - 1)
    with pytest.raises(ConfigurationError, match=rf"{bytes_text(first)} for learners that are there already; lower"):
        context(rule=TURNS, learners=2).close()


def test_a_phase_begins_with_the_engine_of_its_last_turn() -> None:
    turns = RuleSequence(((AsynchronousSGD(), 4), (SSGD(), 2), (AsynchronousSGD(), 2), (SSGD(), 1), (SSGD(), 1)))
    with context(rule=turns, learners=2) as running:
        engine: Any = running.engine
        engine.engines._make = None
        seen = []
        for _ in range(10):
            running.train(2, TASKS)
            seen.append(engine.now.coordination.rule.name)
        assert seen == ["async"] * 2 + ["ssgd"] * 2 + ["async"] + ["ssgd"] * 2 + ["async"] * 2 + ["ssgd"]
        assert len(engine.engines.kinds) == 2
