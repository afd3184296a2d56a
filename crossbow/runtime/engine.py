"""The engine: devices, streams, learners and base models of one training run, and the loop that feeds them.

The caller's thread schedules: it takes filled slots from the loader and submits tasks to the learners' streams, a few
ahead, and collects results in task order. Everything between learners is settled by flags inside the tasks
(`crossbow.runtime.tick`), so the schedule never waits for a tick to end.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.compile import BatchSource, Memory, ModelLayout, Program, compile_graph
from crossbow.conf import ModelConf, SolverConf, SystemConf
from crossbow.data import Dataset
from crossbow.data.dataset import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import CheckOrder, TrainingOrder
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph, losses, measures
from crossbow.kernels import select_library
from crossbow.runtime.clock import work_clock
from crossbow.runtime.device import CpuDevice, parse_devices
from crossbow.runtime.learner import BoundTask, Completed, Failed, Learner, TaskKey, bind_task
from crossbow.runtime.replica import BaseModel, Replica, new_base_model, new_replica
from crossbow.runtime.results import TestResult
from crossbow.runtime.stream import CpuStream
from crossbow.runtime.tick import (
    Averaging,
    Coefficients,
    Flags,
    Place,
    learner_coefficients,
    local_task,
    new_state,
    synchroniser_task,
    synchronising_task,
)
from crossbow.solver import LearningRate
from crossbow.synch import SMA, Collective, HostCollective
from crossbow.types import (
    Array,
    CrossbowError,
    LabelRange,
    NonFiniteLossError,
    Phase,
    TaskError,
    Tensor,
    aligned_zeros,
)

TASKS_AHEAD = 3
"""Tasks submitted ahead, per learner: enough that no stream runs dry while the scheduler sleeps."""
SLOTS = 4
"""Slots of the batch ring, per learner: the loader is ahead of the scheduler."""
DRAIN_SECONDS = 0.5
"""How long a failure waits for the other learners' current tasks."""


@dataclass(frozen=True)
class Member:
    """A learner with what it holds."""

    learner: Learner
    device: int
    replica: Replica
    arena: Array
    state: Array


