"""Images into what a network is trained on: compiled passes that pick what the reference kernels pick, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.compiled import SLOT, NativeFunction, float32_at, inlined, int64_at, native, philox
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ImageWindows
from crossbow.types import Layout, address

_LOW = 0xFFFFFFFF


def _takes(request: ImageWindows) -> bool:
    return request.x.layout is Layout.CHANNELS_LAST and request.y.layout is Layout.CHANNELS_LAST


@PASSES.kernel(ImageWindows, lambda request: _takes(request) and request.seed is not None)
def at_random(request: ImageWindows) -> PreparedKernel:
    x, y, transform, seed, key = request.x, request.y, request.transform, request.seed, request.key
    assert seed is not None
    rows, columns = transform.choices(x.shape, y.shape)
    numbers = (transform.padding, rows, columns, int(transform.mirror), key, seed & _LOW, (seed >> 32) & _LOW)
    return _prepared(request, pick_windows, *numbers)


@PASSES.kernel(ImageWindows, lambda request: _takes(request) and request.seed is None)
def centred(request: ImageWindows) -> PreparedKernel:
    x, y, transform = request.x, request.y, request.transform
    top, left = (start - transform.padding for start in transform.centre(x.shape, y.shape))
    return _prepared(request, middle_windows, top, left)


def _prepared(request: ImageWindows, function: NativeFunction, *more: int) -> PreparedKernel:
    """The pass on a block of: output, what is read, x's N, C, H, W, y's H, W, mean, elements from one row of it to the
    next, scale, border, `more`."""
    function.address  # noqa: B018 - compile while preparing
    (n, channels, height, width), (rows, columns), transform = request.x.shape, request.y.shape[2:], request.transform
    mean, border_mean, scale = (v.astype(np.float32) for v in (transform.mean, transform.border_mean, transform.scale))
    # Along a row of memory: for every column its channels.
    means = _rows(np.broadcast_to(mean, (channels, mean.shape[1], width)))
    scales = _rows(np.broadcast_to(scale, (channels, 1, columns)))
    border = _rows(np.broadcast_to((np.float32(0) - border_mean) * scale, (channels, 1, columns)))
    stride = width * channels if len(means) > 1 else 0
    shape = (n, channels, height, width, rows, columns)

    def bind(buffers: Buffers) -> Sequence[Call]:
        constants, arrays = (means, scales, border), [buffers[role] for role in (*request.writes, *request.reads)]
        places = (address(means), stride, address(scales), address(border))
        slots = (*map(address, arrays), *shape, *places, *more)
        return (function.call(request.label, *slots, references=(*constants, *arrays)),)

    return request.prepared("numba", bind)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(C, H, W) in the order of memory: (H, W · C)."""
    return np.ascontiguousarray(values.transpose(1, 2, 0)).reshape(values.shape[1], -1)


# The passes. A window begins at (top, left) of the image, outside of it where there is padding.


@inlined
def _transform(image: int, target: int, block: Any, top: int, left: int, mirrored: bool) -> None:
    """One image's window. Block: C, H, W, y's H, W, mean, stride of its rows, scale, border."""
    channels, height, width, rows, columns = block[0], block[1], block[2], block[3], block[4]
    scale, border = float32_at(block[7]), float32_at(block[8])
    # Columns of the window that are the image's. Whole windows may lie in the padding.
    first = min(max(0, -left), columns)
    last = max(first, min(columns, width - left))
    before, behind = (columns - last, columns - first) if mirrored else (first, last)
    length = columns * channels
    for i in range(rows):
        y, row = float32_at(target + 4 * i * length), top + i
        if row < 0 or row >= height:
            for t in range(length):
                y[t] = border[t]
            continue
        x = float32_at(image + 4 * (row * width + left) * channels)
        mean = float32_at(block[5] + 4 * (row * block[6] + left * channels))
        for t in range(before * channels):
            y[t] = border[t]
        for t in range(behind * channels, length):
            y[t] = border[t]
        if not mirrored:
            for t in range(first * channels, last * channels):
                y[t] = (x[t] - mean[t]) * scale[t]
        elif channels == 3:
            for j in range(first, last):
                t, place = 3 * j, 3 * (columns - 1 - j)
                y[place] = (x[t] - mean[t]) * scale[t]
                y[place + 1] = (x[t + 1] - mean[t + 1]) * scale[t + 1]
                y[place + 2] = (x[t + 2] - mean[t + 2]) * scale[t + 2]
        else:
            for j in range(first, last):
                t, place = j * channels, (columns - 1 - j) * channels
                for c in range(channels):
                    y[place + c] = (x[t + c] - mean[t + c]) * scale[t + c]


@native
def pick_windows(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, x, state, slot positions, N, as `_transform`, padding, numbers of tops and of lefts, whether to mirror,
    key, seed low, seed high."""
    a = int64_at(arguments)
    size, windows = a[5] * a[6] * a[7], a[5] * a[8] * a[9]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    positions = int64_at(a[3] + 16 * int64_at(a[2])[SLOT] * a[4])
    for n in range(a[4]):
        epoch, index = np.uint64(positions[2 * n]), np.uint64(positions[2 * n + 1])
        words: Any = philox(
            index & low, np.uint64(a[18]), epoch & low, index >> half, np.uint64(a[19]), np.uint64(a[20])
        )
        top = np.int64((words[0] * np.uint64(a[15])) >> half) - a[14]
        left = np.int64((words[1] * np.uint64(a[16])) >> half) - a[14]
        mirrored = a[17] != 0 and (words[2] >> np.uint64(31)) != 0
        _transform(a[1] + 4 * n * size, a[0] + 4 * n * windows, int64_at(arguments + 40), top, left, mirrored)
    return 0


@native
def middle_windows(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: y, x, N, as `_transform`, top, left."""
    a = int64_at(arguments)
    size, windows = a[3] * a[4] * a[5], a[3] * a[6] * a[7]
    for n in range(a[2]):
        _transform(a[1] + 4 * n * size, a[0] + 4 * n * windows, int64_at(arguments + 24), a[12], a[13], False)
    return 0
