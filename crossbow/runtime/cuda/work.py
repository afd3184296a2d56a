"""A task's work on a GPU: always the same, so captured once as a CUDA graph, and then launched with one call."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from crossbow.compile import BoundStep, Memory
from crossbow.dataflow.graph import reported_loss, reported_measure
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.engine import store_results
from crossbow.kernels.cuda.launch import current
from crossbow.kernels.cuda.transfer import to_device
from crossbow.runtime.assembly import Assembly, Pipeline
from crossbow.runtime.cuda.memory import CudaLearnerMemory, Input
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import Purpose
from crossbow.types import Array

PARITIES = (0, 1)

WorkKey = tuple[Purpose, int, int]
"""Purpose and parity of a task, and its input buffer."""
StepKey = tuple[Purpose | Literal["send"], int]
"""Purpose and parity of a step. "send" is the step before a merge of new weights."""


class Work:
    """The calls of a task, or of a part of one, in order.

    The first time they are made one by one: then libraries load their code, which must not happen while a graph is
    captured. The second time they are captured, and from then on launched as a graph.
    """

    def __init__(self, steps: Sequence[BoundStep], *, graph: bool) -> None:
        self.steps = tuple(steps)
        self._graph = graph and all(getattr(step.call, "capturable", False) for step in steps) and bool(steps)
        self._launched = False
        self._executable = 0
        self.failed: str | None = None
        """The operator whose call raised in the last run."""

    def run(self) -> None:
        """Give the work to the current stream. Returns before it is done; raises what a call raises."""
        self.failed = None
        if self._executable:
            api().runtime.graphLaunch(self._executable, current().pointer)
        elif self._launched and self._graph:
            try:
                self._executable = self._capture()
            except Exception as error:  # none of the calls has been made
                self._graph = False
                warnings.warn(f"a task's work runs without a CUDA graph: {error}", RuntimeWarning, stacklevel=2)
                self._call()
                return
            api().runtime.graphLaunch(self._executable, current().pointer)
        else:
            self._call()
            self._launched = True

    @property
    def is_graph(self) -> bool:
        """Whether it has been captured."""
        return self._executable != 0

    def close(self) -> None:
        """Give the graph back."""
        if self._executable:
            api().runtime.graphExecDestroy(self._executable)
            self._executable = 0

    def _call(self) -> None:
        for step in self.steps:
            try:
                step.call()
            except BaseException:
                self.failed = step.operator
                raise

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
                with contextlib.suppress(Exception):  # what went wrong before is raised
                    graph = runtime.streamEndCapture(stream)
            raise
        finally:
            if graph:
                runtime.graphDestroy(graph)


@dataclass(frozen=True)
class BoundWork:
    """Forward and backward pass of a task, on the record in an input."""

    compute: Work
    input: Input
    loss: bool
    """Whether it leaves a loss."""
    accuracy: bool
    """Whether it leaves an accuracy."""
    release: Callable[[int], None]
    """Gives the slot of the task's batch back."""


def new_work(assembly: Assembly, steps: Sequence[BoundStep]) -> Work:
    """Work as the system's configuration wants it: as a graph, or call by call."""
    system = assembly.setting.system
    return Work(steps, graph=system.graphs and not system.check_numerics)


def bound_work(
    assembly: Assembly, pipeline: Pipeline, memory: CudaLearnerMemory, vectors: dict[str, Array]
) -> list[BoundWork]:
    """A program on these vectors, with the batches of each input."""
    return [_bound_work(assembly, pipeline, memory, vectors, place) for place in memory.inputs(pipeline.loader)]


def check_work(
    assembly: Assembly, memory: CudaLearnerMemory, base: BaseModel, replica: Replica
) -> dict[WorkKey, BoundWork]:
    """What a learner tests z with, if there is a check set."""
    tasks: dict[WorkKey, BoundWork] = {}
    if assembly.check is not None:
        for parity in PARITIES:
            observed = base.statistics[parity]
            vectors = memory.vectors(base.buffers[parity], replica.gradient, (observed, observed))
            for buffer, bound in enumerate(bound_work(assembly, assembly.check, memory, vectors)):
                tasks["check", parity, buffer] = bound
    return tasks


def _bound_work(
    assembly: Assembly, pipeline: Pipeline, learner: CudaLearnerMemory, vectors: dict[str, Array], place: Input
) -> BoundWork:
    program, trained = pipeline.program, assembly.program
    memory = Memory(learner.arena, trained.model, vectors, place.arrays, trained.statistics, to_device)
    parts = program.bind(memory)
    steps = [*parts.forward, *parts.backward]
    loss, accuracy = (
        None if found is None else program.output(found.order, memory)
        for found in (reported_loss(program.graph), reported_measure(program.graph))
    )
    if loss is not None or accuracy is not None:
        steps.append(BoundStep("results", store_results(loss, accuracy, place.arrays["state"], learner.turns.results)))
    work, release = new_work(assembly, steps), pipeline.loader.release
    return BoundWork(work, place, loss is not None, accuracy is not None, release)
