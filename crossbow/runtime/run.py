"""One training call: stretches between ends of epochs and tests, stop conditions, and records."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from crossbow.cluster.admission import ANOTHER_PROGRAM
from crossbow.cluster.failure import LOST
from crossbow.cluster.members import Terminated, ViewChangedError
from crossbow.cluster.process import join
from crossbow.cluster.ranks import LOSS, Ranks
from crossbow.console import say
from crossbow.data.rank_shares import ShareOrder
from crossbow.host_memory import resident_memory
from crossbow.runtime.common_decisions import CommonDecisions
from crossbow.runtime.configuration import ModelConf
from crossbow.runtime.keeper import RunKeeper
from crossbow.runtime.limits import Limits, check_tick, end_of_training, epochs_done, next_multiple
from crossbow.runtime.monitor import Monitor, Progress, tell
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.observation import Measured, Measurement, RecentLearners, arrived
from crossbow.runtime.profiling import Profiler
from crossbow.runtime.regrouping import IdleModel, regroup
from crossbow.runtime.results import (
    AnyDecision,
    History,
    Record,
    RunningMean,
    TestResult,
    history_state,
    restored_history,
)
from crossbow.runtime.scheduler import Callbacks, tasks_behind
from crossbow.runtime.stretch import RunState, Stretch
from crossbow.runtime.task import Completed
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import CrossbowError, Phase, TrainingUnit


class Renewal(NamedTuple):
    """Functions with which training continues with the ranks of a new view."""

    rebuild: Callable[[], TrainingEngine]
    """Builds an engine for them."""
    lead: Callable[[TrainingRun], None] = lambda run: None
    """Called on a rank that becomes rank 0. Gives the run monitors and a keeper."""
    idle: Callable[[], Mapping[int, IdleModel]] = dict
    """Returns the program's other models, by their numbers. They continue with the same ranks."""


PAUSE = 0.1
"""Seconds between two decisions while there are too few ranks."""


