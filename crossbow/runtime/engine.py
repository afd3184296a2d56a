"""The engine: feeds an assembly of learners, and collects what they report.

The caller's thread schedules: it takes filled slots from the loader, submits tasks to the learners' streams, a few
ahead, and collects results in task order. Everything between learners is settled by flags inside the tasks
(`crossbow.runtime.tick`), so the schedule never waits for a tick to end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

from crossbow.compile import Program, load_vectors
from crossbow.data import Dataset
from crossbow.data.loader import Loader
from crossbow.dataflow.graph import Graph, losses, measures
from crossbow.kernels.interface import Aborted
from crossbow.runtime.assembly import AnyLearner, Assembly
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.cpu_assembly import CpuAssembly
from crossbow.runtime.device import CpuDevice, CudaDevice, parse_devices
from crossbow.runtime.free_assembly import CpuFreeAssembly
from crossbow.runtime.learner import Completed, Failed, TaskKey
from crossbow.runtime.memory import assign, on_host
from crossbow.runtime.prediction import Prediction, task_error
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import AnyDecision, SetMean, TestResult
from crossbow.runtime.summary import DeviceSummary, MemorySummary, RunSummary
from crossbow.solver import Pace, Schedule, SolverConf
from crossbow.synch import Collective, Rule, RuleSequence, has_barrier
from crossbow.types import Array, ConfigurationError, CrossbowError, NonFiniteLossError

TASKS_AHEAD = 6
"""Tasks submitted ahead, per learner, at the most. The scheduler fills up to it and sleeps until half are done."""
LEAST_AHEAD = 2
"""And at the least. It begins with these, because nobody knows yet how long a task takes."""
SECONDS_AHEAD = 0.1
"""Of work submitted ahead, where tasks are long: what was submitted has to be waited for when training stops."""
TICKS_BEHIND = TASKS_AHEAD + 1
"""Ticks by which results are behind at the most when a tick begins. Usually it is less, so this costs nothing."""
SECONDS_TO_FINISH = 10.0
"""How long a tick may still take when training is asked to stop in it. What is longer is undone."""
DRAIN_SECONDS = 0.5
"""How long a failure waits for the other learners' current tasks."""

OnResult = Callable[[Completed], None]


def ignore_decision(decision: AnyDecision) -> None:
    """Tell nobody."""


def assemble(
    training: Graph,
    check: Graph,
    data: Dataset,
    model: ModelConf,
    solver: SolverConf,
    system: SystemConf,
    collective: Collective | None,
    beside: int,
) -> Assembly:
    """The assembly for the devices that are asked for. Raises GraphError or ConfigurationError."""
    _check_rule(model.rule, system)
    barrier = has_barrier(model.rule)
    kind: type[Assembly] = CpuAssembly if barrier else CpuFreeAssembly
    if isinstance(parse_devices(system.devices)[0], CudaDevice):
        # CUDA's libraries, where wanted
        from crossbow.runtime.cuda.assembly import CudaAssembly
        from crossbow.runtime.cuda.free_assembly import CudaFreeAssembly

        kind = CudaAssembly if barrier else CudaFreeAssembly
    return kind(training, check, data, model, solver, system, collective, beside)


def _check_rule(rule: Rule | RuleSequence | None, system: SystemConf) -> None:
    """Refuse a rule that does not run on the devices. Raises ConfigurationError."""
    devices = parse_devices(system.devices)
    if not has_barrier(rule) and isinstance(devices[0], CudaDevice) and len(devices) > 1:
        raise ConfigurationError(
            "ModelConf: rule must be one with a barrier on several GPUs; without one, learners need memory that all of "
            f"them reach. Received: rule={rule}, devices={','.join(system.devices)}"
        )


