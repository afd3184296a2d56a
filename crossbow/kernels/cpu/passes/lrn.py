"""Local response normalisation. Nothing is kept for the gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import float32_at, inlined, native_pass, prepared_pass
from crossbow.kernels.cpu.rooms import PASSES, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Shape, Tensor

THREE_QUARTERS = 0.75
"""The usual β, for which two square roots suffice."""


@PASSES.kernel(LRNForward, lambda request: alike(request.x, request.y))
def forward(request: LRNForward) -> PreparedKernel:
    return prepared_pass(request, normalise, x="input0", y="output", setting=_setting(request.x, request.geometry))


@PASSES.kernel(LRNBackward, lambda request: alike(request.x, request.dy, request.dx))
def backward(request: LRNBackward) -> PreparedKernel:
    (_, height, width, inner), _ = _images(request.x, request.geometry)
    room = 4 * (2 * height * width * inner + inner)
    return prepared_pass(
        request,
        normalise_gradient,
        workspace=room,
        x="input0",
        dy="output_gradient",
        dx="input_gradient",
        room="workspace",
        setting=_setting(request.x, request.geometry),
    )


REACH = Arguments(rows=int, columns=int, inner=int)
"""Extent of windows before or after an element, on each axis of an image."""
SETTING = Arguments(
    images=int,
    height=int,
    width=int,
    inner=int,
    before=REACH,
    after=REACH,
    share=float,
    beta=float,
    kappa=float,
)
"""The tensor's memory as images of (height, width, inner), and the windows, which are clipped to the images."""


def _setting(x: Tensor, geometry: ResponseGeometry) -> dict[str, Value]:
    """The fields of `SETTING`."""
    (images, height, width, inner), windows = _images(x, geometry)
    before, after = (
        dict(zip(REACH.names, (reach * extends for extends in windows), strict=True))
        for reach in (geometry.before, geometry.after)
    )
    return {
        "images": images,
        "height": height,
        "width": width,
        "inner": inner,
        "before": before,
        "after": after,
        "share": geometry.share,
        "beta": geometry.beta,
        "kappa": geometry.kappa,
    }


def _images(x: Tensor, geometry: ResponseGeometry) -> tuple[Shape, tuple[bool, bool, bool]]:
    """The four sizes, and for each of the last three, whether a window extends along it."""
    n, channels, places = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    if geometry.axes == (1,):
        if x.layout is Layout.CHANNELS_LAST or places == 1:
            return (n * places, 1, 1, channels), (False, False, True)
        return (n, channels, 1, places), (True, False, False)
    _, _, height, width = x.shape
    if x.layout is Layout.CHANNELS_LAST:
        return (n, height, width, channels), (True, True, False)
    return (n * channels, height, width, 1), (True, True, False)


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
def _sum_windows(total: Any, values: Any, squared: bool, h: int, w: int, g: Any, before: Any, after: Any) -> None:
    """total[i] = Σ values, or their squares, in the window of element i in row (h, w) of an image."""
    for i in range(g.inner):
        total[i] = np.float32(0)
    for u in range(max(h - before.rows, 0), min(h + after.rows + 1, g.height)):
        for v in range(max(w - before.columns, 0), min(w + after.columns + 1, g.width)):
            row = (u * g.width + v) * g.inner
            for d in range(-before.inner, after.inner + 1):
                for i in range(max(0, -d), min(g.inner, g.inner - d)):
                    value = values[row + i + d]
                    total[i] += value * value if squared else value


@native_pass(Arguments(x=Address, y=Address, setting=SETTING))
def normalise(block: Any) -> int:
    g = block.setting
    share, beta, kappa = np.float32(g.share), np.float32(g.beta), np.float32(g.kappa)
    inner, size = g.inner, g.height * g.width * g.inner
    for image in range(g.images):
        x = float32_at(block.x + 4 * image * size)
        for h in range(g.height):
            for w in range(g.width):
                row = (h * g.width + w) * inner
                y = float32_at(block.y + 4 * (image * size + row))
                _sum_windows(y, x, True, h, w, g, g.before, g.after)
                for i in range(inner):
                    y[i] = x[row + i] * _power(kappa + share * y[i], beta)
    return 0


@native_pass(Arguments(x=Address, dy=Address, dx=Address, room=Address, setting=SETTING))
def normalise_gradient(block: Any) -> int:
    """room: workspace for dy · s^−β and dy · x · s^(−β−1) of an image, and for a row."""
    g = block.setting
    share, beta, kappa = np.float32(g.share), np.float32(g.beta), np.float32(g.kappa)
    inner, size, factor = g.inner, g.height * g.width * g.inner, np.float32(2 * g.share * g.beta)
    direct, felt = float32_at(block.room), float32_at(block.room + 4 * size)
    total = float32_at(block.room + 8 * size)
    for image in range(g.images):
        skipped = 4 * image * size
        x, dy = float32_at(block.x + skipped), float32_at(block.dy + skipped)
        dx = float32_at(block.dx + skipped)
        for h in range(g.height):
            for w in range(g.width):
                row = (h * g.width + w) * inner
                _sum_windows(total, x, True, h, w, g, g.before, g.after)
                for i in range(inner):
                    strength = kappa + share * total[i]
                    direct[row + i] = dy[row + i] * _power(strength, beta)
                    felt[row + i] = _quotient(direct[row + i] * x[row + i], strength)
        # dy has been read; dx may share its memory.
        for h in range(g.height):
            for w in range(g.width):
                row = (h * g.width + w) * inner
                _sum_windows(total, felt, False, h, w, g, g.after, g.before)
                for i in range(inner):
                    dx[row + i] = direct[row + i] - factor * x[row + i] * total[i]
    return 0
