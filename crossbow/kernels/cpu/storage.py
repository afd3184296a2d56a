"""Layouts of variables in the flat vector of a replica, other than row-major."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import Variable
from crossbow.types import Array, Shape


@dataclass(frozen=True)
class BlockedStorage:
    """A layout with outer strides and inner blocks, as oneDNN describes memory.

    The element at indices i of `sizes` (the variable's `shape`, possibly with more dimensions, as for groups) is at
    Σ_d (i_d div B_d) · strides_d + its position in the inner blocks, where B_d is the product of dimension d's blocks.
    """

    shape: Shape
    sizes: Shape
    strides: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    """(dimension, size), outermost first."""
    elements: int
    descriptor: Any = field(default=None, repr=False, compare=False)
    """oneDNN's descriptor, if oneDNN chose the storage."""

    @functools.cached_property
    def _places(self) -> NDArray[np.int64]:
        """Position of every element in the flat vector, in row-major order."""
        places = np.zeros(self.sizes, np.int64)
        for dimension, size in enumerate(self.sizes):
            index = np.arange(size)
            place = np.zeros(size, np.int64)
            step, done = 1, 1
            for axis, block in reversed(self.blocks):
                if axis == dimension:
                    place += index // done % block * step
                    done *= block
                step *= block
            place += index // done * self.strides[dimension]
            places += place.reshape([-1 if axis == dimension else 1 for axis in range(len(self.sizes))])
        return places.reshape(-1)

    def pack(self, plain: Array, flat: Array) -> None:
        flat[...] = 0
        flat[self._places] = plain.reshape(-1)

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat[self._places].reshape(self.shape)

    def __str__(self) -> str:
        """The layout in oneDNN's notation: dimensions from the outermost one on, capital if blocked, then the
        blocks."""
        blocked = {dimension for dimension, _ in self.blocks}
        order = sorted(range(len(self.sizes)), key=lambda d: (-self.strides[d], d))
        outer = "".join(chr(ord("A" if d in blocked else "a") + d) for d in order)
        return outer + "".join(f"{size}{chr(ord('a') + dimension)}" for dimension, size in self.blocks)


def strided_storage(shape: Shape, sizes: Shape, strides: Sequence[int]) -> BlockedStorage:
    """The storage of a variable of this shape, viewed with these sizes, with strides and without blocks."""
    return BlockedStorage(shape, sizes, tuple(strides), (), math.prod(sizes))


def lies(variable: Variable, sizes: Shape, strides: Sequence[int]) -> bool:
    """Whether a variable, viewed with these sizes, has these strides (row-major without a storage).

    The stride along an axis of size 1 does not matter.
    """
    own = variable.storage
    if isinstance(own, BlockedStorage):
        if own.blocks or own.sizes != sizes:
            return False
        distances: Sequence[int] = own.strides
    else:
        distances = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    axes = zip(sizes, distances, strides, strict=True)
    return all(size == 1 or distance == stride for size, distance, stride in axes)


def outputs_last(sizes: Shape) -> tuple[int, ...]:
    """The strides of a convolution's weights for our own kernels: height, width, channels, (groups,) outputs, from the
    slowest to the fastest. sizes: (outputs, channels, kh, kw), optionally with groups first."""
    *leading, channels, height, width = range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for axis in reversed((height, width, channels, *leading)):
        strides[axis] = step
        step *= sizes[axis]
    return tuple(strides)
