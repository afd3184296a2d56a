"""Powers, and local response normalisation as exported by PyTorch: squares, padded, pooled over channels, to a
power."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import Border, Node, Refused, shortest
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import LRN, ElementWiseOp, Pad, Pool, Reshape, Scale, Values

LARGEST_EXPONENT = 8
"""Largest exponent of a power that is read as a product."""


@reads("Pow", versions=(1, 7, 12, 13, 15), constants=(1,), is_form=True)
def power(node: Node) -> NetworkStep:
    """A product if the exponent is a small integer; with a following Div, the denominator of an LRN."""
    x, exponents = node.step(), node.constant(1)
    if exponents is None or exponents.size != 1:
        raise Refused(f"expected one exponent. Received: {None if exponents is None else exponents.shape}")
    exponent = node.single(1, 1.0)
    if exponent in range(1, LARGEST_EXPONENT + 1):
        count = int(exponent)
        return x if count == 1 else node.apply(ElementWiseOp(type="product"), *[x] * count)
    quotient = node.sole_consumer("Div")
    if quotient is not None and quotient.proto.input[1] == node.proto.output[0] and not quotient.is_constant(0):
        dividend = quotient.step(0)
        kernel = _response(x, dividend, exponent)
        if kernel is not None:
            node.absorb(quotient)
            return node.apply(kernel, dividend)
    raise Refused(
        f"expected an exponent from 1 to {LARGEST_EXPONENT}, or the denominator of a LocalResponseNorm. "
        f"Received: {exponent:g}"
    )


def _response(strength: NetworkStep, x: NetworkStep, beta: float) -> LRN | None:
    """The LRN of x whose denominator is `strength` to the power β, if `strength` is κ + α · (the mean of the squares of
    x over neighbouring channels); otherwise None."""
    scaled, kappa = _summand(strength)
    mean, alpha = coefficient(scaled)
    pooled = _unshaped(mean)
    squares = None if pooled is None else _window(pooled, x.shape[1])
    if squares is None or kappa is None or strength.shape != x.shape:
        return None
    source, before, after = squares
    if not isinstance(source.kernel, ElementWiseOp) or source.kernel.type != "product":
        return None
    if len(source.inputs) != 2 or any(step is not x for step in source.inputs) or not 0 <= before - after <= 1:
        return None
    size, side = before + after + 1, "before" if before > after else "after"
    return LRN(size=size, alpha=alpha, beta=beta, kappa=kappa, longer_side=side)


def _summand(step: NetworkStep) -> tuple[NetworkStep, float | None]:
    """The input of an addition of one number, and that number."""
    kernel = step.kernel
    if isinstance(kernel, Scale) and isinstance(kernel.weight_initialiser, Values):
        weights, bias = kernel.weight_initialiser.array, kernel.bias_initialiser
        if isinstance(bias, Values) and (weights == 1).all() and (bias.array == bias.array.flat[0]).all():
            return step.inputs[0], shortest(bias.array.flat[0])
    return step, None


def coefficient(step: NetworkStep) -> tuple[NetworkStep, float]:
    """The input of a multiplication by one number, and that number. Exporters may omit a multiplication by 1."""
    kernel = step.kernel
    if isinstance(kernel, ElementWiseOp) and kernel.type == "sum" and len(step.inputs) == 1:
        return step.inputs[0], float(kernel.factors(1)[0])
    return step, 1.0


def _unshaped(step: NetworkStep) -> NetworkStep | None:
    """The step before the changes of shape that lead to this step."""
    while isinstance(step.kernel, Reshape):
        (step,) = step.inputs
    return step


def _window(pooled: NetworkStep, channels: int) -> tuple[NetworkStep, int, int] | None:
    """The input of a mean over channels, and the extent of its window before and after the element; None if the step is
    not such a mean. The input has the shape (N, 1, C, …), and is padded along the channels unless the window is one
    channel."""
    pool = pooled.kernel
    if not isinstance(pool, Pool) or pool.method != "average" or pool.global_pooling or not pool.count_padding:
        return None
    (image,) = pooled.inputs
    geometry = pool.geometry(image.shape)
    length, *others = geometry.kernel
    border: Border = ((0, 0),) * (len(image.shape) - 1)
    if isinstance(image.kernel, Pad) and not image.kernel.value:
        border = image.kernel.padding
        (image,) = image.inputs
    (before, after), rest = border[1], (border[0], *border[2:])
    if any(map(any, (*rest, *geometry.padding))) or {*others, *geometry.stride} != {1}:
        return None
    if before + after + 1 != length or image.shape[1:3] != (1, channels):
        return None
    source = _unshaped(image)
    return None if source is None else (source, before, after)


@reads_group("LRN")
def lrn(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for an LRN within the channel, or for an even window that is longer before the
    element, as in PyTorch."""
    found = {node.proto.op_type: node for node in nodes}
    border = found["AveragePool"].integers("pads") or (0, 0)
    kernel = LRN(
        size=(found["AveragePool"].integers("kernel_shape") or (0,))[0],
        alpha=next(node.single(1, 0.0) for node in nodes if node.proto.op_type == "Mul" and node.is_constant(1)),
        beta=found["Pow"].single(1, 0.0),
        kappa=found["Add"].single(1, 0.0),
        region="across_channels" if "Unsqueeze" in found else "within_channel",
        longer_side="before" if border[0] > border[len(border) // 2] else "after",
    )
    return nodes[-1].apply(kernel, nodes[0].step())
