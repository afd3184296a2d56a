"""Local response normalisation, in passes of our own.

oneDNN's primitive is fast for odd sizes, β = 3/4 and AVX-512 only; elsewhere it raises to a power once for every pair
of neighbours, and its windows of even size lack an element. Where it is fast, it keeps two tensors of the input's size
for the gradient; the pass below works them out again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.interface import PreparedKernel, ResponseGeometry
from crossbow.types import Layout, Shape, Tensor

THREE_QUARTERS = np.float32(0.75)
"""The usual β, for which two square roots do."""


def forward(x: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
    """input0 → output."""
    return prepared_pass("lrn_forward", normalise, ("input0",), ("output",), *_numbers(x, geometry))


def backward(x: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
    """input0, output_gradient → input_gradient; may be in place on output_gradient."""
    _, height, width, inner = _sizes(x, geometry)
    return prepared_pass(
        "lrn_backward",
        normalise_gradient,
        ("input0", "output_gradient"),
        ("input_gradient",),
        *_numbers(x, geometry),
        workspace=4 * (2 * height * width * inner + inner),
        in_place=("output_gradient", "input_gradient"),
    )


def _sizes(x: Tensor, geometry: ResponseGeometry) -> Shape:
    """The tensor's memory as images of rows of elements that lie side by side; windows do not leave an image."""
    if geometry.axes == (1,):
        inner = math.prod(x.shape[2:])
        if x.layout is Layout.CHANNELS_LAST or inner == 1:
            return x.shape[0] * inner, 1, 1, x.shape[1]
        return x.shape[0], x.shape[1], 1, inner
    n, c, h, w = x.shape
    return (n, h, w, c) if x.layout is Layout.CHANNELS_LAST else (n * c, h, w, 1)


def _numbers(x: Tensor, geometry: ResponseGeometry) -> tuple[int | float, ...]:
    """Sizes, reach of the windows before and behind on the last three axes, share, β, κ."""
    sizes, reach = _sizes(x, geometry), (geometry.before, geometry.after)
    if geometry.axes == (1,):
        reaches = [(0, 0), (0, 0), reach] if sizes[1] == 1 else [reach, (0, 0), (0, 0)]
    else:
        reaches = [reach, reach, (0, 0)]
    before, after = zip(*reaches, strict=True)
    return (*sizes, *before, *after, geometry.share, geometry.beta, geometry.kappa)


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
