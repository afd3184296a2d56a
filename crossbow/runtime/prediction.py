"""Prediction: the check dataflow without labels, on the base model."""

from __future__ import annotations

import functools

import numpy as np

from crossbow.compile import Memory
from crossbow.kernels.interface import State
from crossbow.kernels.native import TaskList
from crossbow.runtime.assembly import Assembly, batch_source
from crossbow.runtime.learner import BoundTask, bind_task
from crossbow.runtime.memory import assign, on_host
from crossbow.runtime.tick import new_state
from crossbow.types import Array, GraphError, TaskError


class Prediction:
    """The prediction program, made on first use, on the first learner's stream with an arena of its own."""

    def __init__(self, parts: Assembly, batch: int | None = None) -> None:
        """batch: images of a task; None is as many as are tested with at once."""
        self.parts = parts
        self.stream = parts.streams[0]
        examples = parts.data.train
        batch = batch or parts.check_batch_size(len(examples))
        self.images: Array = np.zeros((1, batch, *examples.image_shape), examples.images.dtype)
        labels: Array = np.zeros((1, batch, *examples.label_shape), examples.labels.dtype)
        self.program = parts.compile_prediction(batch_source(self.images, labels, parts.data.scale))
        graph = self.program.graph
        zeros, state = parts.zeros(0), new_state()
        state[State.EXAMPLES] = batch
        arena = zeros(max(self.program.plan.arena, 1))
        # Where the images lie when kernels read them: on a GPU a copy.
        named = {
            name: zeros(max(values.nbytes, 1))[: values.nbytes].view(values.dtype).reshape(values.shape)
            for name, values in (("state", state), ("slots", self.images), ("slot_labels", labels))
        }
        self.slots = named["slots"]
        assign(named["state"], state)
        self.tasks: list[BoundTask] = []
        base, narrow = parts.bases[0], parts.narrow_vectors(0)
        for buffer, statistics in zip(base.buffers, base.statistics, strict=True):
            vectors = {**narrow, "weights": buffer, "statistics": statistics}
            memory = Memory(arena, parts.program.model, vectors, named, parts.program.statistics, parts.to_device)
            bind = functools.partial(self.program.bind, memory)
            self.tasks.append(bind_task(self.stream.call(bind).forward, None, None))
        self.output = self.program.output(len(graph) - 1, memory)
        if self.output.shape[:1] != (batch,):
            expected = f"expected a prediction of shape (N, …) for N={batch} images"
            raise GraphError([f"node {graph[-1].name!r}: {expected}. Received: {self.output.shape}"])

    def __call__(self, images: Array, parity: int) -> Array:
        """The output for (N, …) images; `parity` says which of z's buffers is the current one.

        A task is a batch of the images, counted from 0. Raises TaskError.
        """
        batch, calls = self.images.shape[1], self.tasks[parity].calls
        result: Array = np.empty((len(images), *self.output.shape[1:]), self.output.dtype)
        for task, start in enumerate(range(0, len(images), batch)):
            part = images[start : start + batch]
            self.images[0, : len(part)] = part
            self.images[0, len(part) :] = part[-1]  # not earlier images: a number that is not finite would be reported
            assign(self.slots, self.images)
            self.parts.synchronise()
            self.stream.call(functools.partial(_run, calls, task))
            result[start : start + len(part)] = on_host(self.output)[: len(part)]
        return result


def _run(calls: TaskList, task: int) -> None:
    try:
        calls.run()
    except Exception as error:
        raise task_error(error, task, calls.failed or "task", "while predicting") from error


def task_error(error: BaseException, task: int, operator: str, where: str) -> TaskError:
    """What is raised from the exception that ended a task; `where`, as "on learner 1", is part of the sentence."""
    message = f"task {task} failed in operator {operator!r} {where}: {type(error).__name__}: {error}"
    return TaskError(message, task=task, operator=operator)
