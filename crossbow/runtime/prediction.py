"""Prediction: a check dataflow without labels, on a base model."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from crossbow.compile import BatchSource, Memory, Program
from crossbow.data import Dataset
from crossbow.kernels.interface import State
from crossbow.kernels.task_list import TaskList
from crossbow.runtime.backend import Backend, batch_source
from crossbow.runtime.flow import task_error
from crossbow.runtime.memory import assign, new_state, on_host
from crossbow.runtime.replica import BaseModel, narrow_vectors
from crossbow.types import Array, GraphError


class EmptyBatch(NamedTuple):
    """Input of a prediction: one slot of a ring."""

    images: Array
    labels: Array
    source: BatchSource
    """Description for the compiler."""


def empty_batch(data: Dataset, examples: int) -> EmptyBatch:
    """A batch for images like the data set's training images."""
    train = data.train
    images: Array = np.zeros((1, examples, *train.image_shape), train.image_dtype)
    labels: Array = np.zeros((1, examples, *train.label_shape), train.labels.dtype)
    return EmptyBatch(images, labels, batch_source(images, labels, data.scale))


class Prediction:
    """A prediction program on the first learner's stream, with its own arena."""

    def __init__(self, backend: Backend, program: Program, base: BaseModel, batch: EmptyBatch) -> None:
        """Raises GraphError unless the output has one row per image."""
        self._backend, self._images = backend, batch.images
        examples, zeros, state = batch.images.shape[1], backend.zeros(0), new_state()
        state[State.EXAMPLES] = examples
        arena = zeros(max(program.plan.arena, 1))
        # The images that kernels read; on a GPU, a copy.
        named = {
            name: zeros(max(values.nbytes, 1))[: values.nbytes].view(values.dtype).reshape(values.shape)
            for name, values in (("state", state), ("slots", batch.images), ("slot_labels", batch.labels))
        }
        self._slots = named["slots"]
        assign(named["state"], state)
        self._tasks: list[TaskList] = []
        narrow = narrow_vectors(program, backend.library.mixed, zeros)
        for buffer, statistics in zip(base.buffers, base.statistics, strict=True):
            vectors = {**narrow, "weights": buffer, "statistics": statistics}
            memory = Memory(arena, program.model, vectors, named, program.statistics, backend.to_device)
            steps = backend.call(functools.partial(program.bind, memory)).forward
            self._tasks.append(TaskList([step.call for step in steps], [step.operator for step in steps]))
        self._output = program.output(len(program.graph) - 1, memory)
        if self._output.shape[:1] != (examples,):
            expected = f"expected a prediction of shape (N, …) for N={examples} images"
            raise GraphError([f"node {program.graph[-1].name!r}: {expected}. Received: {self._output.shape}"])

    def __call__(self, images: Array, parity: int) -> Array:
        """The output for images (N, …); `parity` selects the current one of z's buffers.

        A task is a batch of the images, counted from 0. Raises TaskError.
        """
        batch, calls = self._images.shape[1], self._tasks[parity]
        result: Array = np.empty((len(images), *self._output.shape[1:]), self._output.dtype)
        for task, start in enumerate(range(0, len(images), batch)):
            part = images[start : start + batch]
            self._images[0, : len(part)] = part
            self._images[0, len(part) :] = part[-1]  # not earlier images, whose non-finite numbers would be reported
            assign(self._slots, self._images)
            self._backend.synchronise()
            self._backend.call(functools.partial(_run, calls, task))
            result[start : start + len(part)] = on_host(self._output)[: len(part)]
        return result


def _run(calls: TaskList, task: int) -> None:
    try:
        calls.run()
    except Exception as error:
        raise task_error(error, task, calls.failed or "task", "while predicting") from error
