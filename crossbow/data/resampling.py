"""Bilinear resizing with antialiasing: one compiled pass crops, resizes, mirrors and writes channels (3, S, S).

The arithmetic is that of Pillow's `Image.resize` with `Resampling.BILINEAR`. A pixel of the result is a weighted sum of
source pixels, with a triangle filter whose half width is max(1, source size / result size) pixels. Rows are resized
first, then columns. Weights have 22 fraction bits, and both results are rounded to 8 bits. Pillow resizes columns first
if that takes less time; then results may differ by 1 level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from crossbow.data.preprocessing import Pixels, Window
from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import inlined, instruction, int32_at, int64_at, native_pass, uint8_at, uint32_at
from crossbow.kernels.cpu.emitter import Emitter
from crossbow.kernels.native import NativeCall
from crossbow.types import address

BITS = 22
"""Fraction bits of a weight. A weighted sum of 8-bit pixels then fits into 31 bits."""
HALF = 1 << (BITS - 1)


WINDOW = Arguments(
    source=Address,  # the window's first pixel
    pitch=int,  # bytes of a row of the image
    height=int,
    width=int,
    resized_height=int,
    resized_width=int,
    y_offset=int,
    x_offset=int,
    size=int,
    mirrored=int,
    out=Address,
    y_starts=Address,
    x_starts=Address,
    y_weights=Address,
    x_weights=Address,
    rows=Address,
    sums=Address,
    last=int,  # the row at the end of the image's memory, or −1
)


class Resampler:
    """Computes windows of S×S pixels. It keeps its working memory, so only one thread at a time may use it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._starts = np.zeros((2, size), np.int64)
        self._sums = np.zeros(4 * size, np.int32)
        self._weights = np.zeros(0, np.int32)
        self._rows = np.zeros(0, np.uint8)
        self._block = np.zeros((), WINDOW.dtype)
        self._call = NativeCall("resample", _resample.address, (address(self._block),))

    def resample(self, pixels: Pixels, window: Window, out: Pixels) -> None:
        """Write the window of `pixels` (H, W, 3) to `out` (3, S, S). Both arrays must be contiguous."""
        size, (height, width, _) = self._size, pixels.shape
        if not (pixels.flags.c_contiguous and out.flags.c_contiguous) or out.shape != (3, size, size):
            raise ValueError(f"expected contiguous arrays (H, W, 3) and (3, {size}, {size}). Received: {out.shape}")
        if not window.lies_in(height, width, size):
            raise ValueError(f"expected a window of {size}×{size} in {height}×{width} pixels. Received: {window}")
        lengths = (window.height, window.width)
        y_taps, x_taps = (most_taps(*pair) for pair in zip(lengths, window.resized, strict=True))
        self._reserve(size * (y_taps + x_taps), 4 * size * (y_taps + 1) + 3 * window.width + 1)
        ends = window.top + window.height == height and window.left + window.width == width
        source = address(pixels) + 3 * (window.top * width + window.left)
        y_weights, (y_starts, x_starts) = address(self._weights), map(address, self._starts)
        x_weights = y_weights + self._weights.itemsize * size * y_taps
        self._block[()] = (
            *(source, 3 * width, *lengths, *window.resized, *window.offset, size, window.mirrored, address(out)),
            *(y_starts, x_starts, y_weights, x_weights, address(self._rows), address(self._sums)),
            window.height - 1 if ends else -1,
        )
        self._call()

    def _reserve(self, weights: int, row_bytes: int) -> None:
        if self._weights.size < weights:
            self._weights = np.zeros(weights, np.int32)
        if self._rows.size < row_bytes:
            self._rows = np.zeros(row_bytes, np.uint8)


