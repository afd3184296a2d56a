"""Transposed convolution."""

from __future__ import annotations

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.layers import WINDOW, one_or_all, paddings
from crossbow.onnx.reading.node import Node, Refused
from crossbow.onnx.reading.table import reads
from crossbow.ops import Constant, TransposedConv, Values
from crossbow.types import Shape

ATTRIBUTES = f"{WINDOW} group output_padding output_shape"


@reads("ConvTranspose", versions=(1, 11, 22), attributes=ATTRIBUTES, constants=(1, 2))
def transposed_conv(node: Node) -> NetworkStep:
    x, weights = node.step(), node.weights(1)
    kernel, groups = weights.shape[2:], node.integer("group", 1)
    ones = (1,) * len(kernel)
    if node.integers("kernel_shape", kernel) != kernel:
        raise Refused(
            f"expected kernel_shape to be that of the weights, {kernel}. Received: {node.integers('kernel_shape')}"
        )
    stride, dilation = node.integers("strides", ones) or ones, node.integers("dilations", ones) or ones
    added = node.integers("output_padding", (0,) * len(kernel)) or (0,) * len(kernel)
    if not len(x.shape) - 2 == len(stride) == len(dilation) == len(added) == len(kernel):
        raise Refused(
            f"expected kernel, strides, dilations and output_padding for {len(x.shape) - 2} dimensions. "
            f"Received: {kernel}, {stride}, {dilation}, {added}"
        )
    whole = [
        (size - 1) * s + d * (k - 1) + 1 for size, s, d, k in zip(x.shape[2:], stride, dilation, kernel, strict=True)
    ]
    pairs, added = _cut(node, x.shape[2:], stride, whole, added)
    return node.apply(
        TransposedConv(
            number_of_outputs=weights.shape[1] * groups,
            kernel_size=one_or_all(kernel),
            stride=one_or_all(stride),
            padding=paddings(pairs),
            output_padding=one_or_all(added),
            dilation=one_or_all(dilation),
            groups=groups,
            bias=node.given(2),
            weight_initialiser=Values(weights),
            bias_initialiser=Values(node.weights(2)) if node.given(2) else Constant(),
        ),
        x,
    )


def _cut(
    node: Node, sizes: Shape, stride: Shape, whole: list[int], added: Shape
) -> tuple[list[tuple[int, int]], Shape]:
    """The numbers of elements to cut off before and after each dimension of the full output, and to add after it.

    With `output_shape` or "SAME…", the difference to the full output is divided between both sides; an output that is
    larger than the full output is extended at the end.
    """
    mode, axes = node.text("auto_pad", "NOTSET"), len(whole)
    if mode not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Refused(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER. Received: {mode}")
    wanted = node.integers("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = tuple(size * s for size, s in zip(sizes, stride, strict=True))
    if wanted is None:
        pads = (node.integers("pads") if mode in ("NOTSET", "") else None) or (0,) * (2 * axes)
        if len(pads) != 2 * axes or min(pads) < 0:
            raise Refused(f"expected pads ≥ 0, two for each of {axes} dimensions. Received: {pads}")
        return list(zip(pads[:axes], pads[axes:], strict=True)), added
    if len(wanted) != axes:
        raise Refused(f"expected an output_shape of {axes} dimensions. Received: {wanted}")
    pairs, more = [], []
    for size, full, end in zip(wanted, whole, added, strict=True):
        total = full + end - size
        less = max(total, 0) // 2
        pairs.append((less, max(total, 0) - less) if mode == "SAME_UPPER" else (max(total, 0) - less, less))
        more.append(end + max(-total, 0))
    return pairs, tuple(more)