class Engine:
    """Trains, tests and predicts, on the caller's thread; not from several threads at once."""

    def __init__(
        self,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None = None,
        beside: int = 0,
    ) -> None:
        """beside: bytes of the machine's memory that other engines have meanwhile."""
        self.parts = assemble(training, check, data, model, solver, system, collective, beside)
        self.clock, self.order, self.loader = self.parts.clock, self.parts.order, self.parts.loader
        self.schedule = Schedule(solver, self.tasks_per_epoch, restart=model.restart)
        self._by_merges = solver.learning_rate_step_unit == "merges"
        self._merges_before = self._tasks_before = 0
        """Those that other engines made, or did, before this one: more than it would have in as many ticks."""
        self.tick = 0
        """Ticks done (while running: submitted)."""
        self.first_tick = 0
        """The one from which on its rule is followed, where rules follow each other."""
        self._next_result = 0
        self._in_flight = 0
        self._ahead = LEAST_AHEAD
        self._reports = Reports()
        self._early: dict[int, Completed] = {}
        self._prediction: Prediction | None = None
        self._doing = ""
        """What the learners are busy with."""
        self._settled = True
        """Whether everything submitted is done and the learners agree with the base model's tick."""
        self._feeding: Loader | None = None
        """Where the learners' batches come from."""
        self._closed = False
        self._process = os.getpid()
        self.on_decision: Callable[[AnyDecision], None] = ignore_decision
        """Told what is decided about the learners, on the thread that trains."""
        self._kept: tuple[int, Array, Array] | None = None
        """Tick, z and its statistics of when training was asked for the last time, where they might be lost."""
        self.restart()

    @property
    def program(self) -> Program:
        """The training program."""
        return self.parts.program

    @property
    def tasks(self) -> int:
        """Tasks done since the start."""
        return self._tasks_before + self.tick * self.clock.tasks_per_tick

    @property
    def tasks_per_epoch(self) -> float:
        """Batches in an epoch: a fraction where the batch size does not divide the examples."""
        return self.order.tasks_per_epoch

    @property
    def merges(self) -> int:
        """How often z was made anew since the start."""
        return self.tick + self._merges_before

    @property
    def time(self) -> int:
        """What the schedule goes by at the beginning of the next tick: tasks, or merges."""
        return self.merges if self._by_merges else self.tasks

    @property
    def learning_rate(self) -> float:
        """That of the next tick."""
        return self.schedule(self.time).rate

    def summary(self) -> RunSummary:
        """What trains, on what, and how far it has come."""
        parts, program = self.parts, self.program
        devices = [
            DeviceSummary(
                device.name,
                device.cores if isinstance(device, CpuDevice) else (),
                parts.device_of.count(number),
                parts.threads[number] if isinstance(device, CpuDevice) else None,
            )
            for number, device in enumerate(parts.devices)
        ]
        plan, vector = program.plan, program.model.elements * program.model.dtype.itemsize
        return RunSummary(
            devices=tuple(devices),
            library=parts.library.name,
            parameters=program.model.parameters,
            elements=program.model.elements,
            memory=MemorySummary(vector, plan.arena, plan.lower_bound, plan.without_reuse),
            rule=parts.given_rule,
            tasks_per_tick=self.clock.tasks_per_tick,
            tasks_per_epoch=self.tasks_per_epoch,
            tick=self.tick,
            tasks=self.tasks,
            tuning=False,
        )

    def continue_from(self, other: Engine) -> None:
        """Start from another engine's base model, counting on, and telling whom it told."""
        self.tick = other.tick
        self._tasks_before += other.tasks - self.tasks
        self._merges_before += other.merges - self.merges
        self.on_decision = other.on_decision
        self.load(other.weights, "the base model")

    @property
    def _parity(self) -> int:
        """Which of z's buffers is the current one."""
        return self.tick % 2

    # Training

    def run(self, until: int, stop: Callable[[], bool], on_result: OnResult) -> None:
        """Run ticks until so many tasks are done, or up to the first tick boundary at which `stop()` is true.

        A tick of several tasks a learner asks between them too, and is left where the rest of it would take longer
        than SECONDS_TO_FINISH: the learners then start again from the base model, as it was when the tick began.

        `on_result` gets the results in task order, on this thread; when `stop` is asked in tick t, at least those of
        all ticks before t − TICKS_BEHIND. Returns when everything submitted is done. After an exception the learners
        start again from the last base model that is whole.
        """
        with self._busy("training", self.loader):
            self._keep()
            self.loader.start(self.tasks)
            while self.tasks < until and not stop() and self._run_tick(stop, on_result):
                while self._next_result < self.tasks - TICKS_BEHIND * self.clock.tasks_per_tick:
                    self._collect(on_result)
            self._collect_all(on_result)
            self._settle()
            self._check_finite()

    def _pace(self, now: int) -> Pace:
        """That of the tick that begins."""
        return self.parts.rule.at(self.schedule(now), self.tick - self.first_tick, self.schedule.time(now))

    def _settle(self) -> None:
        """Everything is done: make of it what is not made in every tick."""

    def _run_tick(self, stop: Callable[[], bool], on_result: OnResult) -> bool:
        """Submit a tick. Returns whether it was not left."""
        first, now, deadline = self.tasks, self.time, math.inf
        pace, restarts = self._pace(now), self.schedule.restarts
        if self.tick and restarts(now) > restarts(now - (1 if self._by_merges else self.clock.tasks_per_tick)):
            self._collect_all(on_result)
            self.restart()
        for task, number, synchronises in self.clock.schedule(first):
            # Nobody has contributed to the merge before the last task of a learner, nor has anybody begun to wait.
            if not synchronises and task > first and stop():
                deadline = min(deadline, time.monotonic() + SECONDS_TO_FINISH)
                if time.monotonic() >= deadline:
                    self._collect_all(on_result)
                    self.restart()
                    return False
            key = ("synchronise" if synchronises else "local", self._parity)
            self._submit(self.parts.members[number].learner, key, task, self.loader, pace, on_result)
        if self.parts.synchroniser is not None:
            self.parts.synchroniser.submit(
                ("synchronise", self._parity),
                task=first,
                tick=self.tick,
                slot=0,
                examples=0,
                pace=pace,
                release=lambda slot: None,
                report=self._report_synchroniser,
            )
        self.tick += 1
        return True

    def _submit(
        self, learner: AnyLearner, key: TaskKey, task: int, loader: Loader, pace: Pace, on_result: OnResult
    ) -> None:
        """Give the loader's next batch to a learner, once few enough tasks are under way."""
        slot, examples = self._next_batch(loader, on_result)
        learner.submit(
            key,
            task=task,
            tick=self.tick,
            slot=slot,
            examples=examples,
            pace=pace,
            release=loader.release,
            report=self._report,
        )

    def _next_batch(self, loader: Loader, on_result: OnResult) -> tuple[int, int]:
        """Slot and examples of the loader's next batch, once few enough tasks are under way. It counts as one."""
        if self._in_flight >= self._ahead * self.parts.learners:
            self._make_room(on_result)
        try:
            slot, _, examples = loader.next()
        except Aborted:
            while True:  # until the failure for which the loader was interrupted is found, and raised
                self._collect(on_result)
        self._in_flight += 1
        return slot, examples

    def _report(self, report: Completed | Failed) -> None:
        """Called on the learners' threads."""
        self._reports.put(report)
        if isinstance(report, Failed) and self._feeding is not None:
            self._feeding.interrupt()  # or a slow loader would keep the scheduler from hearing of it

    def _report_synchroniser(self, report: Completed | Failed) -> None:
        if isinstance(report, Failed):
            self._report(report)

    # Results

    def _collect(self, on_result: OnResult, count: int = 1) -> None:
        """Wait for so many results, take all that are there, and hand on those that are next in order.

        Raises TaskError or NonFiniteLossError.
        """
        self._reports.wait(count)
        while (report := self._reports.take()) is not None:
            if isinstance(report, Failed):
                self._fail(report)
            self._in_flight -= 1
            self._hand_on(report, on_result)

    def _hand_on(self, report: Completed, on_result: OnResult) -> None:
        """The result, and those that waited for it, in task order."""
        self._early[report.task] = report
        while (following := self._early.pop(self._next_result, None)) is not None:
            self._next_result += 1
            on_result(following)

    def _make_room(self, on_result: OnResult) -> None:
        """Wait until half of what may be submitted ahead is done, and see from that how much this should be."""
        began, before, learners = time.monotonic(), self._in_flight, self.parts.learners
        self._collect(on_result, before - self._ahead * learners // 2)
        seconds = (time.monotonic() - began) / (before - self._in_flight) * learners
        self._ahead = max(LEAST_AHEAD, min(TASKS_AHEAD, int(SECONDS_AHEAD / max(seconds, 1e-9))))

    def _collect_all(self, on_result: OnResult) -> None:
        while self._in_flight:
            self._collect(on_result, self._in_flight)

    def _fail(self, report: Failed) -> NoReturn:
        """Raise the TaskError of a failed task; of one that was given up, wait for the one that is the cause."""
        while report.error is None:
            if self._closed:
                raise CrossbowError(f"the context was closed while {self._doing}")
            self._reports.wait(1)
            other = self._reports.take()
            report = other if isinstance(other, Failed) else report
        if isinstance(report.error, NonFiniteLossError):
            raise report.error
        where = f"on learner {report.learner}" if report.learner < self.parts.learners else "between the devices"
        raise task_error(report.error, report.task, report.operator, where) from report.error

    def _check_finite(self) -> None:
        """Refuse a base model that has diverged: the loss alone may not show it, as ReLU may make 0 of NaN."""
        if not self._is_finite(self.tick):
            raise NonFiniteLossError(
                f"the base model has values that are not finite after task {self.tasks - 1} (learning rate "
                f"{self.learning_rate:g}). Lower the learning rate, or look for bad values in the data"
            )

    def _is_finite(self, tick: int) -> bool:
        """Whether z of this tick, the present one or the one before, and its statistics are finite numbers."""
        base = self.parts.bases[0]
        vectors = [on_host(vector) for vector in (base.current(tick), base.statistics[tick % 2])]
        return all(np.isfinite(v.min(initial=0)) and np.isfinite(v.max(initial=0)) for v in vectors)

    # Failure and restart

    @contextmanager
    def _busy(self, doing: str, loader: Loader) -> Iterator[None]:
        """Work for the learners. However it ends, nothing runs behind it, and the next can begin."""
        self.check_usable()
        try:
            self._doing, self._feeding, self._settled = doing, loader, False
            yield
            self._settled = True
        except BaseException:
            if not self._is_forked:
                self._recover()
            raise
        finally:
            self._doing = ""
            if not self._is_forked:
                loader.stop()

    def _recover(self) -> None:
        """After a failure: wait for what still runs, then start the learners again from the last whole base model."""
        self.parts.flags.abort[0] = 1
        deadline = time.monotonic() + DRAIN_SECONDS
        for stream in self.parts.streams:
            if not stream.wait(max(0.0, deadline - time.monotonic())):
                return  # a long task; `check_usable` tries again
        self._reports.clear()
        self._early.clear()
        self._in_flight = 0
        self.tick = self._whole_ticks()
        if self.tick and not self._is_finite(self.tick) and self._is_finite(self.tick - 1):
            self.tick -= 1  # such gradients have got into z; nothing has been written over the one before
        if self._kept is not None and not self._is_finite(self.tick):
            self.tick, *values = self._kept
            for vector, value in zip(self._base, values, strict=True):
                assign(vector, value)
        self.restart()
        self._settled = True

    def _whole_ticks(self) -> int:
        """The ticks that were done before something failed."""
        return int(self.parts.flags.merged.min()) + 1

    @property
    def _base(self) -> tuple[Array, Array]:
        """z and its statistics, as they are now."""
        base = self.parts.bases[0]
        return base.current(self.tick), base.statistics[self._parity]

    def _keep(self) -> None:
        """Copy z, which costs little beside what is done between two calls of `run`."""
        if self.parts.runs_ahead:
            z, statistics = (on_host(vector).copy() for vector in self._base)
            self._kept = (self.tick, z, statistics)

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child of the process that the engine's threads belong to. It has copies of the engine's
        memory and of its locks, and waits for ever where one is held by a thread that it does not have."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise CrossbowError in a forked process."""
        if self._is_forked:
            raise CrossbowError(
                f"the context belongs to process {self._process}; a forked process, as this one ({os.getpid()}), does "
                "not have its threads. Make a context in every process, and pass models on with `save` and `load`"
            )

    def check_usable(self) -> None:
        """Raise CrossbowError while the learners are busy, and in a forked process."""
        self.check_process()
        if self._doing:
            raise CrossbowError(f"this is not possible while {self._doing}. Monitor.record may do it, between epochs")
        if not self._settled:
            self._recover()
        if not self._settled:
            raise CrossbowError("not possible while a learner is still in a task that another's failure or Ctrl-C left")

    def restart(self) -> None:
        """w_i ← z, z's statistics and no velocity, for every learner. Nothing may be running."""
        parts = self.parts
        z, observed = parts.bases[0].current(self.tick), parts.bases[0].statistics[self._parity]
        for base in parts.bases:
            for buffer in base.buffers:
                if buffer is not z:
                    assign(buffer, z)
            for statistics in base.statistics:
                if statistics is not observed:
                    assign(statistics, observed)
            if base.velocity is not None:
                assign(base.velocity, 0)
        for member in parts.members:
            for statistics in member.replica.statistics:
                assign(statistics, observed)
            if member.replica.weights is not None:
                assign(member.replica.weights, z)
            if member.replica.velocity is not None:
                assign(member.replica.velocity, 0)
            if member.replica.taken is not None:
                assign(member.replica.taken, z)
            if member.replica.received is not None:
                assign(member.replica.received, 0)  # with no mass, but a number that is not finite would be one yet
        parts.synchronise()
        parts.flags.reset(self.tick)
        self._next_result = self.tasks

    # The base model

    @property
    def weights(self) -> dict[str, Array]:
        """The base model's variables and statistics by name, in logical shape: a copy."""
        self.check_usable()
        z, statistics = map(on_host, self._base)
        return {**self.program.model.export(z), **self.program.statistics.export(statistics)}

    def load(self, variables: dict[str, Array], source: str) -> None:
        """Set the base model; start every learner from it. Raises DataError, changing nothing, if it does not fit."""
        self.check_usable()
        program = self.program
        layouts, vectors = (program.model, program.statistics), self._base
        loaded = [on_host(vector).copy() for vector in vectors]
        load_vectors(variables, list(zip(layouts, loaded, strict=True)), source)
        for vector, values in zip(vectors, loaded, strict=True):
            assign(vector, values)
        self.restart()

    def test(self) -> TestResult:
        """The base model on the check set: its batches dealt to the learners' streams."""
        parts = self.parts
        if parts.check_loader is None or parts.check_program is None or parts.data.check is None:
            raise CrossbowError("there is no check set: give Dataset((x_train, y_train), (x_check, y_check))")
        loader, labels, graph = parts.check_loader, parts.data.check.labels, parts.check_program.graph
        loss = SetMean(losses(graph), labels)
        accuracy = SetMean(measures(graph), labels)

        def add(result: Completed) -> None:
            start = result.task * parts.check_order.batch_size
            of_batch = labels[start : start + result.examples]
            loss.add(result.loss, of_batch)
            accuracy.add(result.accuracy, of_batch)

        with self._busy("testing", loader):
            key, self._next_result = ("check", self._parity), 0
            loader.start(0)
            for batch in range(parts.check_order.tasks):
                learner = parts.members[batch % parts.learners].learner
                self._submit(learner, key, batch, loader, self.schedule(self.tasks), add)
            self._collect_all(add)
            self._next_result = self.tasks
        value = loss.value
        return TestResult(float("nan") if value is None else value, accuracy.value, len(labels))

    def predict(self, images: Array) -> Array:
        """The base model's output for (N, …) images: that of the loss's input."""
        self.check_usable()
        if self._prediction is None:
            self._prediction = Prediction(self.parts)
        return self._prediction(images, self._parity)

    def close(self) -> None:
        """End all threads. A thread that trains meanwhile gets a CrossbowError. Nothing happens in a forked process."""
        self._closed = True
        if self._is_forked:
            return
        self.parts.flags.abort[0] = 1
        self._report_synchroniser(Failed(self.tasks, self.parts.learners, "close", None))
        self.parts.close()
