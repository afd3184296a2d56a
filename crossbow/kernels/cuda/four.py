"""Tensors as four axes with strides, as `Four` of sources/common.cuh describes them to a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, Structure
from crossbow.kernels.strides import strides
from crossbow.types import Shape, Tensor

MANY_LINES = 8192
"""Number of threads, each with its own line, that keeps a GPU busy."""


def four(tensor: Tensor) -> Structure:
    """A tensor in logical order, with axes joined if they are contiguous.

    `place` takes a logical number, so tensors of one size may have different shapes and layouts.
    """
    return structure(joined(tensor.shape, strides(tensor)))


def four_around(tensor: Tensor, axis: int) -> tuple[Structure, np.int32]:
    """A tensor in logical order with one axis kept separate, and that axis's number among the four, for `line`.

    The order of the lines does not depend on the layout.
    """
    axis %= len(tensor.shape)
    sizes, steps = tensor.shape, strides(tensor)
    before, after = (joined(sizes[part], steps[part]) for part in (slice(axis), slice(axis + 1, None)))
    return structure([*before, (sizes[axis], steps[axis]), *after]), np.int32(len(before))


def images(tensor: Tensor) -> Structure:
    """(N, C, H, W) of a tensor with at most four dimensions. Missing dimensions at the end have size 1."""
    return structure(list(zip(tensor.shape, strides(tensor), strict=True)))


def joined(sizes: Shape, steps: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of the axes, in order, with contiguous neighbours joined and axes of size 1 left out.

    >>> joined((2, 3, 4, 5), (60, 1, 15, 3))
    [(2, 60), (3, 1), (20, 3)]
    """
    axes: list[tuple[int, int]] = []
    for size, step in zip(sizes, steps, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * step:
            axes[-1] = (axes[-1][0] * size, step)
        else:
            axes.append((size, step))
    return axes


def structure(axes: Sequence[tuple[int, int]]) -> Structure:
    """Axes of a tensor, with sizes and strides, for a kernel. Raises ValueError for more than four."""
    if len(axes) > 4:
        raise ValueError(f"expected at most four axes. Received: {axes}")
    filled = [*axes, *[(1, 0)] * (4 - len(axes))]
    return Structure(*(size for size, _ in filled), *(step for _, step in filled))


def threads_per_line(tensor: Tensor, axis: int) -> int:
    """The number of threads of a block that share a line along an axis; 1 means that each thread has its own line.

    Threads that share a line read adjacent elements if the line is contiguous in memory; threads with separate lines do
    so if the lines are adjacent.
    """
    length = tensor.shape[axis]
    lines = tensor.elements // max(length, 1)
    if length < 64 or (strides(tensor)[axis] > 1 and lines >= MANY_LINES):
        return 1
    return min(BLOCK, 1 << (length - 1).bit_length() - 1)
