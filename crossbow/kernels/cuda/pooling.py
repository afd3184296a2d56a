"""Pooling over one, two or three spatial axes, and its gradients, by our own kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, PACK, Argument, CudaKernel, Launch, Structure, power_of_two
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Array, ConfigurationError, Layout, Tensor, address

AXES = 3
"""Maximum number of spatial axes."""
TOGETHER = 4
"""Minimum number of elements of a thread; more if they fit in `PACK` bytes, as in sources/pooling.cuh."""
MOST_ELEMENTS = 2**30
"""Maximum number of elements of a call's input or output: indices have 32 bits. Larger batches take several calls."""
LARGE = 256
"""Minimum number of elements of a window that a whole block processes, if the window is contiguous …"""
LARGE_STRIDED = 4096
"""… and if its elements are strided, and the elements of neighbouring outputs are adjacent."""
BYTES = 256
"""Maximum number of elements of a window for which one byte is kept per output; beyond it, four are kept."""
_MOST_BLOCKS_OF_LARGE = 2**16
COLUMNS = 32
"""Number of adjacent outputs of a block if whole channels-last inputs are the windows."""
LANES = 32
"""Minimum number of threads that share the rows of such a window …"""
ROWS_OF_A_LANE = 4
"""… and number of rows of a thread beyond which more threads share them."""


