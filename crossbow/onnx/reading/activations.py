"""Element-wise activation functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.arithmetic import Term, affine, negated, together
from crossbow.onnx.reading.node import Node, Numbers, Refused, shortest
from crossbow.onnx.reading.response import coefficient
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import GELU, ElementWiseOp, HardSwish, PReLU, ReLU, SiLU, Values
from crossbow.types import Shape


@reads("Relu", versions=(6, 13, 14))
def relu(node: Node) -> NetworkStep:
    return node.apply(ReLU(), node.step())


@reads("LeakyRelu", versions=(6, 16), attributes="alpha")
def leaky_relu(node: Node) -> NetworkStep:
    return node.apply(ReLU(negative_slope=node.number("alpha", 0.01)), node.step())


@reads("Sigmoid", versions=(6, 13))
def sigmoid(node: Node) -> NetworkStep:
    return node.apply(ReLU(mode="sigmoid"), node.step())


@reads("Tanh", versions=(6, 13))
def tanh(node: Node) -> NetworkStep:
    return node.apply(ReLU(mode="tanh"), node.step())


@reads("Abs", versions=(6, 13))
def absolute(node: Node) -> NetworkStep:
    """|x| as max(x, −x)."""
    x = node.step()
    return node.apply(ElementWiseOp(type="max"), x, negated(node, x, "negated"))


@reads("PRelu", versions=(6, 7, 9, 16), variables=(1,))
def parametric_relu(node: Node) -> NetworkStep:
    """A PReLU, if there is one slope, or one for each channel. Otherwise max(x, 0) + slope · min(x, 0), where
    min(x, 0) = −max(−x, 0). A single slope ≥ 0 that is a number in the graph gives a leaky ReLU."""
    x = node.step()
    slope = Term(_slope(node, x), node.is_literal(1)) if node.is_constant(1) else None
    if slope is not None and slope.array.size == 1 and slope.array.min() >= 0 and node.is_literal(1):
        return node.apply(ReLU(negative_slope=slope.value), x)
    if slope is not None and len(x.shape) > 1 and (found := _slopes(slope.array, x.shape)) is not None:
        multiplier = 0.0 if node.is_literal(1) else 1.0
        kernel = PReLU(found.size == 1, weight_initialiser=Values(found), weight_learning_rate_multiplier=multiplier)
        return node.apply(kernel, x)
    positive = node.apply(ReLU(), x, part="positive")
    negative = node.apply(ReLU(), negated(node, x, "negated"), part="negative")
    if slope is not None:
        scaled = affine(node, negative, slope, None, "slope")
    else:
        scaled = node.apply(ElementWiseOp(type="product"), *together(node, [negative, node.step(1)]), part="slope")
    return node.apply(ElementWiseOp(coefficients=(1.0, -1.0)), positive, scaled)


def _slopes(slope: Numbers, x: Shape) -> Numbers | None:
    """The slope of each channel, or one slope for all channels; None if the slopes have another shape."""
    if slope.size == 1:
        return slope.reshape(1)
    by_channel = slope.shape[-(len(x) - 1) :] if slope.ndim >= len(x) - 1 else ()
    return slope.reshape(-1) if slope.size == x[1] and by_channel[:1] == x[1:2] else None


def _slope(node: Node, x: NetworkStep) -> Numbers:
    """The slopes, with dimensions for broadcasting. Before version 7 there is one slope per channel, so the dimensions
    of the slopes start at the second dimension of x."""
    slope = node.weights(1)
    return slope.reshape(-1, *(1,) * (len(x.shape) - 2)) if node.version < 7 and slope.ndim == 1 else slope


@reads("HardSigmoid", versions=(6, 22), attributes="alpha beta")
def hard_sigmoid(node: Node) -> NetworkStep:
    """min(max(α x + β, 0), 1). Adding β requires an input of at least two dimensions."""
    line = affine(
        node, node.step(), Term.number(node.number("alpha", 0.2)), Term.number(node.number("beta", 0.5)), "line"
    )
    return node.apply(ReLU(mode="clipped", ceiling=1.0), line)


@reads("HardSwish", versions=(14, 22))
def hard_swish(node: Node) -> NetworkStep:
    return node.apply(HardSwish(), node.step())


@reads("Gelu", versions=(20,), attributes="approximate")
def gelu(node: Node) -> NetworkStep:
    return node.apply(GELU(approximate=node.text("approximate", "none")), node.step())


@reads("Erf", versions=(9, 13), is_form=True)
def error_function(node: Node) -> NetworkStep:
    """A GELU, which PyTorch exports before opset 20 as x · (1 + erf(x / √2)) · ½."""
    x, factor = coefficient(node.step())
    total = node.sole_consumer("Add")
    product = None if total is None else total.sole_consumer("Mul")
    half = None if product is None else product.sole_consumer("Mul")
    if total is not None and product is not None and half is not None and math.isclose(factor, 0.5**0.5, rel_tol=1e-6):
        others = [index for index in range(2) if product.proto.input[index] != total.proto.output[0]]
        one, scale = total.constant_index(), half.constant_index()
        whole = one is not None and scale is not None and len(others) == 1 and not product.is_constant(others[0])
        if whole and _number(total, one) == 1 and _number(half, scale) == 0.5 and product.step(others[0]) is x:
            for follower in (total, product, half):
                node.absorb(follower)
            return node.apply(GELU(), x)
    raise Refused("expected the error function of a GELU, x * (1 + erf(x / sqrt(2))) * 0.5. Received: another use")


def _number(node: Node, index: int | None) -> float | None:
    """The value of an input that is a constant of one number; else None."""
    array = None if index is None else node.constant(index)
    return shortest(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


@reads("Swish", versions=(24,), attributes="alpha")
def swish(node: Node) -> NetworkStep:
    """x · sigmoid(α x)."""
    if node.number("alpha", 1.0) == 1:
        return node.apply(SiLU(), node.step())
    return node.apply(ElementWiseOp(type="product"), node.step(), _gate(node))


@reads_group("SiLU")
def silu(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a SiLU: Sigmoid and Mul."""
    return nodes[-1].apply(SiLU(), nodes[0].step())


@reads("SwiGLU", versions=(28,), attributes="alpha")
def swiglu(node: Node) -> NetworkStep:
    """a · sigmoid(α a) · b."""
    return node.apply(ElementWiseOp(type="product"), node.step(0), _gate(node), node.step(1))


def _gate(node: Node) -> NetworkStep:
    x, alpha = node.step(), node.number("alpha", 1.0)
    if alpha != 1:
        x = node.apply(ElementWiseOp(coefficients=(alpha,)), x, part="scaled")
    return node.apply(ReLU(mode="sigmoid"), x, part="gate")
