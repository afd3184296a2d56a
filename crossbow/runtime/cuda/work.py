"""A task's work on a GPU: always the same calls, captured once as a CUDA graph and then launched as a whole."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep, Memory
from crossbow.dataflow.graph import other_measures, reported_loss, reported_measure
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.kernels.cuda.ranges import Ranges, no_range, nvtx_range
from crossbow.kernels.cuda.series import in_series
from crossbow.kernels.cuda.task import store_results
from crossbow.runtime.assembly import Assembly, Pipeline
from crossbow.runtime.cuda.memory import CudaLearnerMemory, Input
from crossbow.runtime.cuda.timing import Marks
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import PARITIES, Purpose
from crossbow.types import Array

DIRECT = 2
"""Maximum number of calls that are made directly instead of as a graph."""

WorkKey = tuple[Purpose, int, int]
"""Purpose, parity and input buffer of a task."""


class Work:
    """The calls of a task, or of a part of a task, in order.

    The first run makes them one by one, so that libraries load their code, which is not possible during a capture. The
    second run captures them, and later runs launch the graph. So work that runs at most once is never captured.
    One or two calls are always made directly, because the launch of a graph takes longer.
    """

    def __init__(self, steps: Sequence[BoundStep], *, graph: bool, ranges: Ranges = no_range) -> None:
        """ranges: profiler ranges for calls that are made one by one."""
        self._ranges = ranges
        self.steps = tuple(steps)
        self.calls = _in_series(steps)
        """The calls to submit, with small kernels joined."""
        capturable = all(getattr(step.call, "capturable", False) for step in steps)
        self._graph = graph and capturable and len(self.calls) > DIRECT
        self._launched = False
        self._executable = 0
        self.failed: str | None = None
        """The operator whose call raised an error in the last run."""

    def run(self) -> None:
        """Submit the work to the current stream. Returns before it is done; raises the errors of its calls."""
        self.failed = None
        if self._executable:
            api().runtime.graphLaunch(self._executable, current().pointer)
        elif self._launched and self._graph:
            try:
                self._executable = self._capture()
            except Exception as error:  # none of the calls was made
                self._graph = False
                warnings.warn(f"a task's work runs without a CUDA graph: {error}", RuntimeWarning, stacklevel=2)
                self._call()
                return
            api().runtime.graphLaunch(self._executable, current().pointer)
        else:
            self._call()
            self._launched = True

    def run_timed(self, marks: Marks) -> None:
        """Submit the same calls one by one, without joining small kernels, and mark the end of each."""
        self._call(marks)

    @property
    def is_graph(self) -> bool:
        """Whether the calls were captured."""
        return self._executable != 0

    def close(self) -> None:
        """Destroy the graph."""
        if self._executable:
            api().runtime.graphExecDestroy(self._executable)
            self._executable = 0

    def _call(self, marks: Marks | None = None) -> None:
        self.failed = None
        for step in self.calls if marks is None else self.steps:
            try:
                with self._ranges(step.operator):
                    step.call()
            except BaseException:
                self.failed = step.operator
                raise
            if marks is not None:
                marks.step(step)

    def _capture(self) -> int:
        runtime, stream = api().runtime, current().pointer
        graph = 0
        try:
            runtime.streamBeginCapture(stream, runtime.streamCaptureModeRelaxed)
            self._call()
            graph = runtime.streamEndCapture(stream)
            return int(runtime.graphInstantiate(graph))
        except BaseException:
            if not graph:
                with contextlib.suppress(Exception):  # the earlier error is raised
                    graph = runtime.streamEndCapture(stream)
            raise
        finally:
            if graph:
                runtime.graphDestroy(graph)


def _in_series(steps: Sequence[BoundStep]) -> tuple[BoundStep, ...]:
    """The steps, with consecutive small kernels joined; the name of a joined step lists their operators."""
    joined, rest = [], iter(steps)
    for call, count in in_series([step.call for step in steps]):
        names = dict.fromkeys(step.operator for step in itertools.islice(rest, count))
        joined.append(BoundStep(", ".join(names), call))
    return tuple(joined)


def run(work: Work, marks: Marks | None) -> None:
    """Submit the work, and mark its calls if they are timed."""
    if marks is None:
        work.run()
    else:
        work.run_timed(marks)


@dataclass(frozen=True)
class BoundWork:
    """The work of a task on the record in an input buffer: the forward and backward passes, and the steps after them
    that do not wait for other streams."""

    compute: Work
    input: Input
    loss: bool
    """Whether there is a loss."""
    accuracy: bool
    """Whether there is an accuracy."""
    metrics: int
    """Number of metrics beside the accuracy that the task reports."""
    release: Callable[[int], None]
    """Releases the slot of the task's batch."""


def new_work(assembly: Assembly, steps: Sequence[BoundStep]) -> Work:
    """Create work that runs as a graph or call by call, by the system configuration."""
    system = assembly.setting.system
    return Work(steps, graph=system.graphs and not system.check_numerics, ranges=task_ranges(assembly))


def task_ranges(assembly: Assembly) -> Ranges:
    """Named ranges of the host's work for profilers."""
    return nvtx_range if assembly.setting.system.nvtx else no_range


def bound_work(
    assembly: Assembly,
    pipeline: Pipeline,
    memory: CudaLearnerMemory,
    vectors: dict[str, Array],
    end: Sequence[BoundStep] = (),
) -> list[BoundWork]:
    """Bind a program to these vectors and to each input buffer. end: steps that follow the backward pass."""
    return [_bound_work(assembly, pipeline, memory, vectors, place, end) for place in memory.inputs(pipeline.loader)]


def check_work(
    assembly: Assembly, memory: CudaLearnerMemory, base: BaseModel, replica: Replica
) -> dict[WorkKey, BoundWork]:
    """A learner's work for testing z, if there is a check set."""
    tasks: dict[WorkKey, BoundWork] = {}
    if assembly.check is not None:
        for parity in PARITIES:
            observed = base.statistics[parity]
            vectors = memory.vectors(base.buffers[parity], replica.gradient, (observed, observed))
            for buffer, bound in enumerate(bound_work(assembly, assembly.check, memory, vectors)):
                tasks["check", parity, buffer] = bound
    return tasks


def _bound_work(
    assembly: Assembly,
    pipeline: Pipeline,
    learner: CudaLearnerMemory,
    vectors: dict[str, Array],
    place: Input,
    end: Sequence[BoundStep],
) -> BoundWork:
    program, trained, graph = pipeline.program, assembly.program, pipeline.program.graph
    memory = Memory(learner.arena, trained.model, vectors, place.arrays, trained.statistics)
    parts = program.bind(memory)
    steps = list(parts.forward)
    loss, accuracy = (
        None if found is None else program.output(found.order, memory)
        for found in (reported_loss(graph), reported_measure(graph))
    )
    metrics = [program.output(found.order, memory) for found in (other_measures(graph) if pipeline.tests else ())]
    values = [loss, accuracy, *metrics, *[None] * (len(metrics) % 2)]
    for first, second, results in zip(values[::2], values[1::2], learner.turns.results, strict=False):
        if first is not None or second is not None:
            steps.append(BoundStep("results", store_results(first, second, place.arrays["state"], results)))
    steps += [*parts.backward, *end]
    work, release = new_work(assembly, steps), pipeline.loader.release
    return BoundWork(work, place, loss is not None, accuracy is not None, len(metrics), release)
