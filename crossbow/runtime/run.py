"""One training call: stretches between ends of epochs and tests, stop conditions, and records."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from types import FrameType

from crossbow.conf import check_integer, check_number, configuration
from crossbow.runtime.configuration import ModelConf
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import AnyDecision, History, Record, RunningMean
from crossbow.runtime.scheduler import TICKS_BEHIND
from crossbow.runtime.task import Completed
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import ConfigurationError, TrainingUnit


@configuration
class Limits:
    """Limits of training, which ends at the first that is reached."""

    count: int | None = None
    """Epochs or tasks, rounded up to whole ticks."""
    unit: TrainingUnit = TrainingUnit.EPOCHS
    seconds: float | None = None
    """Seconds of training, without tests. A tick that would last much longer is undone."""
    loss: float | None = None
    """Upper bound of the mean training loss over the last epoch's tasks."""
    accuracy: float | None = None
    """Lower bound of a test's accuracy."""

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, optional=True)
        check_number(self, "seconds", minimum=0, above=True, optional=True)
        check_number(self, "loss", optional=True)
        check_number(self, "accuracy", minimum=0, maximum=1, optional=True)


class TrainingRun:
    """Runs an engine until a limit is reached, on the caller's thread."""

    def __init__(
        self, engine: TrainingEngine, model: ModelConf, limits: Limits, monitors: Sequence[Monitor], *, test: bool
    ) -> None:
        """model: has the interval of tests. test: whether to test."""
        self._test_interval = model.test_interval, model.test_interval_unit
        self.engine, self.limits, self.monitors, self.test = engine, limits, monitors, test
        self.history = History()
        self.end = math.inf if limits.count is None else self._end(limits.count)
        if limits.count is not None:
            self._check_tick(limits.count)
        self.mean = RunningMean(engine.order.tasks_in_epochs(1))
        self.seconds_before = 0.0
        self.stretch_start = time.perf_counter()
        self.stretch_images = 0
        self.reached = math.inf
        """Number of tasks after which the loss was small enough."""
        self.interrupted = False
        self.next_progress = 0.0

    def run(self) -> History:
        """Train. On Ctrl-C the tick is finished, or undone if that would take long; the completed part is recorded, and
        KeyboardInterrupt is raised."""
        with self._interrupts():
            while not self.history.stopped:
                self._stretch()
        if self.interrupted:
            raise KeyboardInterrupt
        return self.history

    def _stretch(self) -> None:
        """Train to the next end of an epoch or test, and record it."""
        engine = self.engine
        first, next_test = engine.tasks, self._next_test() if self.test else math.inf
        waited = engine.data_wait_seconds
        self.stretch_start, self.stretch_images = time.perf_counter(), 0
        rate = engine.learning_rate
        until = int(min(self._next_epoch(), next_test, self.end))
        engine.run(until, self._stop_now, self._add, self._decided)
        elapsed = time.perf_counter() - self.stretch_start
        self.seconds_before += elapsed
        self.history.stop(self._reason())
        if self.stretch_images == 0 or (engine.tasks == first and self.history.records):
            return  # nothing was done, or nothing that was not undone: the last record says where the base model is
        tested = self.test and not self.interrupted and (engine.tasks >= next_test or bool(self.history.stopped))
        loss, accuracy = self.mean.take()
        data_wait = min(1.0, (engine.data_wait_seconds - waited) / elapsed)
        record = Record(
            epoch=self._epochs(),
            tasks=engine.tasks,
            time=self.seconds_before,
            loss=loss,
            accuracy=accuracy,
            images_per_second=self.stretch_images / elapsed,
            learning_rate=rate,
            test=engine.test() if tested else None,
            data_wait=data_wait,
        )
        self._tell_bad_examples()
        self.history.records.append(record)
        self._tell(lambda monitor: monitor.record(record))
        wanted = self.limits.accuracy
        if wanted is not None and record.test is not None and (record.test.accuracy or 0.0) >= wanted:
            self.history.stop("accuracy")

    def _add(self, result: Completed) -> None:
        self.mean.add(result.loss, result.accuracy)
        self.stretch_images += result.examples
        done, wanted = result.task + 1, self.limits.loss
        at_boundary = (self.engine.tasks - done) % self.engine.clock.tasks_per_tick == 0
        if wanted is not None and at_boundary and self.mean.full and self.mean.moving_loss <= wanted:
            self.reached = min(self.reached, done)

    def _decided(self, decision: AnyDecision) -> None:
        self.history.decisions.append(decision)
        self._tell(lambda monitor: monitor.decision(decision))

    def _tell_bad_examples(self) -> None:
        for phase, bad in self.engine.bad_examples.items():
            for example in bad.take_new():
                self._tell(methodcaller("bad_example", phase, example))

    def _tell(self, tell: Callable[[Monitor], None]) -> None:
        """Call every monitor. Raises CrossbowError in a process that a monitor has forked, because it cannot train."""
        for monitor in self.monitors:
            tell(monitor)
            self.engine.check_process()

    # Stop conditions

    def _end(self, count: int) -> int:
        """Number of tasks at which `count` is complete. An epoch ends with the stream of examples, so a call that
        starts in the tick in which an epoch ended runs to the end of the next."""
        clock, order, start = self.engine.clock, self.engine.order, self.engine.tasks
        if self.limits.unit is TrainingUnit.TASKS:
            return start + count
        epochs = order.epochs_in_tasks(start)
        if start - order.tasks_in_epochs(epochs) < clock.tasks_per_tick:
            return order.tasks_in_epochs(epochs + count)
        return start + math.ceil(count * self.engine.tasks_per_epoch)

    def _check_tick(self, count: int) -> None:
        """Reject a τ with which the first tick is longer than the training. (One task of each learner is allowed.)"""
        clock = self.engine.clock
        asked = count if self.limits.unit is TrainingUnit.TASKS else self.engine.order.tasks_in_epochs(count)
        if clock.tau > 1 and clock.tasks_per_tick > asked:
            raise ConfigurationError(
                f"expected at most {asked} tasks in a tick, those of the training asked for. "
                f"Received: {clock.tasks_per_tick}, tau={clock.tau} for each of the {clock.learners} learners"
            )

    def _epochs(self) -> float:
        """Epochs done: a whole number in the tick in which one ends, even if that tick extends into the next."""
        engine = self.engine
        epochs = engine.order.epochs_in_tasks(engine.tasks)
        beyond = engine.tasks - engine.order.tasks_in_epochs(epochs)
        return float(epochs) if beyond < engine.clock.tasks_per_tick else engine.tasks / engine.tasks_per_epoch

    def _next_epoch(self) -> int:
        """Number of tasks at the next end of an epoch."""
        return self._next_multiple(1, TrainingUnit.EPOCHS)

    def _next_test(self) -> int:
        return self._next_multiple(*self._test_interval)

    def _next_multiple(self, interval: int, unit: TrainingUnit) -> int:
        """Number of tasks at which the next multiple of the interval is complete."""
        order, tasks = self.engine.order, self.engine.tasks
        done = order.epochs_in_tasks(tasks) if unit is TrainingUnit.EPOCHS else tasks
        multiple = (done // interval + 1) * interval
        return order.tasks_in_epochs(multiple) if unit is TrainingUnit.EPOCHS else multiple

    def _seconds(self) -> float:
        return time.perf_counter() - self.stretch_start + self.seconds_before

    def _reason(self) -> str:
        """The reason to stop at this tick boundary, or ""."""
        limits = self.limits
        if self.interrupted:
            return "interrupt"
        if self.reached < math.inf:
            return "loss"
        if self.engine.tasks >= self.end:
            return "count"
        if limits.seconds is not None and self.seconds_before >= limits.seconds:
            return "duration"
        return ""

    def _stop_now(self) -> bool:
        """Called by the engine at every tick boundary, and between the tasks of a long tick."""
        self._progress()
        self._tell_bad_examples()
        limits = self.limits
        over = limits.seconds is not None and self._seconds() >= limits.seconds
        # Not as soon as the loss is known, which depends on timing, as the end of training must not. Whether the
        # condition holds is known at the tick boundary, and does not change within the tick.
        reached = self.engine.tasks >= self.reached + TICKS_BEHIND * self.engine.clock.tasks_per_tick
        return over or reached or self.interrupted

    def _progress(self) -> None:
        now = time.perf_counter()
        if not self.monitors or now < self.next_progress:
            return
        self.next_progress = now + min(monitor.interval for monitor in self.monitors)
        progress = Progress(
            epoch=self._epochs(),
            tasks=self.engine.tasks,
            time=self._seconds(),
            loss=self.mean.moving_loss,
            images_per_second=self.stretch_images / max(now - self.stretch_start, 1e-9),
        )
        self._tell(lambda monitor: monitor.progress(progress))

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """The first Ctrl-C requests a stop at the end of the tick, if that is near; a second one is raised at once."""
        if threading.current_thread() is not threading.main_thread() or (
            signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
