"""A task's work on the processor: one list of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep, Memory
from crossbow.dataflow.graph import reported_loss, reported_measure
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.assembly import Pipeline
from crossbow.types import Array


@dataclass(frozen=True)
class BoundTask:
    """A task list, and where it leaves loss and accuracy: arrays of one element, None where there is none."""

    calls: TaskList
    loss: Array | None = None
    accuracy: Array | None = None
    release: Callable[[int], None] | None = None
    """Gives the slot of the task's batch back; None where it has none."""


def task_list(steps: Sequence[BoundStep]) -> TaskList:
    """The steps' calls, in order."""
    return TaskList([step.call for step in steps], [step.operator for step in steps])


def bound_task(pipeline: Pipeline, memory: Memory, steps: Sequence[BoundStep]) -> BoundTask:
    """A task of a program that is bound to this memory."""
    program = pipeline.program
    loss, measure = (
        None if found is None else program.output(found.order, memory)
        for found in (reported_loss(program.graph), reported_measure(program.graph))
    )
    return BoundTask(
        task_list(steps),
        loss,
        measure,
        pipeline.loader.release,
    )
