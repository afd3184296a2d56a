"""Windows of images, normalised and mirrored: passes with the same random choices as the reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import SLOT, NativeFunction, float32_at, inlined, int64_at, native_pass, philox
from crossbow.kernels.cpu.rooms import PASSES
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.random import halves
from crossbow.kernels.requests import ImageWindows
from crossbow.types import Layout


def _takes(request: ImageWindows) -> bool:
    return request.x.layout is Layout.CHANNELS_LAST and request.y.layout is Layout.CHANNELS_LAST


@PASSES.kernel(ImageWindows, lambda request: _takes(request) and request.seed is not None)
def at_random(request: ImageWindows) -> PreparedKernel:
    x, y, transform, seed, key = request.x, request.y, request.transform, request.seed, request.key
    assert seed is not None
    rows, columns = transform.choices(x.shape, y.shape)
    low, high = halves(seed)
    return _prepared(
        request,
        pick_windows,
        padding=transform.padding,
        tops=rows,
        lefts=columns,
        mirror=int(transform.mirror),
        key=key,
        seed_low=low,
        seed_high=high,
    )


@PASSES.kernel(ImageWindows, lambda request: _takes(request) and request.seed is None)
def centred(request: ImageWindows) -> PreparedKernel:
    x, y, transform = request.x, request.y, request.transform
    top, left = (start - transform.padding for start in transform.centre(x.shape, y.shape))
    return _prepared(request, middle_windows, top=top, left=left)


def _prepared(request: ImageWindows, function: NativeFunction, **more: int) -> PreparedKernel:
    """The pass with the arguments of both passes, and `more`."""
    function.address  # noqa: B018 - compile while preparing
    (n, channels, height, width), (rows, columns), transform = request.x.shape, request.y.shape[2:], request.transform
    mean, border_mean, scale = (v.astype(np.float32) for v in (transform.mean, transform.border_mean, transform.scale))
    # Rows of memory: the channels of each column.
    means = _rows(np.broadcast_to(mean, (channels, mean.shape[1], width)))
    scales = _rows(np.broadcast_to(scale, (channels, 1, columns)))
    border = _rows(np.broadcast_to((np.float32(0) - border_mean) * scale, (channels, 1, columns)))
    window: dict[str, Value] = {
        "channels": channels,
        "height": height,
        "width": width,
        "rows": rows,
        "columns": columns,
        "mean": means,
        "mean_row": width * channels if len(means) > 1 else 0,
        "scale": scales,
        "border": border,
    }
    places: dict[str, str] = {"x": "input0", "y": "output"}
    if request.seed is not None:
        places |= {"state": "state", "positions": "slot_positions"}

    def bind(buffers: Buffers) -> Sequence[Call]:
        arguments: dict[str, Value] = {name: buffers[role] for name, role in places.items()}
        return (function.call(request.label, **arguments | more, images=n, window=window),)

    return request.prepared("numba", bind)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(C, H, W) in the order of memory: (H, W · C)."""
    return np.ascontiguousarray(values.transpose(1, 2, 0)).reshape(values.shape[1], -1)


# The passes. A window begins at (top, left) of the image, which may be in the padding

WINDOW = Arguments(
    channels=int,
    height=int,
    width=int,
    rows=int,
    columns=int,
    mean=Address,
    mean_row=int,
    scale=Address,
    border=Address,
)
"""Sizes of image and window. mean, scale, border: numbers for a row of memory. mean_row: distance in elements between
rows of means, or 0 if all rows have the same means."""


@inlined
def _transform(image: int, target: int, window: Any, top: int, left: int, mirrored: bool) -> None:
    """Copy one image's window."""
    channels, height, width, rows, columns = window.channels, window.height, window.width, window.rows, window.columns
    scale, border = float32_at(window.scale), float32_at(window.border)
    # Columns of the window that are on the image. A whole window may be in the padding.
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
        mean = float32_at(window.mean + 4 * (row * window.mean_row + left * channels))
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


PICK = Arguments(
    x=Address,
    y=Address,
    state=Address,
    positions=Address,
    images=int,
    window=WINDOW,
    padding=int,
    tops=int,
    lefts=int,
    mirror=int,
    key=int,
    seed_low=int,
    seed_high=int,
)
"""positions: epoch and index of each example in each slot. tops, lefts: numbers of possible positions."""


@native_pass(PICK)
def pick_windows(block: Any) -> int:
    window = block.window
    size = window.channels * window.height * window.width
    windows = window.channels * window.rows * window.columns
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    key, seed_low, seed_high = np.uint64(block.key), np.uint64(block.seed_low), np.uint64(block.seed_high)
    positions = int64_at(block.positions + 16 * int64_at(block.state)[SLOT] * block.images)
    for n in range(block.images):
        epoch, index = np.uint64(positions[2 * n]), np.uint64(positions[2 * n + 1])
        words: Any = philox(index & low, key, epoch & low, index >> half, seed_low, seed_high)
        top = np.int64((words[0] * np.uint64(block.tops)) >> half) - block.padding
        left = np.int64((words[1] * np.uint64(block.lefts)) >> half) - block.padding
        mirrored = block.mirror != 0 and (words[2] >> np.uint64(31)) != 0
        _transform(block.x + 4 * n * size, block.y + 4 * n * windows, window, top, left, mirrored)
    return 0


@native_pass(Arguments(x=Address, y=Address, images=int, window=WINDOW, top=int, left=int))
def middle_windows(block: Any) -> int:
    window = block.window
    size = window.channels * window.height * window.width
    windows = window.channels * window.rows * window.columns
    for n in range(block.images):
        _transform(block.x + 4 * n * size, block.y + 4 * n * windows, window, block.top, block.left, False)
    return 0
