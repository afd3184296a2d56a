"""Pooling over any number of spatial axes, and its gradients: one pass over the output for each position in the
window."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import State
from crossbow.kernels.random import random_words
from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.reference.windows import inside, padded, positions
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Array, Shape

KEPT_TYPE = np.dtype(np.int32)
"""Type of `kept` in max and stochastic pooling: for every output, in NCHW order, the row-major index (u · kw + v in two
dimensions) of the position in the window from which the output came."""


def _takes(method: str) -> Callable[[PoolingForward | PoolingBackward], bool]:
    return lambda request: request.geometry.method == method


def _kept_bytes(request: PoolingForward) -> int:
    return request.y.elements * KEPT_TYPE.itemsize if request.keeps else 0


@computes(PoolingForward, _takes("max"), kept=_kept_bytes)
def forward_max(*, input0: Floats, output: Floats, geometry: PoolingGeometry, kept: Array | None = None) -> None:
    """The largest element of every window, or the first of equal ones. NaN counts as the largest, and the last of
    several NaNs."""
    room = padded(input0, output.shape, geometry, -np.inf)
    output[...] = -np.inf
    first = _first_inside(output.shape, geometry)
    for position, place in positions(output.shape, geometry):
        candidate = room[place]
        larger = (candidate > output) | np.isnan(candidate)
        np.copyto(output, candidate, where=larger)
        np.copyto(first, position, where=larger)
    if kept is not None:
        _kept(kept, output.shape)[...] = first


@computes(PoolingForward, lambda request: request.draws, kept=_kept_bytes)
def forward_stochastic(
    *, input0: Floats, state: Array, output: Floats, kept: Array, geometry: PoolingGeometry, seed: int, key: int
) -> None:
    """The element of every window that contains r · Σ w, where the w = max(x, 0) are laid side by side, row by row.

    r is in [0, 1), word / 2³² of `random_words`, one for every output in NCHW order. Sums are float64 for any type of
    x, and run row by row, so that every library selects the same element. A window without w > 0 returns its first
    element, and one with NaN returns NaN.
    """
    room = padded(input0, output.shape, geometry, 0)
    words = random_words(output.size, seed, key, int(state[State.TASK])).reshape(output.shape)
    # The last position whose preceding sum does not exceed this is selected.
    bound = _total(room, output.shape, geometry) * (words / 2.0**32)
    before = np.zeros(output.shape)
    picked = _first_inside(output.shape, geometry)
    for position, place in positions(output.shape, geometry):
        weight = np.maximum(room[place], 0).astype(np.float64)
        here = ((weight > 0) & (before <= bound)) | np.isnan(weight)
        np.copyto(picked, position, where=here)
        before += weight
    for position, place in positions(output.shape, geometry):
        np.copyto(output, room[place], where=picked == position)
    _kept(kept, output.shape)[...] = picked


@computes(PoolingForward, _takes("stochastic"))
def forward_expected(*, input0: Floats, output: Floats, geometry: PoolingGeometry) -> None:
    """The expectation of `forward_stochastic`: Σ w² / Σ w, or the first element of a window without w > 0."""
    room = padded(input0, output.shape, geometry, 0)
    total, squares = _total(room, output.shape, geometry), np.zeros(output.shape)
    first = _first_inside(output.shape, geometry)
    for position, place in positions(output.shape, geometry):
        squares += np.maximum(room[place], 0).astype(np.float64) ** 2
        np.copyto(output, room[place], where=first == position)
    np.divide(squares, total, out=squares, where=total != 0)
    np.copyto(output, squares, where=total != 0, casting="same_kind")


@computes(PoolingBackward, lambda request: request.geometry.method != "average")
def backward_picked(
    *,
    output_gradient: Floats,
    kept: Array,
    input_gradient: Floats,
    geometry: PoolingGeometry,
    output: Floats | None = None,
) -> None:
    """The gradient of an output goes to the element from which it came. Windows may overlap, so gradients add up.

    With a ReLU before the pooling, the gradient is multiplied by the ReLU's derivative, 0 where the output is ≤ 0.
    """
    if output is not None:
        output_gradient = output_gradient * np.where(output <= 0, 0, 1).astype(output.dtype)
    picked = _kept(kept, output_gradient.shape)
    room = padded(np.zeros_like(input_gradient), output_gradient.shape, geometry, 0)
    for position, place in positions(output_gradient.shape, geometry):
        room[place] += np.where(picked == position, output_gradient, 0)
    input_gradient[...] = inside(room, input_gradient.shape, geometry)


@computes(PoolingForward, _takes("average"))
def forward_average(*, input0: Floats, output: Floats, geometry: PoolingGeometry) -> None:
    """The sum of every window divided by the number of its elements that count."""
    room = padded(input0, output.shape, geometry, 0)
    total = np.zeros(output.shape)
    for _, place in positions(output.shape, geometry):
        total += room[place]
    output[...] = total / _divisors(input0.shape, output.shape, geometry)


@computes(PoolingBackward, _takes("average"))
def backward_average(*, output_gradient: Floats, input_gradient: Floats, geometry: PoolingGeometry) -> None:
    """The gradient of an output, divided by the number of elements, goes to every element of its window."""
    divisors = _divisors(input_gradient.shape, output_gradient.shape, geometry)
    share = output_gradient / divisors.astype(output_gradient.dtype)
    room = padded(np.zeros_like(input_gradient), output_gradient.shape, geometry, 0)
    for _, place in positions(output_gradient.shape, geometry):
        room[place] += share
    input_gradient[...] = inside(room, input_gradient.shape, geometry)


def _divisors(x: Shape, output: Shape, geometry: PoolingGeometry) -> NDArray[np.int64]:
    """Number of elements that count in each window: (H', W')."""
    g, counts = geometry, []
    for size, windows, k, s, d, padding in zip(
        x[2:], output[2:], g.kernel, g.stride, g.dilation, g.padding, strict=True
    ):
        places = np.arange(windows)[:, np.newaxis] * s - padding[0] + np.arange(k) * d
        before, after = padding if g.count_padding else (0, 0)
        counts.append(np.sum((places >= -before) & (places < size + after), axis=1))
    divisors: NDArray[np.int64] = functools.reduce(np.multiply.outer, counts)
    return divisors


def _total(room: Floats, output: Shape, geometry: PoolingGeometry) -> NDArray[np.float64]:
    """Σ max(x, 0) of every window, in float64."""
    total = np.zeros(output)
    for _, place in positions(output, geometry):
        total += np.maximum(room[place], 0)
    return total


def _first_inside(output: Shape, geometry: PoolingGeometry) -> NDArray[np.int32]:
    """Index of every window's first position that is on the input instead of the padding before it."""
    firsts = [
        np.maximum(0, -(-(before - np.arange(windows) * stride) // dilation))
        for windows, stride, dilation, (before, _) in zip(
            output[2:], geometry.stride, geometry.dilation, geometry.padding, strict=True
        )
    ]
    indices = np.ravel_multi_index(np.ix_(*firsts), geometry.kernel)
    return np.broadcast_to(indices, output).astype(KEPT_TYPE)


def _kept(kept: Array, output: Shape) -> NDArray[np.int32]:
    view: NDArray[np.int32] = kept.view(KEPT_TYPE).reshape(output)
    return view
