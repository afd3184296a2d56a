"""Prediction alone: a network with its initial values, and nothing that training needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossbow.compile import Program, check_memory
from crossbow.data.dataset import Dataset
from crossbow.dataflow.graph import Graph
from crossbow.runtime.backend import Backend
from crossbow.runtime.building import CLOSE_SECONDS, compile_prediction, new_backend
from crossbow.runtime.configuration import SystemConf
from crossbow.runtime.memory import assign
from crossbow.runtime.prediction import Prediction, empty_batch
from crossbow.runtime.replica import BaseModel
from crossbow.types import Array, Shape


class NetworkPrediction:
    """The prediction of a graph for images of one shape and type, with its threads."""

    def __init__(self, graph: Graph, images: Shape, dtype: np.dtype[np.generic], system: SystemConf) -> None:
        """images: the shape of a batch. Raises GraphError or ConfigurationError; no thread is left then."""
        example = (np.zeros((1, *images[1:]), dtype), np.zeros(1, np.int32))
        batch = empty_batch(Dataset(example, channels_last=True), images[0])
        one = replace(system, devices=system.devices[:1], learners_per_device=1)
        self._backend = backend = new_backend(None, one)
        try:
            backend.open()
            program = compile_prediction(graph, batch.source, one, backend)
            self._prediction = Prediction(backend, program, _initial_model(program, one.seed, backend), batch)
        except BaseException:
            backend.close(CLOSE_SECONDS)
            raise

    def __call__(self, images: Array) -> Array:
        """The output for (N, …) images. Raises TaskError."""
        return self._prediction(images, 0)

    def close(self) -> None:
        """End all threads."""
        self._backend.close(CLOSE_SECONDS)


def _initial_model(program: Program, seed: int, backend: Backend) -> BaseModel:
    """The program's variables with their initial values, in one buffer. Raises ConfigurationError."""
    layouts = (program.model, program.statistics)
    sizes = [layout.elements * layout.dtype.itemsize for layout in layouts]
    check_memory({"weights": sum(sizes), "intermediate results": program.plan.arena})
    vectors = []
    for layout in layouts:
        (vector,), values = layout.new_vectors(1, backend.zeros(0)), layout.new_vector()
        layout.initialise(values, seed)
        assign(vector, values)
        vectors.append((vector, vector))
    return BaseModel(vectors[0], None, None, vectors[1], None)
