"""A task's work on a CPU: a list of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep, Memory
from crossbow.dataflow.graph import other_measures, reported_loss, reported_measure
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.assembly import Pipeline
from crossbow.types import Array


@dataclass(frozen=True)
class BoundTask:
    """A task list, and the arrays (1,) to which it writes loss, accuracy and, if it is a test task, the other metrics.
    None if there is no such vertex."""

    calls: TaskList
    loss: Array | None = None
    accuracy: Array | None = None
    release: Callable[[int], None] | None = None
    """Releases the slot of the task's batch; None without a batch."""
    metrics: tuple[Array, ...] = ()


def task_list(steps: Sequence[BoundStep]) -> TaskList:
    """The steps' calls, in order."""
    return TaskList([step.call for step in steps], [step.operator for step in steps])


def bound_task(pipeline: Pipeline, memory: Memory, steps: Sequence[BoundStep]) -> BoundTask:
    """The task of a program that is bound to this memory."""
    program, graph = pipeline.program, pipeline.program.graph
    loss, measure = (
        None if found is None else program.output(found.order, memory)
        for found in (reported_loss(graph), reported_measure(graph))
    )
    others = other_measures(graph) if pipeline.tests else ()
    return BoundTask(
        task_list(steps),
        loss,
        measure,
        pipeline.loader.release,
        tuple(program.output(found.order, memory) for found in others),
    )
