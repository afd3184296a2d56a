"""Factors and offsets along some axes of a tensor: one pass over memory, and another one for the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cuda.channels import Channels
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ScalingBackward, ScalingForward


@CUDA.kernel(ScalingForward)
def forward(request: ScalingForward) -> PreparedKernel:
    x, weights, bias, axis = request.x, request.weights, request.bias, request.axis
    channels = Channels(x, axis, weights.shape)

    def bind(buffers: Buffers) -> Sequence[Call]:
        offsets = None if bias is None else buffers["bias"]
        arguments = buffers["input0"], buffers["weights"], offsets, buffers["output"]
        return (channels.each("channels", "scaling_forward", *arguments),)

    return request.prepared("cuda", bind)


@CUDA.kernel(ScalingBackward)
def backward(request: ScalingBackward) -> PreparedKernel:
    x, weights, bias, dx, axis = request.x, request.weights, request.bias, request.dx, request.axis
    channels = Channels(x, axis, weights.shape)

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums, dy = buffers["workspace"], buffers["output_gradient"]
        gradients = buffers["weights_gradient"], None if bias is None else buffers["bias_gradient"]
        calls: list[Call] = [
            channels.each("channels", "scaling_products", buffers["input0"], dy, sums, sums=True),
            channels.totals("channels", "scaling_gradients", sums, *gradients),
        ]
        if dx is not None:  # last: it may share memory with the output gradient
            scaled = dy, buffers["weights"], None, buffers["input_gradient"]
            calls.append(channels.each("channels", "scaling_forward", *scaled))
        return calls

    return request.prepared("cuda", bind, workspace=channels.workspace)
