"""Trained slopes of a rectifier, by channels."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import SlopeBackward, SlopeForward


@CUDA.kernel(SlopeForward)
def forward(request: SlopeForward) -> PreparedKernel:
    channels = Channels(request.x, 1, request.weights.shape)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = buffers["input0"], buffers["weights"], buffers["output"]
        return (channels.each("channels", "slope_forward", *arguments),)

    return request.prepared("cuda", bind)


@CUDA.kernel(SlopeBackward)
def backward(request: SlopeBackward) -> PreparedKernel:
    channels, dx = Channels(request.x, 1, request.weights.shape), request.dx

    def bind(buffers: Buffers) -> Sequence[Call]:
        x, dy, sums = buffers["input0"], buffers["output_gradient"], buffers["workspace"]
        calls: list[Call] = [
            channels.each("channels", "slope_products", x, dy, sums, sums=True),
            channels.totals("channels", "scaling_gradients", sums, buffers["weights_gradient"], None),
        ]
        if dx is not None:
            arguments = x, dy, buffers["weights"], buffers["input_gradient"]
            calls.append(channels.each("channels", "slope_backward", *arguments))
        return calls

    return request.prepared("cuda", bind, workspace=channels.workspace)
