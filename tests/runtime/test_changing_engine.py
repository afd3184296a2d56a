"""How one engine follows another: what is known before the first begins, what a failed change leaves, and closing."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, SSGD, ExecutionContext, SystemConf, TrainingUnit
from crossbow.compile import memory
from crossbow.runtime import building, changing_engine, tuner
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.engine import Engine
from crossbow.runtime.scheduler import Callbacks, Scheduler
from crossbow.runtime.tuner import Decision
from crossbow.runtime.tuning import Tuning
from crossbow.synch import AsynchronousSGD, Rule, RuleSequence
from crossbow.types import CrossbowError, bytes_text
from tests.runtime.engine_memory import taken
from tests.runtime.test_tuning import tuning_of
from tests.support import SECONDS, blobs, context, within

TASKS = TrainingUnit.TASKS
TURNS = RuleSequence(((AsynchronousSGD(), 4), (SSGD(), 2)))


# Phases


@pytest.fixture(params=["phases", "numbers"])
def changing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ExecutionContext:
    """What changes its engine soon, whichever way."""
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.005)
    if request.param == "phases":
        return context(rule=TURNS, learners=2)
    return context(learners="auto", threads=1)


def close_apart(running: ExecutionContext) -> None:
    closing = threading.Thread(target=running.close)
    closing.start()
    closing.join()


def test_closing_while_an_engine_is_made() -> None:
    """That no thread is left is seen by the fixture that looks for them; here and below."""
    changing = context(learners="auto", threads=1)
    engines: Any = changing.engine.engines
    make = engines._make

    def close_meanwhile(choice: Any, beside: int) -> Engine:
        following: Engine = make(choice, beside)
        close_apart(changing)
        return following

    engines._make = close_meanwhile
    with pytest.raises(CrossbowError, match="closed while training"):
        within(SECONDS, lambda: changing.train(10**6, TASKS))


def test_closing_while_an_engine_takes_over(changing: ExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    take_over = Engine.continue_from

    def close_meanwhile(engine: Engine, other: Engine) -> None:
        take_over(engine, other)
        close_apart(changing)

    monkeypatch.setattr(Engine, "continue_from", close_meanwhile)
    with pytest.raises(CrossbowError, match="closed while training"):
        within(SECONDS, lambda: changing.train(10**6, TASKS))


def test_what_was_closed_does_not_begin_to_train(changing: ExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does it end what another thread ends already: it says why it stops."""
    with changing:
        engines: Any = changing.engine.engines
        kind = 1 if engines.kind == 0 else engines.kind + 1
        if kind not in engines.kinds:
            engines.add(kind)
        close_apart(changing)
        with pytest.raises(CrossbowError, match="closed while training"):
            engines.go_on_with(kind)


