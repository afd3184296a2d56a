"""Forward and backward of one batch through a network, timed layer by layer, in Crossbow and in PyTorch.

Neither system takes a step, as in the convnet benchmarks (github.com/soumith/convnet-benchmarks). In place of softmax
and loss, the gradient of the output is the output divided by the number of images. The gradient of the images is not
computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.anatomy import TimedCalls
from benchmarks.torch_network import torch_network
from crossbow import Dataflow, DataflowNode, Phase, SubGraph, SystemConf
from crossbow.compile import BatchSource, Memory, Program, compile_graph
from crossbow.dataflow.graph import BATCH, build
from crossbow.host_memory import aligned_zeros, peak_memory
from crossbow.kernels.interface import State
from crossbow.kernels.task_list import TaskList
from crossbow.ops import Accuracy, Dropout, EuclideanLoss, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime.cpu.backend import CpuBackend
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.types import Shape, Tensor
from models.alexnet import alexnet
from models.googlenet import googlenet
from models.layers import add
from models.overfeat import overfeat
from models.vgg import vgg

CLASSES = 1000
SECONDS_TO_END = 10
FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


@dataclass(frozen=True)
class Network:
    """A network of the convnet benchmarks."""

    build: Callable[[], Dataflow]
    image_shape: Shape
    batch: int
    target: float
    """Maximum of Crossbow's total time divided by PyTorch's."""


NETWORKS = {
    "alexnet": Network(alexnet, (3, 224, 224), 128, 1.0),
    "overfeat": Network(overfeat, (3, 231, 231), 128, 1.0),
    "vgg-a": Network(lambda: vgg("a"), (3, 224, 224), 64, 0.7),
    "googlenet": Network(googlenet, (3, 224, 224), 128, 1.0),
}
"""The networks by name."""


@dataclass(frozen=True)
class Turn:
    """Seconds of a batch."""

    forward: float
    backward: float
    layers: Mapping[str, tuple[float, float]]
    """Forward and backward of each layer, in the order of the network."""

    @property
    def total(self) -> float:
        return self.forward + self.backward


def bare(dataflow: Dataflow) -> Dataflow:
    """The training dataflow without dropout and softmax, with a squared error as its loss."""
    nodes: dict[int, DataflowNode] = {}
    graph = build(dataflow.subgraph.nodes)
    for vertex in graph:
        if isinstance(vertex.kernel, Dropout | SoftMax):
            nodes[vertex.order] = nodes[vertex.inputs[0]]
        elif vertex.forward is not None and not isinstance(vertex.kernel, SoftMaxLoss | Accuracy):
            inputs = [nodes[source] for source in vertex.inputs if source != BATCH]
            nodes[vertex.order] = add(vertex.name, vertex.forward, *inputs)
    (first,) = (nodes[vertex.order] for vertex in graph if vertex.inputs == (BATCH,))
    (loss,) = (vertex for vertex in graph if isinstance(vertex.kernel, SoftMaxLoss))
    add("loss", EuclideanLoss(), nodes[loss.inputs[0]])
    return Dataflow(SubGraph(first)).set_phase(Phase.TRAIN)


def layer_names(dataflow: Dataflow) -> dict[str, str]:
    """For each operator, the layer to which its time is added. An activation belongs to the preceding layer."""
    names: dict[str, str] = {}
    graph = build(dataflow.subgraph.nodes)
    for vertex in graph:
        source = vertex.inputs[0]
        joined = isinstance(vertex.kernel, ReLU) and source != BATCH
        names[vertex.name] = names[graph[source].name] if joined else vertex.name
    return names


class _Learner:
    """The compiled network with its own memory and its part of the batch."""

    def __init__(self, program: Program, stream: CpuStream, slots: Mapping[str, Any], weights: Any) -> None:
        self._stream = stream
        state: Any = np.zeros(State.SIZE, np.int64)
        state[State.EXAMPLES] = slots["slots"].shape[1]
        vectors = dict(zip(("weights", "gradient"), program.model.new_vectors(2), strict=True))
        vectors["weights"][...] = weights
        arena = aligned_zeros(program.plan.arena)
        memory = Memory(arena, program.model, vectors, {**slots, "state": state}, program.statistics)
        parts = program.bind(memory)
        self.lists = [
            TimedCalls(TaskList([step.call for step in steps], [step.operator for step in steps]))
            for steps in (parts.forward, parts.backward)
        ]
        """Calls of forward and backward."""

    def run(self, part: int) -> None:
        """Run forward (0) or backward (1)."""
        self._stream.call(self.lists[part].run)

    def reset(self) -> None:
        for calls in self.lists:
            calls.reset()


class CrossbowRunner:
    """Splits the batch over learners, whose task lists run at the same time."""

    def __init__(self, network: str, batch: int, learners: int, threads: int) -> None:
        """Raises ValueError unless the batch can be split evenly."""
        if batch % learners:
            raise ValueError(f"expected a batch that is a multiple of {learners}, the learners. Received: {batch}")
        known, own = NETWORKS[network], batch // learners
        dataflow = bare(known.build())
        self._layer_of = layer_names(dataflow)
        self._backend = CpuBackend(SystemConf(learners_per_device=learners, threads_per_learner=threads))
        self._backend.open()
        pixels = np.random.default_rng(0).integers(0, 256, (1, own, *known.image_shape), dtype=np.uint8)
        slots = {"slots": pixels, "slot_labels": np.zeros((1, own, CLASSES), np.float32)}
        source = BatchSource(Tensor(pixels.shape, pixels.dtype), Tensor((1, own, CLASSES), FLOAT32), 1 / 255)
        program = self._backend.call(
            lambda: compile_graph(dataflow.graph, source, self._backend.library, FLOAT32, phase=Phase.TRAIN)
        )
        weights = program.model.new_vector()
        program.model.initialise(weights, 0)
        self._learners = [_Learner(program, stream, slots, weights) for stream in self._backend.streams]
        self._pool = ThreadPoolExecutor(learners)
        self.turn(0.0)

    def turn(self, seconds: float) -> Turn:
        """Run the batch at least once, and until the given time has passed. Returns means."""
        for learner in self._learners:
            learner.reset()
        sums, batches, begin = [0.0, 0.0], 0, time.monotonic()
        while batches == 0 or time.monotonic() - begin < seconds:
            for part in (0, 1):
                start = time.monotonic()
                for _ in self._pool.map(lambda learner, part=part: learner.run(part), self._learners):
                    pass
                sums[part] += time.monotonic() - start
            batches += 1
        return Turn(sums[0] / batches, sums[1] / batches, self._layers(batches))

    def _layers(self, batches: int) -> dict[str, tuple[float, float]]:
        """Means over learners and batches."""
        found: dict[str, list[float]] = {}
        for learner in self._learners:
            for part, calls in enumerate(learner.lists):
                for operator, total in zip(calls.names, calls.totals, strict=True):
                    name = operator.partition(".gradient")[0]
                    times = found.setdefault(self._layer_of.get(name, name), [0.0, 0.0])
                    times[part] += float(total) / 1e9 / len(self._learners) / batches
        return {name: (forward, backward) for name, (forward, backward) in found.items()}

    def peak_memory(self) -> int | None:
        """Peak resident memory of this process in bytes; None if unknown."""
        return peak_memory()

    def close(self) -> None:
        self._pool.shutdown()
        self._backend.close(SECONDS_TO_END)


class TorchRunner:
    """One model, channels-last, from a batch that is prepared in advance."""

    def __init__(self, network: str, batch: int, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        known = NETWORKS[network]
        dataflow = bare(known.build())
        self._layer_of = layer_names(dataflow)
        last = torch.channels_last
        self._model = torch_network(dataflow, known.image_shape, self._computed).to(memory_format=last)
        self._images = torch.rand((batch, *known.image_shape)).contiguous(memory_format=last)
        self._times: dict[str, list[float]] = {}
        self._last, self._current = 0.0, ""
        self.turn(0.0)

    def turn(self, seconds: float) -> Turn:
        """Run the batch at least once, and until the given time has passed. Returns means."""
        self._times = {}
        forward = backward = 0.0
        batches, begin = 0, time.monotonic()
        while batches == 0 or time.monotonic() - begin < seconds:
            start = self._last = time.monotonic()
            (y,) = self._model(self._images)
            forward += time.monotonic() - start
            start = self._last = time.monotonic()
            self._current = "loss"
            y.backward(y.detach() / len(y))
            self._lap(self._current, 1)
            backward += time.monotonic() - start
            del y
            self._model.zero_grad(set_to_none=True)
            batches += 1
        layers = {name: (times[0] / batches, times[1] / batches) for name, times in self._times.items()}
        return Turn(forward / batches, backward / batches, layers)

    def _computed(self, name: str, y: Any) -> None:
        """Count the time of a layer's forward pass, and prepare for its backward pass.

        Autograd calls the functions of a layer one after the other, in the reverse order of the layers, so the time
        from the beginning of one layer's last function to that of the next is the layer's.
        """
        self._lap(name, 0)
        y.grad_fn.register_prehook(lambda gradients: self._enter(name))

    def _enter(self, name: str) -> None:
        self._lap(self._current, 1)
        self._current = name

    def _lap(self, name: str, part: int) -> None:
        now = time.monotonic()
        self._times.setdefault(self._layer_of.get(name, name), [0.0, 0.0])[part] += now - self._last
        self._last = now

    def peak_memory(self) -> int | None:
        """Peak resident memory of this process in bytes; None if unknown."""
        return peak_memory()

    def close(self) -> None:
        """There is nothing to release."""