class Engine:
    """Everything of one run below the user's `ExecutionContext`."""

    def __init__(
        self,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None = None,
    ) -> None:
        self.data, self.model_conf, self.solver, self.system = data, model, solver, system
        self.check_graph = check
        self.dtype = np.dtype(system.precision)
        self.library, self._set_threads = select_library(system.kernels, self.dtype)
        self.devices = parse_devices(system.devices)
        counts = [device.learners(system.learners_per_device) for device in self.devices]
        self.learners = sum(counts)
        self.rule = model.rule if model.rule is not None else SMA()
        self.rule.check_learners(self.learners)
        self.clock = work_clock(self.learners, self.rule.tau, model.wpc)
        self.order = TrainingOrder(len(data.train), model.batch_size, system.seed)
        self.rate = LearningRate(solver, self.tasks_per_epoch)
        self.tick = 0
        self.failure: Failed | None = None
        self._in_flight = 0
        self._reports: queue.SimpleQueue[Completed | Failed] = queue.SimpleQueue()
        self._early: dict[int, Completed] = {}
        self._streams: list[CpuStream] = []
        self._loaders: list[Loader] = []
        try:
            self._build(training, check, counts, collective)
        except BaseException:
            self.close()
            raise

    # Building

    def _build(self, training: Graph, check: Graph, counts: Sequence[int], collective: Collective | None) -> None:
        data, model, seed = self.data, self.model_conf, self.system.seed
        self.loader = Loader(data.train, self.order, SLOTS * self.learners)
        self._loaders.append(self.loader)
        placed = [(number, device) for number, count in enumerate(counts) for device in [self.devices[number]] * count]
        for index, (number, device) in enumerate(placed):
            threads = device.threads(counts[number], self.system.threads_per_learner)
            self._streams.append(CpuStream(f"learner-{index}", device.cores, threads, self._set_threads))
        self.program = self._streams[0].call(
            lambda: compile_graph(
                training,
                source_of(self.loader, data.scale),
                self.library,
                self.dtype,
                phase=Phase.TRAIN,
                labels=label_range(data.train, self.loader),
                seed=seed,
            )
        )
        self.check_loader: Loader | None = None
        self.check_program: Program | None = None
        if data.check is not None:
            self._compile_check(check, data.check)
        self._prediction: _Prediction | None = None
        layout = self.program.model
        self.bases = [new_base_model(layout, self.rule, self.solver, len(self.devices)) for _ in self.devices]
        layout.initialise(self.bases[0].buffers[0], seed)
        self._place_learners([number for number, _ in placed], collective)
        self.load(layout.export(self.bases[0].buffers[0]), "the initial weights")

    def _compile_check(self, check: Graph, examples: Examples) -> None:
        batch = self.model_conf.check_batch_size or max(self.model_conf.batch_size, 64)
        batch = min(batch, len(examples))
        self.check_order = CheckOrder(len(examples), batch)
        self.check_loader = Loader(examples, self.check_order, SLOTS * self.learners, name="check loader")
        self._loaders.append(self.check_loader)
        source = source_of(self.check_loader, self.data.scale)
        labels = label_range(examples, self.check_loader)
        model = self.program.model
        self.check_program = self._streams[0].call(
            lambda: compile_graph(
                check, source, self.library, self.dtype, phase=Phase.CHECK, labels=labels, model=model
            )
        )

    def _place_learners(self, device_of: list[int], collective: Collective | None) -> None:
        layout, devices = self.program.model, len(self.devices)
        parties = self.learners if devices == 1 else 1
        self.flags = Flags(self.learners, parties)
        averaging = Averaging(self.library, self.rule, self.solver, self.flags, self.learners, devices)
        replicas = [new_replica(layout, self.rule, self.solver) for _ in device_of]
        arena_bytes = max(p.plan.arena for p in (self.program, self.check_program) if p is not None)
        self.members: list[Member] = []
        for number, device in enumerate(device_of):
            on_device = tuple(i for i, other in enumerate(device_of) if other == device)
            place = Place(number, on_device)
            state, arena = new_state(), aligned_zeros(arena_bytes)
            coefficients = learner_coefficients(averaging, place)
            peers = [replicas[i] for i in on_device]
            tasks = self._bind(averaging, place, peers, self.bases[device], coefficients, arena, state)
            learner = Learner(number, self._streams[number], tasks, coefficients, state)
            self.members.append(Member(learner, device, replicas[number], arena, state))
        self.synchroniser = None
        if devices > 1:
            self.synchroniser = self._new_synchroniser(averaging, collective or HostCollective(devices))

    def _bind(
        self,
        averaging: Averaging,
        place: Place,
        peers: Sequence[Replica],
        base: BaseModel,
        coefficients: Coefficients,
        arena: Array,
        state: Array,
    ) -> dict[TaskKey, BoundTask]:
        """All task lists of a learner: for each parity of the tick, where z has two buffers."""
        own = peers[place.on_device.index(place.learner)]
        tasks: dict[TaskKey, BoundTask] = {}
        for parity in range(len(base.buffers)):
            weights = base.buffers[parity] if own.weights is None else own.weights
            memory = self._memory(self.loader, arena, state, weights, own.gradient)
            parts = self.program.bind(memory)
            steps = synchronising_task(averaging, place, parts, peers, base, parity, coefficients, state)
            tasks["synchronise", parity] = self._bound(self.program, memory, steps)
            if self.clock.tau > 1:
                steps = local_task(averaging, parts, own, coefficients)
                tasks["local", parity] = self._bound(self.program, memory, steps)
            if self.check_program is not None and self.check_loader is not None:
                memory = self._memory(self.check_loader, arena, state, base.buffers[parity], own.gradient)
                forward, _ = self.check_program.bind(memory)
                tasks["check", parity] = self._bound(self.check_program, memory, forward)
        return tasks

    def _memory(self, loader: Loader, arena: Array, state: Array, weights: Array, gradient: Array) -> Memory:
        vectors = {"weights": weights, "gradient": gradient}
        named = {"state": state, "slots": loader.images, "slot_labels": loader.labels}
        return Memory(arena, self.program.model, vectors, named)

    @staticmethod
    def _bound(program: Program, memory: Memory, steps: list) -> BoundTask:  # type: ignore[type-arg]
        loss, measure = losses(program.graph), measures(program.graph)
        return bind_task(
            steps,
            program.output(loss[0].order, memory) if loss else None,
            program.output(measure[0].order, memory) if measure else None,
        )

    def _new_synchroniser(self, averaging: Averaging, collective: Collective) -> Learner:
        """The party that merges between devices: a stream of its own, whose task is the tick's."""
        cores = sorted({core for device in self.devices for core in device.cores})
        stream = CpuStream("synchroniser", cores, 1, self._set_threads)
        self._streams.append(stream)
        state = new_state()
        coefficients = Coefficients(self.rule, self.solver, self.learners)
        tasks = {}
        for parity in range(len(self.bases[0].buffers)):
            steps = synchroniser_task(averaging, collective, self.bases, parity, coefficients, state)
            tasks["synchronise", parity] = bind_task(steps, None, None)
        return Learner(self.learners, stream, tasks, coefficients, state)

    # Training

    @property
    def layout(self) -> ModelLayout:
        return self.program.model

    @property
    def tasks(self) -> int:
        """Tasks done since the start."""
        return self.tick * self.clock.tasks_per_tick

    @property
    def tasks_per_epoch(self) -> float:
        """Batches in an epoch: a fraction where the batch size does not divide the examples."""
        return self.order.number_of_examples / self.order.batch_size

    @property
    def _parity(self) -> int:
        """Which of z's buffers is the current one."""
        return self.tick % len(self.bases[0].buffers)

    @property
    def learning_rate(self) -> float:
        """That of the next tick."""
        return self.rate(self.tasks)

    def run(
        self, until: int, stop: Callable[[], bool], on_result: Callable[[Completed], None]
    ) -> None:
        """Run ticks up to `until`, or up to the first tick boundary at which `stop()` is true.

        `on_result` gets the results in task order, on this thread. Returns when everything submitted is done. After an
        exception the learners start again from the last base model that is whole.
        """
        self._check_usable()
        try:
            self.loader.start(self.tasks)
            while self.tick < until and not stop():
                self._run_tick(on_result)
            self._collect_all(on_result)
        except BaseException:
            self._recover()
            raise
        finally:
            self.loader.stop()

    def _run_tick(self, on_result: Callable[[Completed], None]) -> None:
        first = self.tasks
        rate = self.rate(first)
        if self.tick and self.rate.drops(first) > self.rate.drops(first - self.clock.tasks_per_tick):
            self._collect_all(on_result)
            self.restart()
        for task, number, synchronises in self.clock.schedule(self.tick):
            key = ("synchronise" if synchronises else "local", self._parity)
            self._submit(self.members[number], key, task, self.loader, rate, on_result)
        if self.synchroniser is not None:
            self.synchroniser.submit(
                ("synchronise", self._parity),
                task=first,
                tick=self.tick,
                slot=0,
                examples=0,
                rate=rate,
                release=lambda slot: None,
                report=self._report_synchroniser,
            )
        self.tick += 1

    def _submit(
        self,
        member: Member,
        key: TaskKey,
        task: int,
        loader: Loader,
        rate: float,
        on_result: Callable[[Completed], None],
    ) -> None:
        """Give the loader's next batch to a learner, once few enough tasks are under way."""
        while self._in_flight >= TASKS_AHEAD * self.learners:
            self._collect(on_result)
        slot, _, examples = loader.next()
        self._in_flight += 1
        member.learner.submit(
            key,
            task=task,
            tick=self.tick,
            slot=slot,
            examples=examples,
            rate=rate,
            release=loader.release,
            report=self._reports.put,
        )

    def _report_synchroniser(self, report: Completed | Failed) -> None:
        if isinstance(report, Failed):
            self._reports.put(report)

    def _collect(self, on_result: Callable[[Completed], None]) -> None:
        """Wait for one result; hand on those that are next in order. Raises TaskError."""
        report = self._reports.get()
        if isinstance(report, Failed):
            if report.learner < self.learners:
                self._in_flight -= 1
            self._fail(report)
        assert isinstance(report, Completed)
        self._in_flight -= 1
        self._early[report.task] = report
        while (following := self._early.pop(self._next_result, None)) is not None:
            self._next_result += 1
            if not math.isfinite(following.loss):
                raise NonFiniteLossError(
                    f"the loss became {following.loss} in task {following.task} (learning rate "
                    f"{self.rate(following.task):g}). Lower the learning rate, or look for bad values in the data"
                )
            on_result(following)

    def _collect_all(self, on_result: Callable[[Completed], None]) -> None:
        while self._in_flight:
            self._collect(on_result)

    def _fail(self, report: Failed) -> None:
        """Raise the TaskError of a failed task; of one that was given up, wait for the one that is the cause."""
        self.flags.abort[0] = 1
        while report.error is None:
            other = self._reports.get()
            if isinstance(other, Failed):
                report = other
            if report.learner < self.learners:
                self._in_flight -= 1
        raise TaskError(
            f"task {report.task} failed in operator {report.operator!r} on learner {report.learner}: "
            f"{type(report.error).__name__}: {report.error}",
            task=report.task,
            operator=report.operator,
        ) from report.error

    def _recover(self) -> None:
        """After a failure: wait for what still runs, then start the learners again from the last whole base model."""
        self.flags.abort[0] = 1
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._in_flight:
            try:
                report = self._reports.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._busy = True
                return
            if not isinstance(report, Failed) or report.learner < self.learners:
                self._in_flight -= 1
        if self.synchroniser is not None:
            self.synchroniser.stream.call(lambda: None)
        while not self._reports.empty():
            self._reports.get()
        self._early.clear()
        self.tick = int(self.flags.merged.min()) + 1
        self.restart()

    _busy = False

    def _check_usable(self) -> None:
        if self._busy:
            raise CrossbowError("a learner is still in a task after a failure; create a new ExecutionContext")

    def restart(self) -> None:
        """w_i ← z and no velocity, for every learner. Nothing may be running."""
        z = self.bases[0].current(self.tick)
        for base in self.bases:
            for buffer in base.buffers:
                if buffer is not z:
                    buffer[...] = z
            if base.velocity is not None:
                base.velocity[...] = 0
        for member in self.members:
            if member.replica.weights is not None:
                member.replica.weights[...] = z
            if member.replica.velocity is not None:
                member.replica.velocity[...] = 0
        self.flags.reset(self.tick)
        self._next_result = self.tasks

    # The base model

    @property
    def weights(self) -> dict[str, Array]:
        """The base model's variables by name, in logical shape: a copy."""
        return self.layout.export(self.bases[0].current(self.tick))

    def load(self, variables: dict[str, Array], source: str) -> None:
        """Set the base model, and start every learner from it. Raises DataError, and changes nothing, if it does not fit."""
        self.layout.load(variables, self.bases[0].current(self.tick), source)
        self.restart()

    def test(self) -> TestResult:
        """The base model on the check set: its batches dealt to the learners' streams."""
        self._check_usable()
        if self.check_program is None or self.check_loader is None or self.data.check is None:
            raise CrossbowError("there is no check set: give Dataset((x_train, y_train), (x_check, y_check))")
        loader, key = self.check_loader, ("check", self._parity)
        loss = accuracy = 0.0
        examples = 0
        measured = True

        def add(result: Completed) -> None:
            nonlocal loss, accuracy, examples, measured
            loss += result.loss * result.examples
            accuracy += (result.accuracy or 0.0) * result.examples
            examples += result.examples
            measured = measured and result.accuracy is not None

        try:
            self._next_result = 0
            loader.start(0)
            for batch in range(self.check_order.tasks):
                self._submit(self.members[batch % self.learners], key, batch, loader, self.learning_rate, add)
            self._collect_all(add)
            self._next_result = self.tasks
        except BaseException:
            self._recover()
            raise
        finally:
            loader.stop()
        return TestResult(loss / examples, accuracy / examples if measured else None, examples)

    def predict(self, images: Array) -> Array:
        """The base model's output for (N, …) images: that of the loss's input, without padding."""
        self._check_usable()
        if self._prediction is None:
            self._prediction = _Prediction(self)
        return self._prediction(images)

    def close(self) -> None:
        """End all threads."""
        for loader in self._loaders:
            loader.stop()
        if hasattr(self, "flags"):
            self.flags.abort[0] = 1
        for stream in self._streams:
            stream.close(DRAIN_SECONDS)


