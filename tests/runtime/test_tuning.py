"""Learners that are added and removed while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, DurationUnit, ExecutionContext, Monitor, SystemConf, TrainingUnit
from crossbow.data.loader import Loader
from crossbow.runtime import tuner
from crossbow.runtime.changing_engine import ChangingEngine
from crossbow.runtime.engine import Engine
from crossbow.runtime.results import AnyDecision, History
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.task import Completed
from crossbow.runtime.tuner import Decision, Retuning, Tuner
from crossbow.runtime.tuning import Tuning
from crossbow.synch import AsynchronousSGD, RuleSequence
from crossbow.types import ConfigurationError, CrossbowError, TaskError
from tests.kernels.cuda.fake import fake_cuda
from tests.support import SECONDS, Probe, blobs, context, perceptron

WINDOW = 0.005
"""Seconds: many windows in a short training."""
TASKS = TrainingUnit.TASKS


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", WINDOW)
    monkeypatch.setattr(tuner, "WATCHED_SECONDS", WINDOW)


class Scripted:
    """A tuner that wants these numbers of learners in turn, window by window, and is settled then."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers, self.rates, self.refusals = list(numbers), list[float](), list[str]()

    @property
    def learners(self) -> int:
        return self.numbers[0]

    @property
    def settled(self) -> bool:
        return len(self.numbers) == 1

    @property
    def compared(self) -> frozenset[int]:
        return frozenset(self.numbers)

    @property
    def window_seconds(self) -> float:
        return WINDOW

    def add(self, rate: float) -> None:
        self.rates.append(rate)
        self._next()

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)
        self._next()

    def _next(self) -> None:
        if len(self.numbers) > 1:
            self.numbers.pop(0)


def scripted(*numbers: int, **options: Any) -> ExecutionContext:
    running = context(learners="auto", threads=1, **options)
    tuning_of(running).tuner = Scripted(numbers)  # type: ignore[assignment]
    return running


def tuning_of(running: ExecutionContext) -> Tuning:
    """What finds the number of learners."""
    assert isinstance(running.engine, ChangingEngine)
    assert isinstance(running.engine.course, Tuning)
    return running.engine.course


def learners_of(running: ExecutionContext) -> int:
    return running.summary().learners


