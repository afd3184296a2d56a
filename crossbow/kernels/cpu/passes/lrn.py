"""Local response normalisation. Nothing is kept for the gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Shape, Tensor

THREE_QUARTERS = 0.75
"""The usual β, for which two square roots do."""


@PASSES.kernel(LRNForward, lambda request: alike(request.x, request.y))
def forward(request: LRNForward) -> PreparedKernel:
    return prepared_pass(request, normalise, *_numbers(request.x, request.geometry))


@PASSES.kernel(LRNBackward, lambda request: alike(request.x, request.dy, request.dx))
def backward(request: LRNBackward) -> PreparedKernel:
    (_, height, width, inner), _ = _images(request.x, request.geometry)
    room = 4 * (2 * height * width * inner + inner)
    return prepared_pass(request, normalise_gradient, *_numbers(request.x, request.geometry), workspace=room)


def _numbers(x: Tensor, geometry: ResponseGeometry) -> tuple[int | float, ...]:
    """The tensor's memory as images of rows of elements that lie side by side, none of whose windows leaves its image:
    four sizes; how far windows reach before an element on the last three axes, and behind it; share, β, κ."""
    sizes, windows = _images(x, geometry)
    before, after = ([reach * extends for extends in windows] for reach in (geometry.before, geometry.after))
    return (*sizes, *before, *after, geometry.share, geometry.beta, geometry.kappa)


def _images(x: Tensor, geometry: ResponseGeometry) -> tuple[Shape, tuple[bool, bool, bool]]:
    """The four sizes, and along which of the last three a window extends."""
    n, channels, places = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    if geometry.axes == (1,):
        if x.layout is Layout.CHANNELS_LAST or places == 1:
            return (n * places, 1, 1, channels), (False, False, True)
        return (n, channels, 1, places), (True, False, False)
    _, _, height, width = x.shape
    if x.layout is Layout.CHANNELS_LAST:
        return (n, height, width, channels), (True, True, False)
    return (n * channels, height, width, 1), (True, True, False)


HEIGHT, WIDTH, INNER, BEFORE, AFTER, SHARE, BETA, KAPPA = 1, 2, 3, 4, 7, 10, 11, 12
"""Where these are in `_numbers`."""


@inlined
def _power(strength: Any, beta: Any) -> Any:
    """strength^−β."""
    if beta == THREE_QUARTERS:
        root = math.sqrt(strength)
        return np.float32(1) / (root * math.sqrt(root))
    return np.float32(1) / strength**beta


@inlined
def _quotient(number: Any, divisor: Any) -> Any:
    return number / divisor


@inlined
def _sum_windows(total: Any, values: Any, squared: bool, h: int, w: int, g: Any, before: int, after: int) -> None:
    """total[i] = Σ values, or their squares, in the window of element i in row (h, w) of an image."""
    for i in range(g[INNER]):
        total[i] = np.float32(0)
    for u in range(max(h - g[before], 0), min(h + g[after] + 1, g[HEIGHT])):
        for v in range(max(w - g[before + 1], 0), min(w + g[after + 1] + 1, g[WIDTH])):
            row = (u * g[WIDTH] + v) * g[INNER]
            for d in range(-g[before + 2], g[after + 2] + 1):
                for i in range(max(0, -d), min(g[INNER], g[INNER] - d)):
                    value = values[row + i + d]
                    total[i] += value * value if squared else value


@native
def normalise(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, `_numbers`."""
    b, numbers = int64_at(arguments), np.int64(arguments) + 16
    g, f = int64_at(numbers), float64_at(numbers)
    share, beta, kappa = np.float32(f[SHARE]), np.float32(f[BETA]), np.float32(f[KAPPA])
    inner, size = g[INNER], g[HEIGHT] * g[WIDTH] * g[INNER]
    for image in range(g[0]):
        x = float32_at(b[0] + 4 * image * size)
        for h in range(g[HEIGHT]):
            for w in range(g[WIDTH]):
                row = (h * g[WIDTH] + w) * inner
                y = float32_at(b[1] + 4 * (image * size + row))
                _sum_windows(y, x, True, h, w, g, BEFORE, AFTER)
                for i in range(inner):
                    y[i] = x[row + i] * _power(kappa + share * y[i], beta)
    return 0


@native
def normalise_gradient(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, dx, workspace (dy · s^−β and dy · x · s^(−β−1) of an image, a row), `_numbers`."""
    b, numbers = int64_at(arguments), np.int64(arguments) + 32
    g, f = int64_at(numbers), float64_at(numbers)
    share, beta, kappa = np.float32(f[SHARE]), np.float32(f[BETA]), np.float32(f[KAPPA])
    inner, size, factor = g[INNER], g[HEIGHT] * g[WIDTH] * g[INNER], np.float32(2 * f[SHARE] * f[BETA])
    direct, felt, total = float32_at(b[3]), float32_at(b[3] + 4 * size), float32_at(b[3] + 8 * size)
    for image in range(g[0]):
        skipped = 4 * image * size
        x, dy, dx = float32_at(b[0] + skipped), float32_at(b[1] + skipped), float32_at(b[2] + skipped)
        for h in range(g[HEIGHT]):
            for w in range(g[WIDTH]):
                row = (h * g[WIDTH] + w) * inner
                _sum_windows(total, x, True, h, w, g, BEFORE, AFTER)
                for i in range(inner):
                    strength = kappa + share * total[i]
                    direct[row + i] = dy[row + i] * _power(strength, beta)
                    felt[row + i] = _quotient(direct[row + i] * x[row + i], strength)
        # dy has been read: dx may lie where it was.
        for h in range(g[HEIGHT]):
            for w in range(g[WIDTH]):
                row = (h * g[WIDTH] + w) * inner
                _sum_windows(total, felt, False, h, w, g, AFTER, BEFORE)
                for i in range(inner):
                    dx[row + i] = direct[row + i] - factor * x[row + i] * total[i]
    return 0
