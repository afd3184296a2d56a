"""Convolutions whose numbers of channels do not fill vectors of 16, as products of overlapping windows.

The library pads 20 → 50 channels to 32 → 64, twice the work. In channels-last order a row of a window, kw pixels of C
channels, is contiguous, and so is the same row of the next window, sw · C elements on. So a row of the output is, for
each row u of the kernel, the product of a matrix of overlapping rows and one of weights, and tiles (`tile.py`) take the
edges in smaller vectors. With the weights as (kh, kw · C, O):

    y[i, j]      = b + Σ_u  x[i·sh + u, j·sw …] · w[u]
    dw[u]        = Σ_{n, i, j}  x[i·sh + u, j·sw …]ᵀ · dy[n, i, j]
    dx[i·sh + u, j·sw …]  +=  dy[i, j] · w[u]ᵀ

One thread only; with padding, images pass through a padded copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding
import numpy as np

from crossbow.kernels.compiled import call_address, float32_at, inlined, int64_at, native
from crossbow.kernels.interface import Buffers, Call, ConvolutionGeometry, PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn import tile
from crossbow.kernels.onednn.inner_product import column_sums
from crossbow.types import Tensor, address

WASTE = 1.3
"""How many times the work the library has to do, in whole vectors of inputs and outputs, that this gains. 20 → 50
channels, 5×5 on 12×12 at batch 32, in µs: 1,045 forward, 1,126 weights, 1,116 data; it: 1,135, 1,256, 1,413."""
FEW = 4
"""Input channels up to which the library does not fill them up to a vector. With a single one its weight gradient is
slower all the same (1 → 32 channels, 5×5 on 28×28 at batch 16: 211 instead of 163 µs)."""

_A, _B, _C, _BIAS = tile.A, tile.B, tile.C, tile.BIAS
_A_ROW, _C_ROW, _ADD, _REST = tile.A_ROW, tile.C_ROW, tile.ADD, tile.REST


@dataclass(frozen=True)
class Narrow:
    """The sizes of a convolution on images of (height, width, channels)."""

    images: int
    height: int
    width: int
    channels: int
    outputs: int
    rows: int
    columns: int
    """Of the output."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: int
    """Of rows; columns have none."""

    @property
    def padded(self) -> tuple[int, int]:
        (top, bottom), (left, right) = self.padding
        return self.height + top + bottom, self.width + left + right

    @property
    def window(self) -> int:
        """Elements of a row of a window."""
        return self.kernel[1] * self.channels

    @property
    def scratch(self) -> int:
        """Bytes of a padded image, where there is padding."""
        height, width = self.padded
        return 0 if self.padded == (self.height, self.width) else 4 * height * width * self.channels

    @property
    def slots(self) -> tuple[int, ...]:
        """Of the argument blocks: what `_SIZES` names."""
        (top, _), (left, _) = self.padding
        height, width = self.padded
        return (
            *(self.images, self.height, self.width, self.channels, self.outputs, self.rows, self.columns),
            *(*self.kernel, *self.stride, top, left, height, width, self.dilation),
        )


def sizes(x: Tensor, y: Tensor, geometry: ConvolutionGeometry) -> Narrow | None:
    """The sizes of a convolution that these kernels can do on this machine and thread, else None."""
    if len(x.shape) != 4 or geometry.groups != 1 or geometry.dilation[1] != 1:
        return None
    if dnnl.omp_get_max_threads() != 1 or not llvmlite.binding.get_host_cpu_features().get("avx512f"):
        return None
    (images, channels, height, width), (_, outputs, rows, columns) = x.shape, y.shape
    (kh, kw), (sh, sw) = geometry.kernel, geometry.stride
    (top, bottom), (left, right) = geometry.padding
    padding, kernel, stride = ((top, bottom), (left, right)), (kh, kw), (sh, sw)
    return Narrow(
        images, height, width, channels, outputs, rows, columns, kernel, stride, padding, geometry.dilation[0]
    )