class _Prediction:
    """The prediction program, compiled on first use, on the first learner's stream with an arena of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.stream = engine.members[0].learner.stream
        examples = engine.data.train
        batch = engine.model_conf.check_batch_size or max(engine.model_conf.batch_size, 64)
        self.slots: Array = np.zeros((1, batch, *examples.image_shape), examples.images.dtype)
        self.labels: Array = np.zeros((1, batch, *examples.label_shape), examples.labels.dtype)
        source = BatchSource(_tensor(self.slots), _tensor(self.labels), engine.data.scale)
        graph = derive_prediction(engine.check_graph)
        self.program = self.stream.call(
            lambda: compile_graph(
                graph, source, engine.library, engine.dtype, phase=Phase.CHECK, model=engine.layout
            )
        )
        self.arena = aligned_zeros(self.program.plan.arena)
        self.state = new_state()
        self.state[2] = batch
        self.tasks: dict[int, BoundTask] = {}
        self.output: Array = np.empty(0)

    def __call__(self, images: Array) -> Array:
        engine = self.engine
        parity = engine.tick % len(engine.bases[0].buffers)
        memory = Memory(
            self.arena,
            engine.layout,
            {"weights": engine.bases[0].buffers[parity], "gradient": engine.members[0].replica.gradient},
            {"state": self.state, "slots": self.slots, "slot_labels": self.labels},
        )
        if parity not in self.tasks:
            forward, _ = self.program.bind(memory)
            self.tasks[parity] = bind_task(forward, None, None)
        result = self.program.output(len(self.program.graph) - 1, memory)
        batch = self.slots.shape[1]
        parts = []
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            self.slots[0, : len(part)] = part
            self.stream.call(self.tasks[parity].calls.run)
            parts.append(result[: len(part)].copy())
        return np.concatenate(parts) if parts else np.empty((0, *result.shape[1:]), result.dtype)


def source_of(loader: Loader, scale: float) -> BatchSource:
    return BatchSource(_tensor(loader.images), _tensor(loader.labels), scale)


def _tensor(array: Array) -> Tensor:
    return Tensor(array.shape, array.dtype)


def label_range(examples: Examples, loader: Loader) -> LabelRange:
    labels = examples.labels
    return LabelRange(
        loader.labels.shape[1:], bool(np.issubdtype(labels.dtype, np.integer)), float(labels.min()), float(labels.max())
    )


def device_text(device: CpuDevice) -> str:
    return f"{device.name} (cores {', '.join(map(str, device.cores))})"
