"""Element-wise activation functions."""

from __future__ import annotations

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.arithmetic import Term, affine, negated, together
from crossbow.onnx.reading.node import Node, Numbers
from crossbow.onnx.reading.table import reads
from crossbow.ops import ElementWiseOp, ReLU


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
    """max(x, −x)."""
    x = node.step()
    return node.apply(ElementWiseOp(type="max"), x, negated(node, x, "negated"))


@reads("PRelu", versions=(6, 7, 9, 16), variables=(1,))
def parametric_relu(node: Node) -> NetworkStep:
    """max(x, 0) + slope · min(x, 0), where min(x, 0) = −max(−x, 0). A single slope gives a leaky ReLU."""
    x = node.step()
    slope = Term(_slope(node, x), node.is_literal(1)) if node.is_constant(1) else None
    if slope is not None and slope.array.size == 1 and slope.array.min() >= 0:
        return node.apply(ReLU(negative_slope=slope.value), x)
    positive = node.apply(ReLU(), x, part="positive")
    negative = node.apply(ReLU(), negated(node, x, "negated"), part="negative")
    if slope is not None:
        scaled = affine(node, negative, slope, None, "slope")
    else:
        scaled = node.apply(ElementWiseOp(type="product"), *together(node, [negative, node.step(1)]), part="slope")
    return node.apply(ElementWiseOp(coefficients=(1.0, -1.0)), positive, scaled)


def _slope(node: Node, x: NetworkStep) -> Numbers:
    """Before version 7 there is one slope per channel, so its dimensions start at the second one."""
    slope = node.weights(1)
    return slope.reshape(-1, *(1,) * (len(x.shape) - 2)) if node.version < 7 and slope.ndim == 1 else slope


@reads("HardSigmoid", versions=(6, 22), attributes="alpha beta")
def hard_sigmoid(node: Node) -> NetworkStep:
    """min(max(α x + β, 0), 1). β requires an input of at least two dimensions."""
    return _hard_sigmoid(node, node.step(), node.number("alpha", 0.2), node.number("beta", 0.5))


@reads("HardSwish", versions=(14, 22))
def hard_swish(node: Node) -> NetworkStep:
    """x · min(max(x / 6 + ½, 0), 1)."""
    x = node.step()
    return node.apply(ElementWiseOp(type="product"), x, _hard_sigmoid(node, x, 1 / 6, 0.5, "gate"))


def _hard_sigmoid(node: Node, x: NetworkStep, alpha: float, beta: float, part: str = "") -> NetworkStep:
    line = affine(node, x, Term.number(alpha), Term.number(beta), "line")
    return node.apply(ReLU(mode="clipped", ceiling=1.0), line, part=part)


@reads("Swish", versions=(24,), attributes="alpha")
def swish(node: Node) -> NetworkStep:
    """x · sigmoid(α x)."""
    return node.apply(ElementWiseOp(type="product"), node.step(), _gate(node))


@reads("SwiGLU", versions=(28,), attributes="alpha")
def swiglu(node: Node) -> NetworkStep:
    """a · sigmoid(α a) · b."""
    return node.apply(ElementWiseOp(type="product"), node.step(0), _gate(node), node.step(1))


def _gate(node: Node) -> NetworkStep:
    x, alpha = node.step(), node.number("alpha", 1.0)
    if alpha != 1:
        x = node.apply(ElementWiseOp(coefficients=(alpha,)), x, part="scaled")
    return node.apply(ReLU(mode="sigmoid"), x, part="gate")
