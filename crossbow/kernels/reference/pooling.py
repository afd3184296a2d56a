"""Two-dimensional pooling and its gradients: one pass over the output for each position in the window."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import PoolingGeometry
from crossbow.kernels.reference.prepare import Floats
from crossbow.types import Array, Shape

KEPT_TYPE = np.dtype(np.int32)
"""What max pooling keeps for its gradient: for every output, in NCHW order, the position u · kw + v in the window."""


def forward_max(*, input0: Floats, output: Floats, geometry: PoolingGeometry, kept: Array | None = None) -> None:
    """The largest element of every window; of equal ones the first. NaN is larger than everything."""
    padded = _padded(input0, output.shape, geometry, -np.inf)
    output[...] = -np.inf
    first = np.zeros(output.shape, KEPT_TYPE)
    for position, place in _positions(output.shape, geometry):
        candidate = padded[place]
        larger = (candidate > output) | np.isnan(candidate)
        np.copyto(output, candidate, where=larger)
        np.copyto(first, position, where=larger)
    if kept is not None:
        _first(kept, output.shape)[...] = first


def backward_max(*, output_gradient: Floats, kept: Array, input_gradient: Floats, geometry: PoolingGeometry) -> None:
    """The gradient of an output goes to the element it came from; windows may overlap, so gradients add up."""
    first = _first(kept, output_gradient.shape)
    padded = _padded(np.zeros_like(input_gradient), output_gradient.shape, geometry, 0)
    for position, place in _positions(output_gradient.shape, geometry):
        padded[place] += np.where(first == position, output_gradient, 0)
    input_gradient[...] = _inside(padded, input_gradient.shape, geometry)


def forward_average(*, input0: Floats, output: Floats, geometry: PoolingGeometry) -> None:
    """The sum of every window by the number of elements that count in it."""
    padded = _padded(input0, output.shape, geometry, 0)
    output[...] = 0
    for _, place in _positions(output.shape, geometry):
        output += padded[place]
    output /= _divisors(input0.shape, output.shape, geometry).astype(output.dtype)


def backward_average(*, output_gradient: Floats, input_gradient: Floats, geometry: PoolingGeometry) -> None:
    """The gradient of an output, by the number of elements, goes to every element of its window."""
    divisors = _divisors(input_gradient.shape, output_gradient.shape, geometry)
    share = output_gradient / divisors.astype(output_gradient.dtype)
    padded = _padded(np.zeros_like(input_gradient), output_gradient.shape, geometry, 0)
    for _, place in _positions(output_gradient.shape, geometry):
        padded[place] += share
    input_gradient[...] = _inside(padded, input_gradient.shape, geometry)


def _padded(x: Floats, output: Shape, geometry: PoolingGeometry, value: float) -> Floats:
    """The input inside its padding, which is as wide below and on the right as the last windows need."""
    spans = [s * (windows - 1) + k for windows, s, k in zip(output[2:], geometry.stride, geometry.kernel, strict=True)]
    widths = [(p, max(0, span - p - size)) for span, p, size in zip(spans, geometry.padding, x.shape[2:], strict=True)]
    padded: Floats = np.pad(x, ((0, 0), (0, 0), *widths), constant_values=value)
    return padded


def _inside(padded: Floats, shape: Shape, geometry: PoolingGeometry) -> Floats:
    """The input's part of `padded`."""
    (top, left), (height, width) = geometry.padding, shape[2:]
    return padded[:, :, top : top + height, left : left + width]


def _positions(output: Shape, geometry: PoolingGeometry) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """For every position in the window, row by row: its number, and where it lies for all windows at once."""
    (kh, kw), (sh, sw), (rows, columns) = geometry.kernel, geometry.stride, output[2:]
    for u in range(kh):
        for v in range(kw):
            down, right = slice(u, u + sh * (rows - 1) + 1, sh), slice(v, v + sw * (columns - 1) + 1, sw)
            yield u * kw + v, (slice(None), slice(None), down, right)


def _divisors(x: Shape, output: Shape, geometry: PoolingGeometry) -> NDArray[np.int64]:
    """How many elements count in each window: (H', W')."""
    g, counts = geometry, []
    for size, windows, k, s, p in zip(x[2:], output[2:], g.kernel, g.stride, g.padding, strict=True):
        begin = np.arange(windows) * s - p
        border = p if g.count_padding else 0
        counts.append(np.minimum(begin + k, size + border) - np.maximum(begin, -border))
    divisors: NDArray[np.int64] = counts[0][:, np.newaxis] * counts[1]
    return divisors


def _first(kept: Array, output: Shape) -> NDArray[np.int32]:
    view: NDArray[np.int32] = kept.view(np.int32).reshape(output)
    return view
