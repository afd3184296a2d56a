"""A compiled program on memory of its own, poisoned so that whatever is not written shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataflow, DataflowNode, Phase, SubGraph
from crossbow.compile import BatchSource, Memory, ModelLayout, Program, compile_graph
from crossbow.compile.program import ArenaPlace
from crossbow.dataflow.graph import Graph, reported_loss, reported_measure
from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import State
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference import Reference
from crossbow.types import LabelRange, Shape, Tensor
from tests.compile.checker import Values

Numbers = NDArray[Any]


def source(
    batch: Shape, labels: Shape, *, classes: bool = True, dtype: Any = np.float64, slots: int = 2
) -> BatchSource:
    """Batches as they are: floating-point examples, and classes or values."""
    kind = np.dtype(np.int32) if classes else np.dtype(dtype)
    return BatchSource(Tensor((slots, *batch), np.dtype(dtype)), Tensor((slots, *labels), kind))


def compile_network(
    network: DataflowNode | Graph,
    batch: Shape,
    labels: Shape | None = None,
    *,
    phase: Phase = Phase.TRAIN,
    classes: bool = True,
    dtype: Any = np.float64,
    library: KernelLibrary | None = None,
    model: ModelLayout | None = None,
    label_range: LabelRange | None = None,
    statistics: ModelLayout | None = None,
    seed: int = 0,
    check_numerics: bool = False,
) -> Program:
    """The program of a network, given by its head or as a graph that was derived already."""
    graph = Dataflow(SubGraph(network)).set_phase(phase).graph if isinstance(network, DataflowNode) else network
    return compile_graph(
        graph,
        source(batch, batch[:1] if labels is None else labels, classes=classes, dtype=dtype),
        library or Reference(dtype),
        np.dtype(dtype),
        phase=phase,
        labels=label_range,
        model=model,
        statistics=statistics,
        seed=seed,
        check_numerics=check_numerics,
    )


class Execution:
    """A program with an arena, vectors and slots.

    Everything but the weights begins as NaN; the gradient vector's padding must stay as it is.
    """

    def __init__(self, program: Program, *, weights: Numbers | None = None) -> None:
        self.program = program
        model = program.model
        dtype: Any = model.dtype
        self.arena = aligned_zeros(program.plan.arena)
        self.arena[...] = 0xFF
        self.weights = model.new_vector() if weights is None else weights
        self.gradient: Numbers = np.full(model.elements, np.nan, dtype)
        self.statistics, self.observed = program.statistics.new_vector(), program.statistics.new_vector()
        program.statistics.initialise(self.statistics, 0)
        self.state = np.zeros(State.SIZE, np.int64)
        images, labels = _slots(program)
        self.images: Numbers = np.zeros(images.shape, images.dtype)
        self.labels: Numbers = np.zeros(labels.shape, labels.dtype)
        self.memory = Memory(
            self.arena,
            model,
            {
                "weights": self.weights,
                "gradient": self.gradient,
                "statistics": self.statistics,
                "statistics_next": self.observed,
            },
            {"state": self.state, "slots": self.images, "slot_labels": self.labels},
            program.statistics,
        )
        parts = program.bind(self.memory)
        self.forward_steps, self.backward_steps = parts.forward, parts.backward

    def load(
        self, images: Numbers, labels: Numbers, *, slot: int = 1, task: int = 0, examples: int | None = None
    ) -> None:
        self.images[slot], self.labels[slot] = images, labels
        self.state[State.SLOT], self.state[State.TASK] = slot, task
        self.state[State.EXAMPLES] = len(images) if examples is None else examples

    def forward(self) -> float:
        """Run the forward part; returns the loss, the sum of several (NaN where there is none)."""
        for step in self.forward_steps:
            step.call()
        found = reported_loss(self.program.graph)
        return float("nan") if found is None else float(self.output(found.name)[0])

    def backward(self) -> dict[str, Numbers]:
        """Run the backward part; returns the gradients of the variables by name, in logical shape."""
        for step in self.backward_steps:
            step.call()
        return self.program.model.export(self.gradient)

    def output(self, name: str) -> Numbers:
        (vertex,) = (v for v in self.program.graph if v.name == name)
        return self.program.output(vertex.order, self.memory)

    def measure(self) -> float:
        found = reported_measure(self.program.graph)
        assert found is not None
        return float(self.output(found.name)[0])


def run_without_sharing(execution: Execution) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Outputs of forward vertices and gradients of variables, with a new array for everything that is written."""
    program = execution.program
    names = Values(program)
    values: dict[Any, Numbers] = {}
    gradients: dict[str, Numbers] = {}
    outputs: dict[str, Numbers] = {}
    for number, step in enumerate(program.steps):
        buffers: dict[str, Numbers] = {}
        for role, place in step.places.items():
            if not isinstance(place, ArenaPlace):
                buffers[role] = place.array(execution.memory)
                if getattr(place, "vector", "") == "gradient":
                    buffers[role] = gradients[place.label] = np.full_like(buffers[role], np.nan)  # type: ignore[union-attr]
                continue
            key = names.of(step, role, number)
            if role in step.kernel.reads:
                buffers[role] = values[key]
            else:
                memory = aligned_zeros(place.tensor.nbytes)
                memory[...] = 0xFF
                buffers[role] = values[key] = place.tensor.view(memory)
                if role == "output":
                    outputs[step.operator] = values[key]
        for call in step.kernel.bind(buffers):
            call()
    return outputs, gradients


def _slots(program: Program) -> tuple[Tensor, Tensor]:
    """The slots that the program was compiled for: `execution` rebuilds what `source` made."""
    batch, labels = program.steps[0].places["input"], program.steps[0].places["labels"]
    tensors = [place.tensor for place in (batch, labels)]  # type: ignore[union-attr]
    return Tensor((2, *tensors[0].shape), tensors[0].dtype), Tensor((2, *tensors[1].shape), tensors[1].dtype)


def draw(*shape: int, seed: int = 0) -> Numbers:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def draw_labels(count: int, classes: int, seed: int = 0) -> Numbers:
    return np.random.default_rng([seed, count]).integers(0, classes, count).astype(np.int32)


def numerical_gradients(
    execution: Execution, names: Sequence[str] | None = None, step: float = 1e-6
) -> Mapping[str, Numbers]:
    """Central differences of the loss, element by element, through the program's own forward part."""
    model, weights = execution.program.model, execution.weights
    gradients = {}
    for segment in model:
        if names is not None and segment.name not in names:
            continue
        flat, result = segment.flat(weights), np.empty(segment.storage.elements)
        for index in range(flat.size):
            kept = flat[index]
            values = []
            for sign in (1, -1):
                flat[index] = kept + sign * step
                values.append(execution.forward())
            flat[index] = kept
            result[index] = (values[0] - values[1]) / (2 * step)
        gradients[segment.name] = result.reshape(segment.spec.shape)
    return gradients
