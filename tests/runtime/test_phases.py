"""Rules in turn: every phase has the engine of its rule, and is refused before the first begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from crossbow import SMA, SSGD, TrainingUnit
from crossbow.compile import memory
from crossbow.synch import SSP, AsynchronousSGD, PolyakRuppert, RuleSequence
from crossbow.testing import FakeCollective
from crossbow.types import ConfigurationError, bytes_text
from tests.runtime.engine_memory import taken
from tests.support import context, engine_of

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
            assert phases.restore(other) is (other.get("sequence") == repr(TURNS))
            assert phases.state() == state
        for phase in (1, 4):
            assert phases.restore({**state, "phase": phase})
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
            seen.append(engine.now.parts.setting.rule.name)
        assert seen == ["async"] * 2 + ["ssgd"] * 2 + ["async"] + ["ssgd"] * 2 + ["async"] * 2 + ["ssgd"]
        assert len(engine.engines.kinds) == 2


def rules_of_ticks(running: Any, learners: int, ticks: int) -> str:
    """The first letter of the rule of each of the next ticks."""
    seen = ""
    for _ in range(ticks):
        running.train(learners, TASKS)
        seen += running.engine.now.parts.setting.rule.name[0]
    return seen


def test_a_phase_goes_on_with_another_number_of_learners() -> None:
    """Eight merges of one learner each are two ticks of four learners, or four ticks of two learners."""
    turns = RuleSequence(((AsynchronousSGD(), 8), (SSGD(), 2)))
    with context(rule=turns, learners=4) as running:
        assert rules_of_ticks(running, 4, 9) == "aassaassa"
        snapshot = running.engine.snapshot()
    with context(rule=turns, learners=2) as running:
        assert not running.engine.restore(snapshot, "four learners")
        assert (running.engine.tick, running.engine.tasks) == (9, 36)
        assert rules_of_ticks(running, 2, 10) == "aaassaaaas"
        snapshot = running.engine.snapshot()
    with context(rule=turns, learners=4) as running:
        running.engine.restore(snapshot, "two learners")
        assert rules_of_ticks(running, 4, 3) == "saa"


def test_a_phase_that_has_become_shorter_ends_at_once() -> None:
    turns = RuleSequence(((AsynchronousSGD(), 8), (SSGD(), 2)))
    with context(rule=turns, learners=1) as running:
        assert rules_of_ticks(running, 1, 5) == "aaaaa"
        snapshot = running.engine.snapshot()
    with context(rule=turns, learners=4) as running:
        running.engine.restore(snapshot, "one learner")
        assert rules_of_ticks(running, 4, 5) == "ssaas"


@pytest.mark.parametrize("learners", [2, 3])
def test_the_place_within_a_phase_is_kept(learners: int) -> None:
    """Of which the weight of Polyak-Ruppert averaging depends."""
    turns = RuleSequence(((SSGD(), 5), (PolyakRuppert(), 50)))
    with context(rule=turns, learners=2) as running:
        running.train(20, TASKS)
        snapshot = running.engine.snapshot()
    with context(rule=turns, learners=learners) as running:
        assert running.engine.restore(snapshot, "two learners") is (learners == 2)
        assert engine_of(running).position.ticks_of_phase == 5


@pytest.mark.parametrize("rule", [SSGD(), RuleSequence(((PolyakRuppert(), 9), (SMA(), 1)))], ids=str)
def test_another_rule_begins_a_phase(rule: Any) -> None:
    with context(rule=PolyakRuppert(), learners=2) as running:
        running.train(20, TASKS)
        snapshot = running.engine.snapshot()
    with context(rule=rule, learners=2) as running:
        running.engine.restore(snapshot, "another rule")
        position = engine_of(running).position
        assert (position.tick, position.ticks_of_phase) == (10, 0)