def gains(sizes: Narrow) -> bool:
    """Whether such a convolution is faster here than with the library."""
    filled = _whole(sizes.outputs) * (_whole(sizes.channels) if sizes.channels > FEW else sizes.channels)
    return filled >= WASTE * sizes.outputs * sizes.channels


def gains_in_weights(sizes: Narrow) -> bool:
    """Whether its weight gradient is."""
    return gains(sizes) or sizes.channels == 1


def _whole(channels: int) -> int:
    return -(-channels // tile.WIDTH) * tile.WIDTH


def forward(sizes: Narrow, relu: bool, bias: bool) -> PreparedKernel:
    """input0, weights[, bias] → output."""
    chunks = _Chunks(sizes.columns, sizes.outputs)
    kh, width = sizes.kernel[0], sizes.padded[1]
    steps = {
        tile.OUTER: kh,
        tile.INNER: sizes.window,
        tile.A_ROW: sizes.stride[1] * sizes.channels,
        tile.A_OUTER: sizes.dilation * width * sizes.channels,
        tile.A_INNER: 1,
        tile.B_OUTER: sizes.window * sizes.outputs,
        tile.B_INNER: sizes.outputs,
        tile.C_ROW: sizes.outputs,
        tile.RELU: int(relu),
    }
    reads = ("input0", "weights", "bias") if bias else ("input0", "weights")

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = [buffers[role] for role in ("input0", "weights", "output")]
        start = address(buffers["bias"]) if bias else 0
        return (_call("narrow convolution", forward_pass, sizes, chunks, steps, buffers, arrays, start),)

    name = f"convolution_forward{' relu' if relu else ''} narrow"
    return PreparedKernel(name, reads, ("output",), bind, workspace=sizes.scratch)


def backward_weights(sizes: Narrow, bias: bool) -> PreparedKernel:
    """input0, output_gradient → weights_gradient[, bias_gradient]."""
    chunks, width = _Chunks(sizes.window, sizes.outputs), sizes.padded[1]
    steps = {
        tile.OUTER: sizes.rows,
        tile.INNER: sizes.columns,
        tile.A_ROW: 1,
        tile.A_OUTER: sizes.stride[0] * width * sizes.channels,
        tile.A_INNER: sizes.stride[1] * sizes.channels,
        tile.B_OUTER: sizes.columns * sizes.outputs,
        tile.B_INNER: sizes.outputs,
        tile.C_ROW: sizes.outputs,
    }
    column_sums.address  # noqa: B018 - compile while preparing

    def bind(buffers: Buffers) -> Sequence[Call]:
        roles = ("input0", "output_gradient", "weights_gradient")
        arrays = [buffers[role] for role in roles]
        calls = [_call("narrow weights", weights_pass, sizes, chunks, steps, buffers, arrays, 0)]
        if bias:
            dy, total = buffers["output_gradient"], buffers["bias_gradient"]
            rows = sizes.images * sizes.rows * sizes.columns
            slots = (address(dy), address(total), rows, sizes.outputs)
            calls.append(column_sums.call("bias gradient", *slots, references=(dy, total)))
        return calls

    writes = ("weights_gradient", "bias_gradient") if bias else ("weights_gradient",)
    name = "convolution_backward_weights narrow"
    return PreparedKernel(name, ("input0", "output_gradient"), writes, bind, workspace=sizes.scratch)


def backward_data(sizes: Narrow) -> PreparedKernel:
    """output_gradient, weights → input_gradient."""
    chunks = _Chunks(sizes.columns, sizes.window)
    steps = {
        tile.OUTER: 1,
        tile.INNER: sizes.outputs,
        tile.A_ROW: sizes.outputs,
        tile.A_INNER: 1,
        tile.B_INNER: sizes.window,
        tile.C_ROW: sizes.stride[1] * sizes.channels,
        tile.ADD: 1,
    }
    transposed = 4 * sizes.kernel[0] * sizes.outputs * sizes.window
    room = -(-sizes.scratch // 64) * 64

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = [buffers[role] for role in ("output_gradient", "weights", "input_gradient")]
        packed = address(buffers["workspace"]) + room
        return (_call("narrow data", data_pass, sizes, chunks, steps, buffers, arrays, packed),)

    reads, name = ("output_gradient", "weights"), "convolution_backward_data narrow"
    return PreparedKernel(name, reads, ("input_gradient",), bind, workspace=room + transposed)


class _Chunks:
    """The rows and columns of a product, cut evenly into what a tile takes: a tile with few sums waits for them."""

    def __init__(self, rows: int, columns: int) -> None:
        vectors = -(-columns // tile.WIDTH)
        self.number = -(-vectors // tile.VECTORS)
        self.table: list[int] = []
        bounds = [-(-vectors * part // self.number) * tile.WIDTH for part in range(self.number)] + [columns]
        for first, last in itertools.pairwise(bounds):
            self.table += [first, (last - first) % tile.WIDTH]
            parts = -(-rows // tile.ROWS)
            for size, count in ((-(-rows // parts), rows % parts or parts), (rows // parts, -rows % parts)):
                self.table += [count, size, tile.tile(size, last - first).address if count else 0]


_CHUNK = 8
"""Slots of a chunk: first column, columns of the partial vector, and twice a number of tiles, their rows, the tile."""
_PADDED, _BLOCK, _CHUNKS, _SIZES = 3, 5, 6, 7
"""Slots of the passes' blocks: three arrays, the padded image or 0, a fourth address; then the tile's block, the number
of chunks, the sizes, and the chunks themselves."""
_N, _H, _W, _CHANNELS, _O, _I, _J, _KH, _KW, _SH, _SW, _TOP, _LEFT, _PH, _PW, _DILATION = range(_SIZES, _SIZES + 16)
_TABLE = _SIZES + 16


def _call(
    name: str,
    function: Any,
    sizes: Narrow,
    chunks: _Chunks,
    steps: dict[int, int],
    buffers: Buffers,
    arrays: Sequence[Any],
    fourth: int,
) -> Any:
    block = np.zeros(tile.SLOTS, np.int64)
    for slot, value in steps.items():
        block[slot] = value
    image = address(buffers["workspace"]) if sizes.scratch else 0
    slots = (*map(address, arrays), image, fourth, address(block), chunks.number, *sizes.slots, *chunks.table)
    return function.call(name, *slots, references=(block, *buffers.values()))


@inlined
def _rows(block: int, tiles: Any, a: int, c: int) -> None:
    """All rows of a chunk of columns."""
    slots, parts = int64_at(block), int64_at(tiles)
    slots[_A], slots[_C] = a, c
    for part in range(0, 6, 3):
        for _ in range(parts[part]):
            call_address(parts[part + 2], block, 0, 0, 0)
            slots[_A] += 4 * parts[part + 1] * slots[_A_ROW]
            slots[_C] += 4 * parts[part + 1] * slots[_C_ROW]


@inlined
def _image(b: Any, image: int, number: int) -> Any:
    """The address of an image with its padding: its own where there is none, else that of a copy."""
    row = b[_W] * b[_CHANNELS]
    source = image + 4 * number * b[_H] * row
    if b[_PADDED] == 0:
        return source
    pixels, copy = float32_at(source), float32_at(b[_PADDED])
    start, step = (b[_TOP] * b[_PW] + b[_LEFT]) * b[_CHANNELS], b[_PW] * b[_CHANNELS]
    if number == 0:
        for index in range(b[_PH] * step):
            copy[index] = np.float32(0)
    for line in range(b[_H]):
        for index in range(row):
            copy[start + line * step + index] = pixels[line * row + index]
    return b[_PADDED]


@native
def forward_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, weights, y, padded image, bias, then as `_BLOCK` says."""
    b = int64_at(arguments)
    slots = int64_at(b[_BLOCK])
    for n in range(b[_N]):
        image = _image(b, b[0], n)
        for chunk in range(b[_CHUNKS]):
            entry = _TABLE + chunk * _CHUNK
            slots[_B] = b[1] + 4 * b[entry]
            slots[_BIAS] = 0 if b[4] == 0 else b[4] + 4 * b[entry]
            slots[_REST] = b[entry + 1]
            tiles = np.int64(arguments) + 8 * (entry + 2)
            for i in range(b[_I]):
                a = image + 4 * i * b[_SH] * b[_PW] * b[_CHANNELS]
                c = b[2] + 4 * ((n * b[_I] + i) * b[_J] * b[_O] + b[entry])
                _rows(b[_BLOCK], tiles, a, c)
    return 0


@native
def weights_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, dw, padded image, nothing, then as `_BLOCK` says."""
    b = int64_at(arguments)
    slots = int64_at(b[_BLOCK])
    window = b[_KW] * b[_CHANNELS]
    for n in range(b[_N]):
        image = _image(b, b[0], n)
        slots[_ADD] = 0 if n == 0 else 1
        for chunk in range(b[_CHUNKS]):
            entry = _TABLE + chunk * _CHUNK
            slots[_B] = b[1] + 4 * (n * b[_I] * b[_J] * b[_O] + b[entry])
            slots[_REST] = b[entry + 1]
            tiles = np.int64(arguments) + 8 * (entry + 2)
            for u in range(b[_KH]):
                a = image + 4 * u * b[_DILATION] * b[_PW] * b[_CHANNELS]
                _rows(b[_BLOCK], tiles, a, b[2] + 4 * (u * window * b[_O] + b[entry]))
    return 0


@native
def data_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, weights, dx, padded image, room for the transposed weights, then as `_BLOCK` says."""
    b = int64_at(arguments)
    slots, window, outputs = int64_at(b[_BLOCK]), b[_KW] * b[_CHANNELS], b[_O]
    weights, transposed = float32_at(b[1]), float32_at(b[4])
    for u in range(b[_KH]):
        for first in range(0, window, 8):  # a few rows at a time, or every number would be in a cache line of its own
            for o in range(outputs):
                for index in range(first, min(first + 8, window)):
                    transposed[(u * outputs + o) * window + index] = weights[(u * window + index) * outputs + o]
    for n in range(b[_N]):
        own = b[2] + 4 * n * b[_H] * b[_W] * b[_CHANNELS]
        image = own if b[_PADDED] == 0 else b[_PADDED]
        sums = float32_at(image)
        for index in range(b[_PH] * b[_PW] * b[_CHANNELS]):
            sums[index] = np.float32(0)
        for u in range(b[_KH]):
            for chunk in range(b[_CHUNKS]):
                entry = _TABLE + chunk * _CHUNK
                slots[_B] = b[4] + 4 * (u * outputs * window + b[entry])
                slots[_REST] = b[entry + 1]
                tiles = np.int64(arguments) + 8 * (entry + 2)
                for i in range(b[_I]):
                    a = b[0] + 4 * (n * b[_I] + i) * b[_J] * outputs
                    row = (i * b[_SH] + u * b[_DILATION]) * b[_PW] * b[_CHANNELS]
                    _rows(b[_BLOCK], tiles, a, image + 4 * (row + b[entry]))
        if b[_PADDED] != 0:
            start, step, row = (b[_TOP] * b[_PW] + b[_LEFT]) * b[_CHANNELS], b[_PW] * b[_CHANNELS], b[_W] * b[_CHANNELS]
            result = float32_at(own)
            for line in range(b[_H]):
                for index in range(row):
                    result[line * row + index] = sums[start + line * step + index]
    return 0
