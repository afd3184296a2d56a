"""Windows over any number of spatial axes, for convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossbow.kernels.reference.prepare import Floats
from crossbow.kernels.requests import WindowGeometry
from crossbow.types import Shape


def padded(x: Floats, output: Shape, geometry: WindowGeometry, value: float) -> Floats:
    """The input with its padding, which is extended after the input if the last windows need it."""
    g = geometry
    axes = zip(x.shape[2:], output[2:], g.stride, g.extent, g.padding, strict=True)
    widths = [(p, max(0, s * (windows - 1) + extent - p - size)) for size, windows, s, extent, (p, _) in axes]
    result: Floats = np.pad(x, ((0, 0), (0, 0), *widths), constant_values=value)
    return result


def inside(padded: Floats, shape: Shape, geometry: WindowGeometry) -> Floats:
    """The part of `padded` that is the input."""
    places = [slice(p, p + size) for size, (p, _) in zip(shape[2:], geometry.padding, strict=True)]
    return padded[(slice(None), slice(None), *places)]


def positions(output: Shape, geometry: WindowGeometry) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Every position in the window, row-major: its index, and its location in `padded` for all windows at once."""
    g = geometry
    for number, position in enumerate(np.ndindex(*g.kernel)):
        axes = zip(position, output[2:], g.stride, g.dilation, strict=True)
        places = [slice(u * d, u * d + s * (windows - 1) + 1, s) for u, windows, s, d in axes]
        yield number, (slice(None), slice(None), *places)
