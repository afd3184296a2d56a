"""Pooling over one, two or three spatial axes, and its gradients: kernels of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, Argument, CudaKernel, Launch, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import ConfigurationError, Layout, Tensor

AXES = 3
"""Maximum number of spatial axes."""
TOGETHER = 4
"""Number of outer indices that a thread takes, as in sources/pooling.cu."""
MOST_ELEMENTS = 2**30
"""Maximum number of elements of a call's input or output: indices have 32 bits. Larger batches take several calls."""
LARGE = 256
"""Minimum number of elements of a window that a whole block works on, if the window is contiguous …"""
LARGE_STRIDED = 4096
"""… and if its elements are strided, and neighbouring outputs' elements adjacent."""
BYTES = 256
"""Maximum number of elements of a window for which one byte is kept per output; beyond it, four are kept."""
_MOST_BLOCKS_OF_LARGE = 2**16


@CUDA.kernel(PoolingForward)
def forward(request: PoolingForward) -> PreparedKernel:
    x, y, geometry, seed, key = request.x, request.y, request.geometry, request.seed, request.key
    method = geometry.method
    training, random, windows = request.keeps, request.draws, _Windows(x, y, geometry)
    variant = "expected" if method == "stochastic" and not training else method
    # The order of stochastic pooling's sums is fixed.
    large = method != "stochastic" and math.prod(geometry.kernel) >= (LARGE_STRIDED if windows.inner > 1 else LARGE)
    kernel = CudaKernel("pooling", f"pooling_{variant}{'_large' if large else ''}", x.dtype)
    numbers = (np.uint32(key & 0xFFFFFFFF), np.uint64(seed & (2**64 - 1))) if random else ()

    def bind(buffers: Buffers) -> Sequence[Call]:
        def call(part: slice) -> Launch:
            arguments: list[Argument] = [buffers["input0"][part]]
            if random:
                arguments.append(buffers["state"])
            arguments.append(buffers["output"][part])
            if method == "max" or random:
                arguments.append(windows.kept(buffers, part) if training else None)
            arguments += [windows.structure(part), *numbers]
            if large:
                outputs = (part.stop - part.start) * (y.elements // y.shape[0])
                return kernel.blocks(min(outputs, _MOST_BLOCKS_OF_LARGE), *arguments, shared=2 * 8 * BLOCK)
            return kernel.each(windows.threads(y, part), *arguments)

        return windows.calls(call)

    kept = windows.kept_bytes * y.elements if training else 0
    return request.prepared("cuda", bind, kept=kept)


@CUDA.kernel(PoolingBackward)
def backward(request: PoolingBackward) -> PreparedKernel:
    dy, dx, geometry = request.dy, request.dx, request.geometry
    windows, average = _Windows(dx, dy, geometry), geometry.method == "average"
    kernel = CudaKernel("pooling", "pooling_average_backward" if average else "pooling_picked_backward", dx.dtype)

    def bind(buffers: Buffers) -> Sequence[Call]:
        def call(part: slice) -> Launch:
            arguments: list[Argument] = [buffers["output_gradient"][part]]
            if not average:
                y = buffers["output"][part] if request.relu else None
                arguments += [windows.kept(buffers, part), y]
            arguments += [buffers["input_gradient"][part], windows.structure(part)]
            return kernel.each(windows.threads(dx, part), *arguments)

        return windows.calls(call)

    return request.prepared("cuda", bind)


class _Windows:
    """The geometry of input, output and windows for the kernels of one pooling."""

    def __init__(self, x: Tensor, y: Tensor, geometry: PoolingGeometry) -> None:
        g = geometry
        if len(g.kernel) > AXES:
            raise ConfigurationError(f"Cuda: pooling has at most {AXES} spatial axes. Received: kernel={g.kernel}")
        if x.layout is not y.layout:
            received = f"{x.layout.value} and {y.layout.value}"
            raise ConfigurationError(f"Cuda: pooling has one layout for input and output. Received: {received}")
        self.examples = x.shape[0]
        self.inner, self.outer = (x.shape[1], 1) if x.layout is Layout.CHANNELS_LAST else (1, x.shape[1])
        """Number of elements between neighbours on the last axis, and number of outer indices of an example."""
        self.kept_bytes = 1 if math.prod(g.kernel) <= BYTES else 4
        """Bytes kept for each output."""
        self._kept = self.kept_bytes * (y.elements // self.examples)  # for an example
        self._elements = max(x.elements, y.elements) // self.examples  # of an example
        if self._elements >= MOST_ELEMENTS:
            raise ConfigurationError(
                f"Cuda: pooling has fewer than 2³⁰ elements in an example. Received: {x.shape} → {y.shape}"
            )
        missing = _axis(1, 1, 1, 1, 1, (0, 0), True) * (AXES - len(g.kernel))
        self._numbers = [math.prod(g.kernel), *_divisor(self.inner), *missing]
        for size, windows, k, s, d, padding in zip(
            x.shape[2:], y.shape[2:], g.kernel, g.stride, g.dilation, g.padding, strict=True
        ):
            self._numbers += _axis(size, windows, k, s, d, padding, g.count_padding)

    def calls(self, call: Callable[[slice], Launch]) -> list[Call]:
        """Return a call for each part of the batch."""
        most = (MOST_ELEMENTS - 1) // self._elements
        starts = range(0, self.examples, most)
        return [call(slice(start, min(start + most, self.examples))) for start in starts]

    def threads(self, tensor: Tensor, part: slice) -> int:
        """Number of threads for a part of the batch of a tensor."""
        outer: int = (part.stop - part.start) * self.outer
        return -(-outer // TOGETHER) * (tensor.elements // (self.examples * self.outer))

    def structure(self, part: slice) -> Structure:
        """`Pooling` of sources/pooling.cu."""
        outer = (part.stop - part.start) * self.outer
        return Structure(outer, self.inner, part.start * self.outer, *self._numbers)

    def kept(self, buffers: Buffers, part: slice) -> Argument:
        """The kept values of a part of the batch."""
        return buffers["kept"][part.start * self._kept : part.stop * self._kept]


def _axis(
    size: int, windows: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int], count_padding: bool
) -> list[int]:
    """`Axis` of sources/pooling.cu."""
    before, after = padding
    counted = (-before, size + after) if count_padding else (0, size)
    divisors = [number for value in (size, windows, kernel, stride, dilation) for number in _divisor(value)]
    return [size, windows, kernel, stride, before, dilation, *counted, *divisors]


def _divisor(value: int) -> tuple[int, int]:
    """`Divisor` of sources/pooling.cu: n / value is n · multiplier / 2^shift, rounded down, for 0 ≤ n < 2³¹.

    The multiplier exceeds 2^shift / value by less than 1, so that the product is too large by less than
    n / 2^shift < 1 / value, which is the least that a quotient is from the next integer.
    """
    shift = 31 + (value - 1).bit_length()
    return -(-(2**shift) // value), shift