def settle(running: ExecutionContext) -> History:
    """Train until the script is at its end; what the last call said."""
    end, tuner = time.monotonic() + 2 * SECONDS, tuning_of(running).tuner
    while True:
        history = running.train_for_duration(0.2, DurationUnit.SECONDS)
        if tuner.settled and learners_of(running) == tuner.learners:
            return history
        assert time.monotonic() < end


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks with which loaders of training batches begin."""
    seen: list[int] = []
    original = Loader.start

    def start(loader: Loader, task: int, *others: Any) -> None:
        seen.append(task)
        original(loader, task, *others)

    monkeypatch.setattr(Loader, "start", start)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2), SSGD(), AsynchronousSGD()], ids=str)
def test_no_batch_is_left_out_or_taken_twice(rule: Any, starts: list[int]) -> None:
    with scripted(2, 1, 3, 1, 2, rule=rule) as running:
        seen: list[int] = []
        original = Engine.run

        def run(engine: Engine, until: int, callbacks: Callbacks) -> None:
            def watch(result: Completed) -> None:
                seen.append(result.task)
                callbacks.on_result(result)

            before = engine.tasks
            original(engine, until, replace(callbacks, on_result=watch))
            assert starts[-1] == before

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "run", run)
            history = settle(running)
        assert seen == list(range(running.engine.tasks))
        assert learners_of(running) == 2
        assert history.records[-1].tasks == running.engine.tasks
        assert all(np.isfinite(value).all() for value in running.variables.values())


@pytest.mark.slow
def test_learners_go_on_from_the_base_model() -> None:
    with scripted(2, 1, 3, 2, data=blobs(examples=60)) as running:
        losses = [running.train_and_test(20).loss for _ in range(3)]
        assert losses[-1] < 0.5 * losses[0]


def test_training_ends_where_it_should() -> None:
    for numbers in ((1, 2, 1, 3, 1), (1, 3, 2, 1)):
        with scripted(*numbers) as running:
            running.train(40, TASKS)
            assert 40 <= running.engine.tasks < 40 + 3
            assert running.train_and_test(2).records[-1].epoch >= 2


def test_engines_that_are_no_longer_compared_are_closed() -> None:
    with scripted(2, 1, 2, 1, 2) as running:
        engine = tuning_of(running)
        settle(running)
        assert list(engine._engines.kinds) == [2]
        names = [thread.name for thread in threading.enumerate()]
        assert sum("learner" in name for name in names) == 2


def test_a_number_that_the_rule_does_not_allow() -> None:
    with scripted(2, 3, 2, rule=SMA(alpha=0.6)) as running:
        settle(running)
        (refusal,) = tuning_of(running).tuner.refusals
        assert refusal.startswith("SMA: alpha must be < 2/(k + 1)")
        assert learners_of(running) == 2


def test_a_number_that_wpc_does_not_allow() -> None:
    with scripted(2, 3, 2, wpc=4) as running:
        settle(running)
        assert "multiple of the number of learners, 3" in tuning_of(running).tuner.refusals[0]


def test_the_rest_of_what_a_context_does(tmp_path: Any) -> None:
    with scripted(2, 1, 3) as running:
        settle(running)
        assert learners_of(running) == 3
        images = blobs().train.images
        predicted, tested, variables = running.predict(images), running.test(), running.variables
        running.save(tmp_path / "model.safetensors")
    with scripted(1) as other:
        other.load(tmp_path / "model.safetensors")
        for name, value in variables.items():
            np.testing.assert_array_equal(other.variables[name], value)
        np.testing.assert_allclose(other.predict(images), predicted, rtol=1e-5)
        assert other.test().loss == pytest.approx(tested.loss)


def test_nothing_interrupts_training_once_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    original = Engine.run

    def counted(engine: Engine, until: int, callbacks: Callbacks) -> None:
        runs.append(until)
        original(engine, until, callbacks)

    with scripted(2) as running:
        monkeypatch.setattr(Engine, "run", counted)
        running.train(10, TASKS)
    assert len(runs) == 1


@pytest.mark.parametrize("wanted", [2, 3])
@pytest.mark.parametrize("settled", [False, True])
def test_a_search_goes_on_with_the_best_number(wanted: int, settled: bool) -> None:
    with scripted(2) as running:
        tuning = tuning_of(running)
        tuning.restore({})  # of a run that did not search
        assert list(tuning._engines.kinds) == [2]
        tuning.restore({"learners": 5, "best": wanted, "settled": settled})
        assert list(tuning._engines.kinds) == [wanted]
        assert learners_of(running) == wanted
        assert (tuning.tuner.best, tuning.tuner.settled) == (wanted, settled)


def test_a_number_that_is_not_possible_any_more_is_searched_for_again() -> None:
    with scripted(2, rule=SMA(alpha=0.6)) as running:
        tuning = tuning_of(running)
        tuning.restore({"learners": 3, "best": 3, "settled": True})
        assert list(tuning._engines.kinds) == [2]
        running.train(4, TASKS)


def test_a_task_that_fails_ends_the_run_and_the_context_stays_usable() -> None:
    calls = []

    def fail(where: str, learner: int, before: int) -> None:
        calls.append(where)
        if len(calls) == 60:
            raise RuntimeError("no luck")

    with scripted(2, 1, 2, 1, dataflow=perceptron(Probe(action=fail))) as running:
        with pytest.raises(TaskError, match="no luck"):
            running.train(1000, TASKS)
        running.train(20, TASKS)


@pytest.mark.slow
def test_closing_from_another_thread() -> None:
    with scripted(*[1, 2] * 500) as running:
        closing = threading.Timer(0.1, running.close)
        closing.start()
        with pytest.raises(CrossbowError, match="closed"):
            running.train(10**6, TASKS)
        closing.join()


# With the real tuner


@pytest.mark.slow
def test_it_settles_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(Monitor):
        def __init__(self) -> None:
            self.heard: list[AnyDecision] = []

        def decision(self, decision: AnyDecision) -> None:
            self.heard.append(decision)

    listener = Listener()
    with context(learners="auto", threads=1, monitors=[listener]) as running:
        engine, end = tuning_of(running), time.monotonic() + 2 * SECONDS
        decisions = []
        while not engine.tuner.settled and time.monotonic() < end:
            decisions += running.train_for_duration(0.2, DurationUnit.SECONDS).decisions
        assert engine.tuner.settled
        assert decisions == listener.heard == engine.decisions
        assert isinstance(decisions[-1], Decision)
        assert decisions[-1].chosen == engine.tuner.best
        assert decisions[-1].more_images_per_second > 0
        monkeypatch.setattr(tuner, "WATCHED_SECONDS", 1e9)  # a busy machine may begin another comparison
        running.train_for_duration(0.05, DurationUnit.SECONDS)
        assert learners_of(running) == engine.tuner.best


@pytest.mark.slow
def test_a_machine_that_becomes_slower_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on a task takes 5 ms more: more learners, whose waits overlap, are better."""
    monkeypatch.setattr(tuner, "WINDOW_SECONDS", 0.05)
    monkeypatch.setattr(tuner, "WATCHED_SECONDS", 0.05)
    pause = threading.Event()

    def wait(where: str, learner: int, before: int) -> None:
        if pause.is_set() and where == "forward":
            time.sleep(0.005)

    with context(perceptron(Probe(action=wait)), learners="auto", threads=1) as running:
        engine = tuning_of(running)
        engine.tuner = Tuner(1, engine._decided)
        end = time.monotonic() + 2 * SECONDS
        while not engine.tuner.settled and time.monotonic() < end:
            running.train_for_duration(0.2, DurationUnit.SECONDS)
        running.train_for_duration(0.5, DurationUnit.SECONDS)
        before = len(engine.decisions)
        pause.set()
        end = time.monotonic() + 2 * SECONDS

        def more_are_better() -> bool:
            return any(isinstance(d, Decision) and d.chosen == d.more for d in engine.decisions[before:])

        # What else the machine does may have begun a search before: another one follows then.
        while not more_are_better() and time.monotonic() < end:
            running.train_for_duration(0.2, DurationUnit.SECONDS)
        assert more_are_better()
        assert any(isinstance(decision, Retuning) for decision in engine.decisions)