class TrainingRun:
    """Runs an engine until a limit is reached, on the caller's thread."""

    def __init__(
        self,
        engine: TrainingEngine,
        model: ModelConf,
        limits: Limits,
        monitors: Sequence[Monitor],
        *,
        test: bool,
        keeper: RunKeeper | None = None,
        profiler: Profiler | None = None,
        state: RunState | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """model: provides the interval of tests. test: whether to test. state: state of the run to continue. ranks: by
        default the ranks of this process."""
        self._ranks = ranks or join()
        self._common = CommonDecisions(self._ranks)
        self._rebuilds = False
        """Whether another engine can replace this one."""
        self._test_interval = model.test_interval, model.test_interval_unit
        self.engine, self.limits, self.monitors, self.test = engine, limits, monitors, test
        self.keeper, self.profiler = keeper, profiler
        self.history = History()
        self.mean = RunningMean(engine.order.tasks_in_epochs(1))
        self.seconds_before = 0.0
        """Seconds of training before the current stretch."""
        self.stretch: Stretch | None = None
        """The current stretch; None between two stretches."""
        self.reached = math.inf
        """Number of tasks at which the loss reached its limit."""
        self.start = engine.tasks
        """Number of tasks at the beginning of this call."""
        self._monitor_failed = False
        self._counted = 0
        """Number of tasks whose results were counted. The results of a repeated tick count once."""
        self._continues = state is not None
        if state is not None:
            self._restore(state)
        self.end = end_of_training(limits, engine, self.start)
        if not self._ranks.joins and not self._ranks.view.number:  # ranks that have joined make ticks longer
            check_tick(limits, engine)
        self._began = time.perf_counter()
        """Time at which the current stretch began, or continued after a pause; while the engine does not run, the time
        at which it stopped."""
        self.next_progress = 0.0
        self._learners = RecentLearners()
        """The learners, for progress."""

    @property
    def interrupted(self) -> int:
        """The signal that ends training, or `LOSS`; 0 if there is none."""
        return self._common.interrupted

    def state(self) -> RunState:
        """The state that determines how this call continues. No task may be running."""
        state = {
            **self._call(),
            "start": self.start,
            "reached": None if self.reached == math.inf else self.reached,
            "seconds": self.seconds_before,
            "stretch": None if self.stretch is None else asdict(self.stretch),
            "history": history_state(self.history),
            "mean": self.mean.state(),
        }
        return RunState(state, self.mean.losses())

    def _restore(self, state: RunState) -> None:
        values = state.values
        self.start, self.seconds_before = values["start"], values["seconds"]
        if values["reached"] is not None and values["limits"]["loss"] == self.limits.loss:
            self.reached = values["reached"]
        self.stretch = None
        if (stretch := values["stretch"]) is not None:
            arrivals = stretch["arrivals"]
            self.stretch = Stretch(**{**stretch, "arrivals": None if arrivals is None else tuple(arrivals)})
        self.history = restored_history(values["history"])
        self.mean.restore(values["mean"], state.losses)

    def run(self, renewal: Renewal | None = None) -> History:
        """Train. On Ctrl-C, the tick is finished, or undone if finishing would take long; the completed part is
        recorded, and KeyboardInterrupt is raised. Other signals that the keeper requests end the process in the same
        way.

        renewal: functions with which training continues after ranks have left or joined; with None, it then ends with
        ViewChangedError. It is not stored, because it may refer to objects that refer to this run.
        """
        with self._ranks.call():
            try:
                self._train(renewal)
            except BaseException:
                self._ranks.end_joining()
                raise
            if self.interrupted:
                self._ranks.end_joining()
            else:
                self._ranks.end_training(self._result)
        if self.interrupted == signal.SIGINT:
            raise KeyboardInterrupt
        if self.interrupted == LOSS:
            raise SystemExit(LOST)
        if self.interrupted:
            raise Terminated(self.interrupted)
        return self.history

    def _train(self, renewal: Renewal | None) -> None:
        """Train until a limit is reached, or a signal arrives."""
        self._rebuilds = renewal is not None
        if self.keeper is not None:
            self.keeper.begin()
        if self.profiler is not None:
            self.profiler.begin(self.engine, self.end)
        with self._common.receiving(() if self.keeper is None else self.keeper.signals), self._failures():
            if self._passes_over(renewal):
                return
            if not self._continues and not self.history.records:  # a rank that joins has the records of the others
                self.tell("begin")
            if self.history.records:
                self.history.stop(self._reason(self.seconds_before) or self._accuracy_reached(self.history.records[-1]))
            try:
                while not self._ended_everywhere():
                    try:
                        self._ranks.check_others()
                        self._await_ranks()
                        self._stretch()
                    except ViewChangedError:
                        self._regroup(renewal)
            except BaseException:
                if self.profiler is not None:
                    self.profiler.cancel()
                raise
            if not self._is_interrupted():
                self._end_keeping()
            if self.profiler is not None:
                self.profiler.finish()  # after the last checkpoint, which is more important
            with suppress(ViewChangedError):  # the other ranks are not needed any more
                self._common.look_for_signals()  # one may have arrived since the last tick

    def _ended_everywhere(self) -> bool:
        """Whether training has ended on all ranks. If another rank is lost before that, the remaining ranks need this
        one."""
        if not self.history.stopped:
            return False
        try:
            self._ranks.end_together()
        except ViewChangedError:
            return False
        return True

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Record in the history that an exception ended training. The history keeps its records."""
        try:
            yield
        except KeyboardInterrupt:
            self.history.stop("interrupt")
            raise
        except Exception as error:
            self.history.stop("error")
            self.history.explain(f"{type(error).__name__}: {error}")
            if self._monitor_failed and self.history.records and self.keeper is not None:
                with suppress(CrossbowError):  # the monitor's error is more important
                    self.engine.check_process()
                    self.keeper.failed(self.history)
            raise

    def _await_ranks(self) -> None:
        """While there are too few ranks, pause until others join, which raises ViewChangedError, or until a request to
        stop arrives."""

        def stops() -> bool:
            time.sleep(PAUSE)
            return self._is_interrupted()

        while not self._ranks.view.enough and not self._common.at_tick(stops, lambda: False, elastic=self._elastic):
            self._common.change_view()

    def _stretch(self) -> None:
        """Train to the next end of an epoch or test, and record it."""
        engine, common = self.engine, self._common
        if self.stretch is None:
            self.stretch = Stretch(engine.tasks, engine.learning_rate, engine.observation.arrivals)
        stretch, epochs = self.stretch, engine.order.epochs_in_tasks(self.stretch.first)
        next_epoch = next_multiple(engine.order, 1, TrainingUnit.EPOCHS, stretch.first)
        next_test = next_multiple(engine.order, *self._test_interval, stretch.first) if self.test else math.inf
        measurement, seconds_before = Measurement(engine.observation), stretch.seconds
        self._learners.begin_stretch()
        self._advance(stretch, int(min(next_epoch, next_test, self.end)), measurement)
        common.look_for_signals()
        if self._is_interrupted():
            self._end_keeping()  # before the record of an incomplete stretch: an uninterrupted run has no such record
        seconds = common.decide(lambda: self.seconds_before + stretch.seconds)
        stopped = common.decide(lambda: self._reason(seconds))
        # Otherwise no work was done, or all of it was undone, and the last record describes the base model.
        worked = stretch.images > 0 and not (engine.tasks == stretch.first and self.history.records)
        tested = worked and self.test and not self._is_interrupted() and (engine.tasks >= next_test or bool(stopped))
        measured = measurement.measure(engine.observation, stretch.seconds - seconds_before)
        test = engine.test() if tested else None
        if worked and (bad := engine.bad_examples.get(Phase.TRAIN)) is not None:
            bad.share(self._ranks)
        # From here until the record is complete, nothing waits for other ranks: at any wait, one may be lost.
        self.seconds_before, self.stretch = seconds, None
        self.history.stop(stopped)
        if worked:
            asks = self._record(stretch, measured, test)
            if self.keeper is not None and not self._is_interrupted():
                epoch_ended = engine.order.epochs_in_tasks(engine.tasks) > epochs
                self.keeper.recorded(self.history, self.state, epoch_ended=epoch_ended)
            if asks:
                self._end_for(next(filter(None, self._ranks.gather(self.history.message)), ""))

    def _advance(self, stretch: Stretch, until: int, measurement: Measurement) -> None:
        """Train until `until` tasks are done or the run ends, with pauses for checkpoints and profiles."""
        engine, common = self.engine, self._common
        callbacks = Callbacks(self._add, self._stop_now, self._pause_now, self._decided, not common.several)
        while True:
            self._began = time.perf_counter()
            try:
                engine.run(until, callbacks)
            finally:
                began, self._began = self._began, time.perf_counter()
                one_engine = measurement.is_of(engine.observation)
                stretch.extend(self._began - began, engine.learning_rate, one_engine=one_engine)
            common.strike(engine.tick, engine.clock.ticks, elastic=self._elastic)
            common.change_view()
            if not self._pause_now() or engine.tasks >= until or common.decide(self._over):
                break
            if self.profiler is not None and self.profiler.is_complete():
                self.profiler.finish()
            if self.keeper is not None and self.keeper.is_due():
                self.keeper.keep(self.state())

    def _record(self, stretch: Stretch, measured: Measured, test: TestResult | None) -> bool:
        """Record a stretch, and tell monitors. Returns whether the monitors of other ranks must be asked, too."""
        loss, accuracy = self.mean.take()
        self._learners.end_stretch(measured.learners)
        before = stretch.arrivals if stretch.one_engine else None
        staleness, dropped = arrived(before, self.engine.observation.arrivals)
        record = Record(
            epoch=epochs_done(self.engine),
            tasks=self.engine.tasks,
            time=self.seconds_before,
            loss=loss,
            accuracy=accuracy,
            images_per_second=stretch.images / stretch.seconds,
            learning_rate=stretch.learning_rate,
            test=test,
            data_wait=measured.data_wait,
            staleness=staleness,
            dropped=dropped,
            memory=resident_memory(),
            learners=measured.learners,
        )
        self._tell_bad_examples()
        self.history.records.append(record)
        self.tell("record", record)
        self.history.stop(self.history.stopped or self._accuracy_reached(record))
        message, asks = self._common.decide(self._message)
        self._end_for(message)
        return bool(asks)

    def _message(self) -> tuple[str, bool]:
        """The reason why a monitor of rank 0 ends the training, or ""; and, if it is "", whether a monitor of another
        rank may end it."""
        message = self.history.message
        return message, not message and any(monitor.on_all_ranks for monitor in self.monitors)

    def _end_for(self, message: str) -> None:
        """End the training if `message` is the reason of a monitor, or if a monitor of this rank has one."""
        self.history.explain(message)
        if self.history.message and not self.history.stopped:
            self.history.stop("monitor")

    def _passes_over(self, renewal: Renewal | None) -> bool:
        """Let ranks join from now on. A rank that joins waits until it is in the view, and continues with the others.
        Returns whether they have ended this call instead; the run then has their state."""
        try:
            result = self._ranks.begin_training(elastic=self._elastic)
            self._ranks.forget_failures()
        except ViewChangedError:
            self._regroup(renewal)
            return False
        if result is None:
            return False
        own = self._call()
        call = {name: result["state"][name] for name in own}
        if own != call:
            self._ranks.give_up_joining(f"{ANOTHER_PROGRAM}: expected a training call with {call}. Received: {own}")
        self._restore(RunState(result["state"], np.array(result["losses"])))
        self.history.stop(result["stopped"])
        self.history.explain(result["message"])
        return True

    def _call(self) -> dict[str, Any]:
        """The arguments of a training call, as JSON values."""
        return {"limits": {**asdict(self.limits), "unit": self.limits.unit.name}, "test": self.test}

    def _result(self) -> dict[str, Any]:
        """The result of this call for ranks that join after it, as JSON values."""
        state, history = self.state(), self.history
        about = {"stopped": history.stopped, "message": history.message}
        return {"state": state.values, "losses": state.losses.tolist(), **about}

    def _regroup(self, renewal: Renewal | None) -> None:
        """Continue with the ranks of the new view. Raises ViewChangedError or SystemExit if this is impossible."""
        if renewal is None:
            self._ranks.check_others()
            raise ViewChangedError("ranks have left")
        if not self._elastic:
            changes = self._ranks.regroup()
            if self._ranks.is_first:
                left = "; ".join(f"{lost.rank} left: {lost.reason}" for lost in changes.lost)
                say(f"error: {left}. With --data-sharding, its examples are lost, and training ends")
            raise SystemExit(LOST)
        began, first, own = self._began, self._ranks.is_first, self._ranks.own
        call = self.state(), self.history.stopped, self._counted, self.end
        found = regroup(self._ranks, self.engine, renewal.rebuild, renewal.idle(), *call)
        self.engine, self._counted, self.end = found.engine, found.counted, found.end
        if not first:
            self._restore(found.state)
            self.history.stop(found.stopped)
        self._common.regrouped()
        if self._ranks.is_first and not first:
            renewal.lead(self)
        elif self.keeper is not None:
            self.keeper.use(self.engine)
        if self.profiler is not None:
            self.profiler.cancel()
            self.profiler = None
        summary, seconds = self.engine.summary(), time.perf_counter() - began
        place = self.engine.tick, self.engine.tasks
        view = self._ranks.view
        after = view.number, len(view), summary.learners, *place, seconds, view.enough
        if found.changes.lost:
            self.tell("left", Departure(*after, found.changes.lost, found.lost_merges))
        if self._ranks.is_first and not first:
            self.tell("coordinator", NewCoordinator(own, view.number, *place))
        if found.changes.joined:
            self.tell("joined", NewRanks(*after, found.changes.joined))

    @property
    def _elastic(self) -> bool:
        """Whether training can continue with other ranks without losing examples."""
        return self._rebuilds and not isinstance(self.engine.order, ShareOrder)

    def _accuracy_reached(self, record: Record) -> str:
        """The reason to stop if this record reaches the wanted test accuracy, or ""."""
        wanted = self.limits.accuracy
        reached = wanted is not None and record.test is not None and (record.test.accuracy or 0.0) >= wanted
        return "accuracy" if reached else ""

    def _over(self) -> bool:
        """Whether the run ends at this point, in the middle of a stretch."""
        assert self.stretch is not None
        seconds = self.seconds_before + self.stretch.seconds  # the pause does not count
        return self.limits.time_is_over(seconds) or self._is_interrupted() or bool(self.history.message)

    def _add(self, result: Completed) -> None:
        assert self.stretch is not None
        if result.task < self._counted:
            return
        self._counted = result.task + 1
        self.mean.add(result.loss, result.accuracy)
        self.stretch.count(result.examples)
        done, wanted = result.task + 1, self.limits.loss
        at_boundary = (self.engine.boundary - done) % self.engine.clock.tasks_per_tick == 0
        if wanted is not None and at_boundary and self.mean.full and self.mean.moving_loss <= wanted:
            self.reached = min(self.reached, done)

    def _decided(self, decision: AnyDecision) -> None:
        self.history.decisions.append(decision)
        self.tell("decision", decision)

    def _end_keeping(self) -> None:
        """Write the last checkpoint."""
        if self.keeper is not None:
            self.keeper.end(self.history, self.state)
            self._tell_written()

    def _tell_written(self) -> None:
        """Tell monitors about the files that were written."""
        for written in () if self.keeper is None else self.keeper.take_news():
            self.tell("checkpoint", written)

    def _tell_bad_examples(self) -> None:
        for phase, bad in self.engine.bad_examples.items():
            for example in bad.take_new():
                self.tell("bad_example", phase, example)

    def tell(self, event: str, *arguments: object) -> None:
        """Call a method of every monitor. Raises MonitorError if one fails, and CrossbowError in a process that a
        monitor has forked, which cannot train."""
        for monitor in self.monitors:
            try:
                self.history.explain(tell(monitor, event, *arguments))
            except CrossbowError:
                self._monitor_failed = True
                raise
            self.engine.check_process()

    # Stop conditions

    def _stretch_seconds(self) -> float:
        """Seconds of training in the current stretch, while the engine runs."""
        assert self.stretch is not None
        return self.stretch.seconds + time.perf_counter() - self._began

    def _seconds(self) -> float:
        return self.seconds_before + self._stretch_seconds()

    def _is_interrupted(self) -> bool:
        """Whether a signal, or the loss of too many ranks, ends training."""
        return bool(self.interrupted)

    def _reason(self, seconds: float) -> str:
        """The reason to stop at this tick boundary, or "". seconds: seconds of training."""
        if self._is_interrupted():
            return "interrupt"
        if self.reached < math.inf:
            return "loss"
        if self.engine.tasks >= self.end:
            return "count"
        if self.limits.time_is_over(seconds):
            return "duration"
        return "monitor" if self.history.message else ""

    def _stop_now(self) -> bool:
        """Called by the engine at every tick boundary, and between the tasks of a long tick."""
        self._progress()
        self._tell_bad_examples()
        self._tell_written()
        return self._common.at_tick(self._wants_to_stop, self._wants_to_pause, elastic=self._elastic)

    def _wants_to_stop(self) -> bool:
        over = self.limits.time_is_over(self._seconds())
        # Training must not end as soon as the loss is known, because that depends on timing. This condition is known at
        # the tick boundary, and does not change within the tick.
        reached = self.engine.tasks >= self.reached + tasks_behind(self.engine.clock)
        return over or reached or self._is_interrupted() or bool(self.history.message)

    def _pause_now(self) -> bool:
        """Called by the engine at every tick boundary, after `_stop_now`."""
        return self._common.pauses

    def _wants_to_pause(self) -> bool:
        if self.profiler is not None:
            self.profiler.advance(self.engine.tasks)
            if self.profiler.is_complete():
                return True
        return self._common.fault_is_due(self.engine.tick, self.engine.clock.ticks) or (
            self.keeper is not None and self.keeper.is_due()
        )

    def _progress(self) -> None:
        now, stretch = time.perf_counter(), self.stretch
        if not self.monitors or now < self.next_progress:
            return
        assert stretch is not None
        self.next_progress = now + min(monitor.interval for monitor in self.monitors)
        progress = Progress(
            epoch=epochs_done(self.engine),
            tasks=self.engine.tasks,
            time=self._seconds(),
            loss=self.mean.moving_loss,
            images_per_second=stretch.images / max(self._stretch_seconds(), 1e-9),
            learners=self._learners.at(now, self.engine.observation),
            doing=tuple(activity.doing for activity in self.engine.observation.activities),
            tested=self.test,
            metrics=self.engine.observation.metrics if self.test else (),
        )
        self.tell("progress", progress)
