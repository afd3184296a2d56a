"""Helpers to build the zoo's graphs: named operators, and the common end of classifiers."""

from __future__ import annotations

from crossbow import MSRA, Dataflow, DataflowNode, Gaussian, Operator, Phase, SubGraph
from crossbow.conf import is_integer, shown
from crossbow.ops import (
    GELU,
    Accuracy,
    BatchNorm,
    Conv,
    ElementWiseOp,
    InnerProduct,
    LayerNorm,
    ReLU,
    Scale,
    SelfAttention,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.ops.kernel import Kernel
from crossbow.types import ConfigurationError

NORM, RELU = BatchNorm(), ReLU()
TRANSFORMER_DEVIATION = 0.02
"""Standard deviation of a transformer's initial weights, as in GPT-2."""


def add(name: str, kernel: Kernel, *inputs: DataflowNode) -> DataflowNode:
    """A new node that reads the given nodes, in this order; without inputs, it reads the batch."""
    node = DataflowNode(Operator(name, kernel))
    for source in inputs:
        source.connect_to(node)
    return node


def normalised_convolution(
    name: str,
    convolution: Conv,
    *inputs: DataflowNode,
    norm: BatchNorm = NORM,
    activation: ReLU | None = RELU,
) -> DataflowNode:
    """A convolution, a batch normalisation and, unless it is None, an activation. Returns the last node."""
    y = add(f"{name}-norm", norm, add(name, convolution, *inputs))
    return y if activation is None else add(f"{name}-relu", activation, y)


def same_convolution(
    name: str,
    outputs: int,
    size: int,
    *inputs: DataflowNode,
    stride: int = 1,
    groups: int = 1,
    activation: ReLU | None = RELU,
) -> DataflowNode:
    """A `normalised_convolution` whose output has the size of the image divided by the stride. Weights are initialised
    with MSRA."""
    kernel = Conv(
        number_of_outputs=outputs,
        kernel_size=size,
        stride=stride,
        padding=size // 2,
        groups=groups,
        bias=False,
        weight_initialiser=MSRA(),
    )
    return normalised_convolution(name, kernel, *inputs, activation=activation)


def check_sizes(**sizes: int) -> None:
    """Raise ConfigurationError unless all sizes are integers ≥ 1, and `heads` divides `width`."""
    for name, value in sizes.items():
        if not is_integer(value) or value < 1:
            raise ConfigurationError(f"{name} must be an integer ≥ 1. Received: {shown(value)}")
    if sizes["width"] % sizes["heads"]:
        raise ConfigurationError(
            f"width must be a multiple of heads. Received: width {sizes['width']}, heads {sizes['heads']}"
        )


def positions(x: DataflowNode) -> DataflowNode:
    """Add a trained vector to each position of a sequence (N, T, D). The factors of the `Scale` stay 1."""
    return add(
        "positions",
        Scale(
            axis=1,
            number_of_axes=2,
            bias=True,
            weight_learning_rate_multiplier=0.0,
            bias_initialiser=Gaussian(std=TRANSFORMER_DEVIATION),
        ),
        x,
    )


def transformer_block(name: str, width: int, heads: int, x: DataflowNode, *, causal: bool = False) -> DataflowNode:
    """A layer of a transformer, with x and y: (N, T, width). It adds an attention to x, and then two inner products
    with a GELU in between. Each of the two parts begins with a normalisation, as in GPT-2. Returns the last node."""
    weights = Gaussian(std=TRANSFORMER_DEVIATION)

    def projection(part: str, outputs: int, y: DataflowNode) -> DataflowNode:
        kernel = InnerProduct(number_of_outputs=outputs, axis=-1, weight_initialiser=weights)
        return add(f"{name}-{part}", kernel, y)

    y = add(f"{name}-norm1", LayerNorm(), x)
    y = projection("qkv", 3 * width, y)
    y = add(f"{name}-attention", SelfAttention(heads, causal=causal), y)
    x = add(f"{name}-sum1", ElementWiseOp(), x, projection("out", width, y))
    y = add(f"{name}-norm2", LayerNorm(), x)
    y = add(f"{name}-gelu", GELU(approximate="tanh"), projection("up", 4 * width, y))
    return add(f"{name}-sum2", ElementWiseOp(), x, projection("down", width, y))


def head_of(node: DataflowNode) -> DataflowNode:
    """The first node of a chain that ends with this node."""
    while node.previous:
        (node,) = node.previous
    return node


def classifier(head: DataflowNode, logits: DataflowNode) -> Dataflow:
    """The training dataflow: a softmax of the logits (N, classes), the loss, and the accuracy."""
    softmax = add("softmax", SoftMax(), logits)
    add("loss", SoftMaxLoss(), softmax)
    add("accuracy", Accuracy(), softmax)
    return Dataflow(SubGraph(head)).set_phase(Phase.TRAIN)


def auxiliary_classifier(name: str, logits: DataflowNode, weight: float) -> None:
    """A softmax of the logits (N, classes) of an auxiliary classifier, and its loss, for training only."""
    softmax = add(f"{name}-softmax", SoftMax(), logits)
    add(f"{name}-loss", SoftMaxLoss(weight=weight, auxiliary=True), softmax)
