"""Small networks, and graphs as names, for the tests of graphs and programs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar

from crossbow import DataflowNode, Operator
from crossbow.conf import configuration
from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops import (
    Accuracy,
    Conv,
    Dropout,
    ElementWiseOp,
    Gaussian,
    Gradient,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
    VariableSpec,
)
from crossbow.types import Array, Shape


def node(name: str, kernel: Kernel | Gradient, peer: DataflowNode | None = None) -> DataflowNode:
    """A node with an operator of its own; with `peer`, a gradient operator wired by hand."""
    operator = Operator(name, kernel)
    return DataflowNode(operator if peer is None else operator.set_peer(peer.operator))


def chain(*nodes: DataflowNode) -> DataflowNode:
    """Connect each node to the next; returns the first."""
    for source, target in itertools.pairwise(nodes):
        source.connect_to(target)
    return nodes[0]


def wiring(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Vertex to inputs, by name, in execution order. Names must differ."""
    names = [vertex.name for vertex in graph]
    assert len(set(names)) == len(names), names
    return {v.name: tuple("batch" if i == BATCH else graph[i].name for i in v.inputs) for v in graph}


def peers(graph: Graph) -> dict[str, str]:
    """Gradient vertex to the vertex whose gradient it is, by name."""
    return {vertex.name: graph[vertex.peer].name for vertex in graph if vertex.peer is not None}


def inner_product(name: str = "ip", outputs: int = 3, *, bias: bool = True, std: float = 0.5) -> DataflowNode:
    gaussian = Gaussian(std=std)
    more = {"bias_initialiser": gaussian} if bias else {}
    return node(name, InnerProduct(number_of_outputs=outputs, bias=bias, weight_initialiser=gaussian, **more))


def convolution(name: str, outputs: int, kernel_size: int, padding: int = 0) -> DataflowNode:
    gaussian = Gaussian(std=0.5)
    conv = Conv(
        number_of_outputs=outputs,
        kernel_size=kernel_size,
        padding=padding,
        weight_initialiser=gaussian,
        bias_initialiser=gaussian,
    )
    return node(name, conv)


def perceptron() -> DataflowNode:
    """batch → ip1 → relu → ip2 → softmax → loss."""
    return chain(
        inner_product("ip1", 4),
        node("relu", ReLU()),
        inner_product("ip2", 3),
        node("softmax", SoftMax()),
        node("loss", SoftMaxLoss()),
    )


def branched() -> DataflowNode:
    """Fan-out, two branches, a weighted sum, both poolings, dropout, and an accuracy, for (N, 2, 6, 6) and 3 classes.

    ::

        batch → conv1 → tanh ─→ conv2 → relu ──────→ sum → dropout → ip → softmax ─→ loss
                          ├───→ conv3 → max ↗ (×½)    ↑                      └─────→ accuracy
                          └───→ average ──────────────┘ (×−2)
    """
    conv1, tanh = convolution("conv1", 3, 3, padding=1), node("tanh", ReLU(mode="tanh"))
    conv2, relu = convolution("conv2", 3, 3, padding=1), node("relu", ReLU(negative_slope=0.1))
    conv3 = convolution("conv3", 3, 1)
    pool = {"kernel_size": 3, "stride": 1, "padding": 1}
    largest, average = node("max", Pool(**pool)), node("average", Pool(method="average", **pool))
    total = node("sum", ElementWiseOp(coefficients=(1.0, 0.5, -2.0)))
    softmax = node("softmax", SoftMax())
    chain(conv1, tanh, conv2, relu, total)
    chain(tanh, conv3, largest, total)
    chain(tanh, average, total)
    chain(total, node("dropout", Dropout(ratio=0.4)), inner_product(std=0.05), softmax, node("loss", SoftMaxLoss()))
    softmax.connect_to(node("accuracy", Accuracy()))
    return conv1


@configuration
class Square(Kernel):
    """y = x²; without a gradient when told so."""

    differentiable: bool = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: object) -> Array:
        return inputs[0] * inputs[0]

    def gradient(self, input: int = 0) -> Gradient | None:
        return super().gradient(input) if self.differentiable else None

    def backward(  # type: ignore[no-untyped-def]
        self, xp: ModuleType, inputs, output, variables, output_gradient
    ):
        return [2 * inputs[0] * output_gradient], {}


@configuration
class Gate(Kernel):
    """y = weights · x₀ · x₁, with a weight for each feature."""

    number_of_inputs: ClassVar[int | None] = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("weights", inputs[0][1:], Gaussian(std=0.5)),)

    def forward(self, xp: ModuleType, inputs, variables):  # type: ignore[no-untyped-def]
        return variables["weights"] * inputs[0] * inputs[1]

    def backward(  # type: ignore[no-untyped-def]
        self, xp: ModuleType, inputs, output, variables, output_gradient
    ):
        scaled, weights = output_gradient * inputs[0] * inputs[1], variables["weights"]
        return [output_gradient * weights * x for x in inputs[::-1]], {"weights": scaled.sum(axis=0)}


@configuration
class PenalisedLoss(SoftMaxLoss):
    """Cross-entropy of input 0 plus ½ Σ q² / N of input 1: a loss with two inputs, one of them past its SoftMax."""

    number_of_inputs: ClassVar[int | None] = 2

    def prepare(self, site):  # type: ignore[no-untyped-def]
        return Kernel.prepare(self, site)

    def gradient(self, input: int = 0) -> Gradient | None:
        return Kernel.gradient(self, input)

    def forward(self, xp: ModuleType, inputs, variables):  # type: ignore[no-untyped-def]
        p, q, labels = inputs
        examples = len(labels)
        return -xp.log(p[xp.arange(examples), labels]).mean() + 0.5 * (q * q).sum() / examples

    def backward(  # type: ignore[no-untyped-def]
        self, xp: ModuleType, inputs, output, variables, output_gradient
    ):
        p, q, labels = inputs
        logits = p.copy()
        logits[xp.arange(len(labels)), labels] -= 1
        return [logits / len(labels), q / len(labels)], {}