def test_what_is_not_tuned() -> None:
    for options in ({"learners": 2}, {"learners": "auto", "devices": "cpu:0/2", "rule": RuleSequence(((SMA(), 2),))}):
        with context(**options) as running:
            assert not running.summary().tuning
    system = SystemConf(kernels="reference", deterministic=True)
    with ExecutionContext([perceptron(), None], data=blobs(), system=system) as running:
        assert isinstance(running.engine, Engine)


@pytest.mark.slow
def test_on_gpus() -> None:
    with fake_cuda(), context(perceptron(), devices="cuda:0", kernels="auto", learners="auto", threads=None) as running:
        assert learners_of(running) == 4
        tuning_of(running).tuner = Scripted([4, 3, 5])  # type: ignore[assignment]
        settle(running)
        assert learners_of(running) == 5


# With engines that are none


class FakeEngines:
    """Engines by number of learners, of which two devices have so many each. They note what they are asked to do."""

    def __init__(self, *kinds: int) -> None:
        self.kind, self.kinds = kinds[0], frozenset(kinds)
        self.log: list[Any] = []
        setting = SimpleNamespace(learners=2 * self.kind, ranks=None)
        clock, parts = SimpleNamespace(tasks_per_host_tick=6), SimpleNamespace(setting=setting)
        self.now = SimpleNamespace(tasks=100, clock=clock, run=self._run, parts=parts)

    def _run(self, until: int, callbacks: Callbacks) -> None:
        self.log.append(f"{self.kind} until {until}")

    def add(self, learners: int) -> None:
        if learners > 8:
            raise ConfigurationError("too many")
        self.log.append(f"add {learners}")
        self.kinds |= {learners}

    def drop(self, learners: int) -> None:
        self.log.append(f"drop {learners}")
        self.kinds -= {learners}

    def go_on_with(self, learners: int) -> None:
        self.log.append(f"go on with {learners}")
        self.kind = learners


@pytest.mark.parametrize(
    ("kinds", "wanted", "until", "log"),
    [
        ((2,), [2, 3], 1000, []),
        ((2, 3), [3, 2], 1000, ["go on with 3"]),
        ((2, 3), [3], 1000, ["go on with 3", "drop 2"]),
        ((2, 3, 4), [2, 4], 1000, ["drop 3"]),
        ((2,), [3, 2], 1000, ["add 3", "go on with 3", "3 until 112"]),  # two ticks to warm up
        ((2,), [3, 2], 105, ["add 3", "go on with 3", "3 until 105"]),
        ((2,), [3], 1000, ["add 3", "go on with 3", "drop 2", "3 until 112"]),
        # What is not compared any more gives its memory back before another engine is made.
        ((2, 5, 3), [4, 3, 5], 1000, ["go on with 3", "drop 2", "add 4", "go on with 4", "4 until 112"]),
        ((2,), [9, 2], 1000, []),
    ],
)
def test_engines_are_made_and_closed_for_what_is_compared(
    kinds: tuple[int, ...], wanted: list[int], until: int, log: list[str]
) -> None:
    engines, tuner = FakeEngines(*kinds), Scripted(wanted)
    made = Tuning(engines)  # type: ignore[arg-type]
    made.tuner = tuner  # type: ignore[assignment]
    made._images, made._seconds = 7, 3.0
    callbacks: Any = None
    assert made._change(tuner.learners, until, callbacks) == (wanted[0] != 9)
    assert engines.log == log
    assert tuner.refusals == (["too many"] if wanted[0] == 9 else [])
    is_another = any("go on" in entry for entry in log)
    assert (made._images, made._seconds) == ((0, 0.0) if is_another else (7, 3.0))


def test_a_window_is_told_once() -> None:
    made = Tuning(FakeEngines(2))  # type: ignore[arg-type]
    made.tuner = tuner = Scripted([2, 3])  # type: ignore[assignment]
    made._images, made._seconds = 7, 3.0
    made._tell_tuner(5.0)
    assert (made._images, made._seconds, tuner.rates) == (0, 0.0, [5.0])