def test_a_forked_process_is_refused(changing: ExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with changing:
        changing.engine.check_process()
        with monkeypatch.context() as forked:
            forked.setattr("crossbow.runtime.usage.os.getpid", lambda: -1)
            for check in (changing.engine.check_process, changing.engine.check_usable):
                with pytest.raises(CrossbowError, match="forked"):
                    check()


def test_nothing_goes_on_after_a_tick_that_was_left(
    changing: ExecutionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Scheduler] = []

    def leave(scheduler: Scheduler, *arguments: Any) -> bool:
        assert not left
        left.append(scheduler)
        return False

    with changing:
        monkeypatch.setattr(Scheduler, "run_tick", leave)
        within(20, lambda: changing.engine.run(100, Callbacks()))
        assert len(left) == 1


def test_a_change_that_fails_loses_nothing(changing: ExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with changing:
        engine: Any = changing.engine
        rule, before = engine.now.parts.setting.rule.name, engine.now

        def fail(engine: Engine, other: Engine) -> None:
            raise CrossbowError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "continue_from", fail)
            with pytest.raises(CrossbowError, match="not now"):
                within(SECONDS, lambda: changing.train(10**6, TASKS))
        assert (engine.now, engine.now.parts.setting.rule.name) == (before, rule)
        tasks = engine.tasks
        changing.train(2, TASKS)
        assert engine.tasks > tasks
        assert rule == "sma" or engine.now.parts.setting.rule.name == "ssgd"


# Numbers of learners


class Machine:
    """A memory of so many bytes, and what is built on it beside what. Nothing is cleared away unasked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[tuple[int, list[int]]] = []
        self._patch = monkeypatch
        monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.001)
        flags = building.Flags

        def note(learners: int, parties: int) -> Any:
            """When the plan has been found good, and memory is there."""
            alive = [each for each in gc.get_objects() if isinstance(each, Assembly)]
            self.built.append((learners, sorted(each.setting.learners for each in alive)))
            return flags(learners, parties)

        monkeypatch.setattr(building, "Flags", note)

    def settle(self, size: int, rate: Callable[[int], float], rule: Rule | None = None) -> Sequence[Any]:
        """What the tuner decided in such a memory, where so many learners have that rate."""
        self._patch.setattr(Tuning, "_tell_tuner", lambda course, _: course.tuner.add(rate(course.tuner.learners)))
        self._patch.setattr(memory, "physical_memory", lambda: size)
        gc.collect()
        self.built.clear()
        with context(learners="auto", threads=1, data=blobs(400), rule=rule) as running:
            tuning = tuning_of(running)
            while not tuning.tuner.settled:
                within(SECONDS, lambda: running.train(40, TASKS))
            return tuning.decisions


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    gc.disable()
    yield Machine(monkeypatch)
    gc.enable()


@pytest.fixture
def begin() -> int:
    """How many learners the tuner begins with."""
    with context(learners="auto", threads=1) as running:
        return running.summary().learners


Need = Callable[[int], int]


@pytest.fixture
def need() -> Need:
    """Bytes that so many learners take."""
    return lambda learners: taken(learners=learners, data=blobs(400))


def test_a_number_that_does_not_fit_beside_the_one_that_lives(machine: Machine, begin: int, need: Need) -> None:
    """It would alone: a byte is missing for both."""
    present, wanted = need(begin), need(begin + 1)
    size = present + wanted - 1
    first, *_ = machine.settle(size, float)
    assert isinstance(first, Decision)
    assert (first.fewer, first.more, first.chosen, first.pairs) == (begin, begin + 1, begin, 0)
    assert first.reason.startswith(
        f"not {begin + 1}: expected a plan that fits into {bytes_text(size)} of memory. "
        f"Received: {bytes_text(size + 1)}, of these "
    )
    assert f", {bytes_text(present)} for learners that are there already; lower" in first.reason
    assert begin + 1 not in [learners for learners, _ in machine.built]


def test_no_more_than_two_numbers_have_memory(machine: Machine, begin: int, need: Need) -> None:
    """More learners are faster, until two numbers do not fit."""
    *decisions, last = machine.settle(need(begin + 1) + need(begin + 2), float)
    assert [decision.chosen for decision in decisions] == [begin + 1, begin + 2]
    assert last.chosen == begin + 2
    assert last.pairs == 0
    assert machine.built == [(begin, []), (begin + 1, [begin]), (begin + 2, [begin + 1])]


@pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD()], ids=str)
def test_what_is_no_longer_compared_goes_first(machine: Machine, begin: int, rule: Rule) -> None:
    """Fewer learners are faster: the windows of a comparison end with more, which are not wanted any more."""
    machine.settle(sys.maxsize, lambda learners: 1 / learners, rule)
    fewer = [(learners, [learners + 1]) for learners in range(begin - 1, 0, -1)]
    assert machine.built == [(begin, []), (begin + 1, [begin]), *fewer]


def test_a_window_of_a_number_begins_with_its_own_images() -> None:
    """Results of the last tick may come behind the window that led to the change."""
    with context(learners="auto", threads=1) as running:
        tuning, engines = tuning_of(running), running.engine.engines  # type: ignore[attr-defined]
        engines.add(1 if engines.kind > 1 else 2)
        tuning._images, tuning._seconds = 8, 0.5
        tuning._switch(engines.kind)
        assert (tuning._images, tuning._seconds) == (8, 0.5)
        tuning._switch(1 if engines.kind > 1 else 2)
        assert (tuning._images, tuning._seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("system", "elsewhere", "expected"),
    [
        ({}, [4], 4),
        ({}, [3], 0),  # of another rank, whose device has other cores
        ({}, [3, 4], 0),
        ({}, [0], 0),  # a number that is given there
        ({"learners_per_device": 2}, [0], 0),
        ({"learners_per_device": 2}, [4], 0),
        ({"deterministic": True}, [4], 0),
    ],
)
def test_where_the_number_of_learners_is_looked_for(
    system: dict[str, Any], elsewhere: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where devices may have as many as there are cores, here four, on all ranks."""
    monkeypatch.setattr("crossbow.runtime.device.available_cores", lambda: (0, 1, 2, 3))
    conf = SystemConf(**{"learners_per_device": "auto", **system})
    ranks = SimpleNamespace(gather=lambda own: [own, elsewhere])
    assert changing_engine.number_to_begin_with(conf, ranks) == expected  # type: ignore[arg-type]