def most_taps(length: int, resized: int) -> int:
    """Maximum number of source pixels in a sum."""
    return min(length, 2 * -(-length // resized) + 1)


@inlined
def _prepare_axis(length: Any, resized: Any, offset: Any, size: Any, starts: Any, weights: Any) -> Any:
    """Write the first source pixel and the weights of each sum. Returns the number of weights, the same for all."""
    scale = length / resized
    support = max(scale, 1.0)
    taps = np.int64(1)
    for i in range(size):
        centre = (offset + i + 0.5) * scale
        starts[i] = max(np.int64(centre - support + 0.5), 0)
        taps = max(taps, min(np.int64(centre + support + 0.5), length) - starts[i])
    inverse = 1.0 / support
    for i in range(size):
        centre = (offset + i + 0.5) * scale - 0.5
        end = min(np.int64(centre + 0.5 + support + 0.5), length)
        total = 0.0
        for pixel in range(starts[i], end):
            total += max(1.0 - abs(pixel - centre) * inverse, 0.0)
        factor = (1 << BITS) / total
        start = min(starts[i], length - taps)  # so that all `taps` pixels exist
        for t in range(taps):
            weight = 0.0
            if starts[i] <= start + t < end:
                weight = max(1.0 - abs(start + t - centre) * inverse, 0.0)
            weights[i * taps + t] = np.int32(0.5 + weight * factor)
        starts[i] = start
    return taps


class _PixelEmitter(Emitter):
    """Emits instructions on a pixel: four lanes of 32 bits, for R, G, B and an unused byte."""

    byte = ir.IntType(8)

    def __init__(self, builder: Any) -> None:
        super().__init__(builder, lanes=4)

    def product(self, pixels: Any, weights: Any, index: Any) -> Any:
        """The product of pixel `index` and its weight."""
        place = self.builder.add(weights, self.builder.mul(index, index.type(4)))
        weight = self.builder.load(self.builder.inttoptr(place, self.lane.as_pointer()))
        values = self.load(self.builder.add(pixels, self.builder.mul(index, index.type(3))), self.byte)
        return self.builder.mul(self.builder.zext(values, self.vector(self.lane)), self.splat(weight))

    def rounded(self, total: Any) -> Any:
        """The four sums as bytes."""
        shifted = self.builder.lshr(total, self.constant(BITS, self.lane))
        return self.builder.bitcast(self.builder.trunc(shifted, self.vector(self.byte)), self.lane)


_new_variable: Callable[..., Any] = cgutils.alloca_once_value


def _weighted_pixel(taps: int | None) -> Any:
    """Compiled code for the weighted sum of `taps` pixels; None: for a sum of any number of pixels."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pixels, weights, count = arguments
        code = _PixelEmitter(builder)
        total = code.constant(HALF, code.lane)
        if taps is not None:
            for index in range(taps):
                total = builder.add(total, code.product(pixels, weights, count.type(index)))
            return code.rounded(total)
        variable = _new_variable(builder, total)
        with cgutils.for_range(builder, count) as loop:
            builder.store(builder.add(builder.load(variable), code.product(pixels, weights, loop.index)), variable)
        return code.rounded(builder.load(variable))

    @instruction
    def weighted_pixel(typing_context: Any, pixels: Any, weights: Any, count: Any) -> Any:
        return types.uint32(types.int64, types.int64, types.int64), generate

    return weighted_pixel


_weighted2, _weighted3, _weighted4, _weighted = (_weighted_pixel(taps) for taps in (2, 3, 4, None))


@inlined
def _resize_row(source: Any, starts: Any, weights: Any, taps: Any, size: Any, mirrored: Any, row: Any) -> Any:
    """Resize a row of pixels (W, 3) to (S, 4). Short sums are computed without a loop."""
    step, place = (-1, size - 1) if mirrored else (1, 0)
    if taps == 2:
        for x in range(size):
            row[place + step * x] = _weighted2(source + 3 * starts[x], weights + 8 * x, taps)
    elif taps == 3:
        for x in range(size):
            row[place + step * x] = _weighted3(source + 3 * starts[x], weights + 12 * x, taps)
    elif taps == 4:
        for x in range(size):
            row[place + step * x] = _weighted4(source + 3 * starts[x], weights + 16 * x, taps)
    else:
        for x in range(size):
            row[place + step * x] = _weighted(source + 3 * starts[x], weights + 4 * taps * x, taps)
    return 0


@inlined
def _copy(source: Any, count: Any, target: Any) -> Any:
    """Copy the last row of an image, because a pixel is read together with the byte after it. Returns the address of
    the copy."""
    for n in range(count):
        uint8_at(target)[n] = uint8_at(source)[n]
    return target


@inlined
def _separate(sums: Any, pixels: Any, out: Any, size: Any) -> Any:
    """Round the sums of a row to `pixels` (S, 4), then write its channels. The two steps are separate so that each is
    vectorised."""
    values, words = uint8_at(pixels), uint32_at(pixels)
    for x in range(4 * size):
        values[x] = sums[x] >> BITS
    red, green, blue = uint8_at(out), uint8_at(out + size * size), uint8_at(out + 2 * size * size)
    for x in range(size):
        red[x] = words[x] & 255
        green[x] = (words[x] >> 8) & 255
        blue[x] = (words[x] >> 16) & 255
    return 0


@native_pass(WINDOW)
def _resample(block: Any) -> int:
    """Compute a window. Resized rows (S, 4) are kept in a ring of as many rows as the sum of a column needs."""
    source, pitch, width, size, out = block.source, block.pitch, block.width, block.size, block.out
    y_starts, x_starts = int64_at(block.y_starts), int64_at(block.x_starts)
    y_weights, x_weights = int32_at(block.y_weights), int32_at(block.x_weights)
    rows, sums, mirrored = block.rows, int32_at(block.sums), block.mirrored
    y_taps = _prepare_axis(block.height, block.resized_height, block.y_offset, size, y_starts, y_weights)
    x_taps = _prepare_axis(width, block.resized_width, block.x_offset, size, x_starts, x_weights)
    result = rows + y_taps * 4 * size
    ready = y_starts[0]
    for y in range(size):
        while ready < y_starts[y] + y_taps:
            pixels = source + ready * pitch
            if ready == block.last:
                pixels = _copy(pixels, 3 * width, result + 4 * size)
            row = uint32_at(rows + ready % y_taps * 4 * size)
            _resize_row(pixels, x_starts, block.x_weights, x_taps, size, mirrored, row)
            ready += 1
        for x in range(4 * size):
            sums[x] = HALF
        for t in range(y_taps):
            values = uint8_at(rows + (y_starts[y] + t) % y_taps * 4 * size)
            weight = y_weights[y * y_taps + t]
            for x in range(4 * size):
                sums[x] += weight * np.int32(values[x])
        _separate(sums, result, out + y * size, size)
    return 0