@CUDA.kernel(PoolingForward)
def forward(request: PoolingForward) -> PreparedKernel:
    x, y, geometry, seed, key = request.x, request.y, request.geometry, request.seed, request.key
    method = geometry.method
    if method == "average" and _is_whole(x, y, geometry):
        return _average_whole(request)
    training, random, windows = request.keeps, request.draws, _Windows(x, y, geometry)
    variant = "expected" if method == "stochastic" and not training else method
    # The order of stochastic pooling's sums is fixed.
    large = method != "stochastic" and math.prod(geometry.kernel) >= (LARGE_STRIDED if windows.inner > 1 else LARGE)
    kernel = CudaKernel(f"{method}_pooling", f"pooling_{variant}{'_large' if large else ''}", x.dtype)
    numbers = (np.uint32(key & 0xFFFFFFFF), np.uint64(seed & (2**64 - 1))) if random else ()

    def bind(buffers: Buffers) -> Sequence[Call]:
        def call(part: slice) -> Launch:
            source, target = buffers["input0"][part], buffers["output"][part]
            arguments: list[Argument] = [source, *([buffers["state"]] if random else []), target]
            if method == "max" or random:
                arguments.append(windows.kept(buffers, part) if training else None)
            if large:
                outputs = (part.stop - part.start) * (y.elements // y.shape[0])
                arguments.append(windows.structure(part, adjacent=False))
                return kernel.blocks(min(outputs, _MOST_BLOCKS_OF_LARGE), *arguments, shared=2 * 8 * BLOCK)
            adjacent = windows.are_adjacent(source, target)
            arguments += [windows.structure(part, adjacent=adjacent), *numbers]
            return kernel.each(windows.threads(y, part, adjacent=adjacent), *arguments)

        return windows.calls(call)

    kept = windows.kept_bytes * y.elements if training else 0
    return request.prepared("cuda", bind, kept=kept)


@CUDA.kernel(PoolingBackward)
def backward(request: PoolingBackward) -> PreparedKernel:
    dy, dx, geometry = request.dy, request.dx, request.geometry
    windows, average = _Windows(dx, dy, geometry), geometry.method == "average"
    # The gradients of max and stochastic pooling differ in nothing.
    name = ("average_pooling", "pooling_average_backward") if average else ("max_pooling", "pooling_picked_backward")
    kernel = CudaKernel(*name, dx.dtype)

    def bind(buffers: Buffers) -> Sequence[Call]:
        def call(part: slice) -> Launch:
            given, target = buffers["output_gradient"][part], buffers["input_gradient"][part]
            y = buffers["output"][part] if request.relu else None
            adjacent = windows.are_adjacent(given, target, y)
            picked = () if average else (windows.kept(buffers, part), y)
            arguments = given, *picked, target, windows.structure(part, adjacent=adjacent)
            return kernel.each(windows.threads(dx, part, adjacent=adjacent), *arguments)

        return windows.calls(call)

    return request.prepared("cuda", bind)


def _is_whole(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> bool:
    """Whether the whole input of each output is its window."""
    covered = geometry.kernel == geometry.extent == x.shape[2:]  # a dilated window leaves elements out
    return covered and y.elements == math.prod(x.shape[:2]) and not any(map(any, geometry.padding))


def _average_whole(request: PoolingForward) -> PreparedKernel:
    x, y = request.x, request.y
    rows, columns = math.prod(x.shape[2:]), x.shape[1] if x.layout is Layout.CHANNELS_LAST else 1
    lanes = min(max(power_of_two(-(-rows // ROWS_OF_A_LANE)), LANES), BLOCK)
    width = min(COLUMNS, power_of_two(columns)) if columns > 1 else BLOCK // lanes
    numbers = (np.int64(y.elements), np.int64(rows), np.int64(columns), np.int64(width))
    kernel, blocks = CudaKernel("average_pooling", "pooling_average_whole", x.dtype), -(-y.elements // width)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments = buffers["input0"], buffers["output"], *numbers
        return (kernel.blocks(min(blocks, _MOST_BLOCKS_OF_LARGE), *arguments, shared=8 * BLOCK),)

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
        self.together = max(TOGETHER, PACK // x.dtype.itemsize)
        self.kept_bytes = 1 if math.prod(g.kernel) <= BYTES else 4
        """Bytes kept for each output."""
        self._kept = self.kept_bytes * (y.elements // self.examples)  # bytes of an example
        self._elements = max(x.elements, y.elements) // self.examples  # elements of an example
        if self._elements >= MOST_ELEMENTS:
            raise ConfigurationError(
                f"Cuda: pooling has fewer than 2³⁰ elements in an example. Received: {x.shape} → {y.shape}"
            )
        missing = _axis(1, 1, 1, 1, 1, (0, 0), True) * (AXES - len(g.kernel))
        self._window, self._axes = math.prod(g.kernel), missing
        for size, windows, k, s, d, padding in zip(
            x.shape[2:], y.shape[2:], g.kernel, g.stride, g.dilation, g.padding, strict=True
        ):
            self._axes += _axis(size, windows, k, s, d, padding, g.count_padding)

    def calls(self, call: Callable[[slice], Launch]) -> list[Call]:
        """Return a call for each part of the batch."""
        most = (MOST_ELEMENTS - 1) // self._elements
        starts = range(0, self.examples, most)
        return [call(slice(start, min(start + most, self.examples))) for start in starts]

    def are_adjacent(self, *arrays: Array | None) -> bool:
        """Whether a thread takes adjacent elements of these arrays."""
        whole = self.inner % self.together == 0
        return whole and all(address(array) % PACK == 0 for array in arrays if array is not None)

    def threads(self, tensor: Tensor, part: slice, *, adjacent: bool) -> int:
        """Number of threads for a part of the batch of a tensor."""
        outer: int = (part.stop - part.start) * self.outer
        elements = tensor.elements // (self.examples * self.outer)  # elements of an outer index
        return outer * (elements // self.together) if adjacent else -(-outer // self.together) * elements

    def structure(self, part: slice, *, adjacent: bool) -> Structure:
        """`Pooling` of sources/pooling.cuh."""
        outer, runs = (part.stop - part.start) * self.outer, self.inner // self.together if adjacent else self.inner
        numbers = (outer, self.inner, int(adjacent), runs, part.start * self.outer, self._window, *_divisor(runs))
        return Structure(*numbers, *self._axes)

    def kept(self, buffers: Buffers, part: slice) -> Argument:
        """The kept values of a part of the batch."""
        return buffers["kept"][part.start * self._kept : part.stop * self._kept]


def _axis(
    size: int, windows: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int], count_padding: bool
) -> list[int]:
    """`Axis` of sources/pooling.cuh."""
    before, after = padding
    counted = (-before, size + after) if count_padding else (0, size)
    divisors = [number for value in (size, windows, kernel, stride, dilation) for number in _divisor(value)]
    return [size, windows, kernel, stride, before, dilation, *counted, *divisors]


def _divisor(value: int) -> tuple[int, int]:
    """`Divisor` of sources/pooling.cuh: n / value is n · multiplier / 2^shift, rounded down, for 0 ≤ n < 2³¹.

    The multiplier exceeds 2^shift / value by less than 1, so that the product is too large by less than
    n / 2^shift < 1 / value, which is the least that a quotient is from the next integer.
    """
    shift = 31 + (value - 1).bit_length()
    return -(-(2**shift) // value), shift
