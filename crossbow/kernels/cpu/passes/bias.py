"""A bias along the channels, and its gradient, for operators whose own kernels add no bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass, prepared_pass
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import BiasBackward, BiasForward
from crossbow.kernels.strides import channels_of


@PASSES.kernel(BiasForward)
def forward(request: BiasForward) -> PreparedKernel:
    outer, channels, inner = channels_of(request.y)
    return prepared_pass(request, add_to_channels, y="output", bias="bias", outer=outer, channels=channels, inner=inner)


@PASSES.kernel(BiasBackward)
def backward(request: BiasBackward) -> PreparedKernel:
    outer, channels, inner = channels_of(request.dy)
    if inner == 1:
        steps = Steps(request)
        add_bias_gradient(steps, outer, channels)
        return steps.prepared()
    return prepared_pass(
        request,
        sum_of_channels,
        dy="output_gradient",
        sums="bias_gradient",
        outer=outer,
        channels=channels,
        inner=inner,
    )


@native_pass(Arguments(y=Address, bias=Address, outer=int, channels=int, inner=int))
def add_to_channels(block: Any) -> int:
    y, bias, channels, inner = float32_at(block.y), float32_at(block.bias), block.channels, block.inner
    for row in range(block.outer):
        first = row * channels * inner
        if inner == 1:
            for channel in range(channels):
                y[first + channel] += bias[channel]
            continue
        for channel in range(channels):
            for index in range(first + channel * inner, first + (channel + 1) * inner):
                y[index] += bias[channel]
    return 0


@native_pass(Arguments(dy=Address, sums=Address, outer=int, channels=int, inner=int))
def sum_of_channels(block: Any) -> int:
    dy, sums, channels, inner = float32_at(block.dy), float32_at(block.sums), block.channels, block.inner
    for channel in range(channels):
        total = 0.0
        for row in range(block.outer):
            first = (row * channels + channel) * inner
            for index in range(first, first + inner):
                total += np.float64(dy[index])
        sums[channel] = np.float32(total)
    return 0
