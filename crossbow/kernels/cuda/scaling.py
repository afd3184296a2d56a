"""Factors and offsets that lie along some axes of a tensor: one pass over memory, and one more for the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.interface import Buffers, Call, PreparedKernel, Variable
from crossbow.types import Tensor


def forward(x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, axis: int) -> PreparedKernel:
    """input0, weights[, bias] → output; may be in place."""
    channels, reads = Channels(x, axis, weights.shape), ("input0", "weights") + (() if bias is None else ("bias",))

    def bind(buffers: Buffers) -> Sequence[Call]:
        offsets = None if bias is None else buffers["bias"]
        return (channels.each("scaling_forward", buffers["input0"], buffers["weights"], offsets, buffers["output"]),)

    return PreparedKernel("scaling_forward cuda", reads, ("output",), bind, in_place=("input0", "output"))


def backward(
    x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, dx: Tensor | None, axis: int
) -> PreparedKernel:
    """input0, output_gradient, weights → weights_gradient[, bias_gradient][, input_gradient]; may be in place on
    output_gradient."""
    channels, writes = Channels(x, axis, weights.shape), ["weights_gradient"]
    if bias is not None:
        writes.append("bias_gradient")
    if dx is not None:
        writes.append("input_gradient")

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums, dy = buffers["workspace"], buffers["output_gradient"]
        gradients = buffers["weights_gradient"], None if bias is None else buffers["bias_gradient"]
        calls: list[Call] = [
            channels.each("scaling_products", buffers["input0"], dy, sums, sums=True),
            channels.total("channel_gradients", sums, *gradients),
        ]
        if dx is not None:  # last: it may lie where the output gradient does
            calls.append(channels.each("scaling_forward", dy, buffers["weights"], None, buffers["input_gradient"]))
        return calls

    return PreparedKernel(
        "scaling_backward cuda",
        ("input0", "output_gradient", "weights"),
        tuple(writes),
        bind,
        workspace=channels.workspace,
        in_place=None if dx is None else ("output_gradient", "input_gradient"),
    )
