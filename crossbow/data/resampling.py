"""Bilinear resizing with antialiasing: one compiled pass crops, resizes, mirrors and writes channels (3, S, S).

The arithmetic is that of Pillow's `Image.resize` with `Resampling.BILINEAR`. A pixel of the result is a weighted sum of
source pixels, with a triangle filter whose half width is max(1, source size / result size) pixels. Rows are resized
first, then columns. Weights have 22 fraction bits, and both results are rounded to 8 bits. Pillow resizes columns first
if that takes less time; then results may differ by 1 level.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.data.preprocessing import Pixels, Window
from crossbow.kernels.compiled import inlined, int32_at, int64_at, native, uint8_at
from crossbow.kernels.native import NativeCall
from crossbow.types import address

BITS = 22
"""Fraction bits of a weight. A weighted sum of 8-bit pixels then fits into 31 bits."""
HALF = 1 << (BITS - 1)


class Resampler:
    """Computes windows of S×S pixels. It keeps its working memory, so only one thread at a time may use it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._starts = np.zeros((2, size), np.int64)
        self._sums = np.zeros(size, np.int32)
        self._weights = np.zeros(0, np.int32)
        self._rows = np.zeros(0, np.uint8)
        self._block = np.zeros(17, np.int64)
        self._call = NativeCall("resample", _resample.address, (address(self._block),))

    def resample(self, pixels: Pixels, window: Window, out: Pixels) -> None:
        """Write the window of `pixels` (H, W, 3) to `out` (3, S, S). Both arrays must be contiguous."""
        size, shape = self._size, pixels.shape
        if not (pixels.flags.c_contiguous and out.flags.c_contiguous) or out.shape != (3, size, size):
            raise ValueError(f"expected contiguous arrays (H, W, 3) and (3, {size}, {size}). Received: {out.shape}")
        if not window.lies_in(shape[0], shape[1], size):
            raise ValueError(f"expected a window of {size}×{size} in {shape[0]}×{shape[1]} pixels. Received: {window}")
        lengths = (window.height, window.width)
        y_taps, x_taps = (most_taps(*pair) for pair in zip(lengths, window.resized, strict=True))
        if self._weights.size < size * (y_taps + x_taps):
            self._weights = np.zeros(size * (y_taps + x_taps), np.int32)
        if self._rows.size < y_taps * 3 * size:
            self._rows = np.zeros(y_taps * 3 * size, np.uint8)
        source = address(pixels) + 3 * (window.top * shape[1] + window.left)
        y_weights, (y_starts, x_starts) = address(self._weights), map(address, self._starts)
        x_weights = y_weights + self._weights.itemsize * size * y_taps
        self._block[:] = (
            *(source, 3 * shape[1], *lengths, *window.resized, *window.offset, size, window.mirrored, address(out)),
            *(y_starts, x_starts, y_weights, x_weights, address(self._rows), address(self._sums)),
        )
        self._call()


def most_taps(length: int, resized: int) -> int:
    """Maximum number of source pixels in a sum."""
    return min(length, 2 * max(1, -(-length // resized)) + 1)


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
    for i in range(size):
        centre = (offset + i + 0.5) * scale
        end = min(np.int64(centre + support + 0.5), length)
        total = 0.0
        for pixel in range(starts[i], end):
            total += max(1.0 - abs(pixel + 0.5 - centre) / support, 0.0)
        start = min(starts[i], length - taps)  # so that all `taps` pixels exist
        for t in range(taps):
            weight = 0.0
            if starts[i] <= start + t < end:
                weight = max(1.0 - abs(start + t + 0.5 - centre) / support, 0.0) / total
            weights[i * taps + t] = np.int32(0.5 + weight * (1 << BITS))
        starts[i] = start
    return taps


@inlined
def _resize_row(source: Any, starts: Any, weights: Any, taps: Any, size: Any, mirrored: Any, row: Any) -> Any:
    """Resize a row of pixels (W, 3) to (3, S)."""
    for x in range(size):
        red, green, blue = np.int32(HALF), np.int32(HALF), np.int32(HALF)
        pixel, first = starts[x] * 3, x * taps
        for t in range(taps):
            weight = weights[first + t]
            red += weight * np.int32(source[pixel])
            green += weight * np.int32(source[pixel + 1])
            blue += weight * np.int32(source[pixel + 2])
            pixel += 3
        place = size - 1 - x if mirrored else x
        row[place] = red >> BITS
        row[size + place] = green >> BITS
        row[2 * size + place] = blue >> BITS
    return 0


@native
def _resample(block: int, unused: int, unused1: int, unused2: int) -> int:
    """Resized rows are kept in a ring of as many rows as a column's sum needs."""
    s = int64_at(block)
    source, pitch, size, mirrored, out = s[0], s[1], s[8], s[9], s[10]
    y_starts, x_starts = int64_at(s[11]), int64_at(s[12])
    y_weights, x_weights = int32_at(s[13]), int32_at(s[14])
    rows, sums = s[15], int32_at(s[16])
    y_taps = _prepare_axis(s[2], s[4], s[6], size, y_starts, y_weights)
    x_taps = _prepare_axis(s[3], s[5], s[7], size, x_starts, x_weights)
    ready = y_starts[0]
    for y in range(size):
        while ready < y_starts[y] + y_taps:
            row = uint8_at(rows + ready % y_taps * 3 * size)
            _resize_row(uint8_at(source + ready * pitch), x_starts, x_weights, x_taps, size, mirrored, row)
            ready += 1
        for channel in range(3):
            for x in range(size):
                sums[x] = HALF
            for t in range(y_taps):
                row = uint8_at(rows + ((y_starts[y] + t) % y_taps * 3 + channel) * size)
                weight = y_weights[y * y_taps + t]
                for x in range(size):
                    sums[x] += weight * np.int32(row[x])
            result = uint8_at(out + (channel * size + y) * size)
            for x in range(size):
                result[x] = sums[x] >> BITS
    return 0
