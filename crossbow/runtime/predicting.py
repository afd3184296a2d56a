"""Assemblies for prediction alone: a network with its initial values, and nothing that training needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossbow.compile import BatchSource, Program, check_memory, compile_graph
from crossbow.data.dataset import Dataset
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.cpu_assembly import CpuAssembly
from crossbow.runtime.device import CudaDevice, parse_devices
from crossbow.runtime.memory import assign
from crossbow.runtime.prediction import Prediction
from crossbow.runtime.replica import BaseModel
from crossbow.solver import SolverConf
from crossbow.synch import Collective
from crossbow.types import Array, Phase, Shape


class _PredictingAssembly(Assembly):
    """One stream, one program and one model. It has no loader and no learner."""

    def _build(self, training: Graph, check: Graph, collective: Collective | None) -> None:
        self._open()

    def compile_prediction(self, source: BatchSource) -> Program:
        """The network's program, and its variables in the device's memory."""
        self.program = program = self._compile_on.call(
            lambda: compile_graph(
                derive_prediction(self.check_graph),
                source,
                self.library,
                self.dtype,
                phase=Phase.CHECK,
                seed=self.system.seed,
                check_numerics=self.system.check_numerics,
            )
        )
        layouts = (program.model, program.statistics)
        sizes = [layout.elements * layout.dtype.itemsize for layout in layouts]
        check_memory({"weights": sum(sizes), "intermediate results": program.plan.arena})
        vectors = []
        for layout in layouts:
            (vector,), values = layout.new_vectors(1, self.zeros(0)), layout.new_vector()
            layout.initialise(values, self.system.seed)
            assign(vector, values)
            vectors.append((vector, vector))
        self.bases = [BaseModel(vectors[0], None, None, vectors[1], None)]
        return program


class _CpuPredictingAssembly(_PredictingAssembly, CpuAssembly):
    """On the processor's cores."""


class NetworkPrediction:
    """The prediction of a graph for images of one shape and type, with its threads."""

    def __init__(self, graph: Graph, images: Shape, dtype: np.dtype[np.generic], system: SystemConf) -> None:
        """images: the shape of a batch. Raises GraphError or ConfigurationError; no thread is left then."""
        example = (np.zeros((1, *images[1:]), dtype), np.zeros(1, np.int32))
        data = Dataset(example, channels_last=True)
        kind: type[_PredictingAssembly] = _CpuPredictingAssembly
        devices = parse_devices(system.devices)
        if isinstance(devices[0], CudaDevice):
            # CUDA's libraries, where wanted
            from crossbow.runtime.cuda.assembly import CudaAssembly

            class CudaPredictingAssembly(_PredictingAssembly, CudaAssembly):
                """On a GPU."""

            kind = CudaPredictingAssembly
        alone = ModelConf(batch_size=1)
        one = replace(system, devices=system.devices[:1], learners_per_device=1)
        self._parts = kind(graph, graph, data, alone, SolverConf(), one, None, 0)
        try:
            self._prediction = Prediction(self._parts, images[0])
        except BaseException:
            self._parts.close()
            raise

    def __call__(self, images: Array) -> Array:
        """The output for (N, …) images. Raises TaskError."""
        return self._prediction(images, 0)

    def close(self) -> None:
        """End all threads."""
        self._parts.close()
