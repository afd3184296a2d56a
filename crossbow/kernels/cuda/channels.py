"""Division of a tensor among blocks, for kernels with variables per channel (batch normalisation, learned factors)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, Argument, CudaKernel, Launch, Structure, power_of_two
from crossbow.types import ConfigurationError, Layout, Shape, Tensor

GRID = 1024
"""Number of blocks that suffices for a large GPU. It is the same for every GPU, and so is the order of the sums."""
CHUNK = 8
"""Number of elements that a thread takes at a time in single precision, as in sources/channels.cuh. A channel with
fewer elements is not divided among threads."""
SIDE_BY_SIDE = 32
"""Minimum number of channels of a block, if neighbouring channels are adjacent in memory."""
SUMS = 16
"""Bytes of the two sums of a thread."""
SECTOR = 32
"""Bytes: a block that takes all values of its channels reads at least as many adjacent ones."""
MOST_THREADS = 1024
"""Number of threads of a block that takes all values of its channels, if these are many."""
MOST_OF_A_BLOCK = 2**16
"""Maximum number of elements of such a block, which reads them twice. More would take longer than two kernels that use
the whole GPU. An estimate, which has not been measured."""


@dataclass(frozen=True)
class _Axis:
    """An axis of a tensor in memory."""

    size: int
    stride: int
    number: int | None
    """Distance between the variables of neighbours; None if they share one."""


class Channels:
    """A tensor whose elements have variables by their position on some axes, divided among blocks."""

    def __init__(self, x: Tensor, axis: int, variable: Shape, *, whole: bool = False) -> None:
        """variable: the shape of the variables, which lie along the axes from `axis` on. whole: whether one block takes
        all values of a channel."""
        self.dtype = x.dtype
        axes = _axes(x, axis, variable)
        own, common = [a for a in axes if a.number is not None], [a for a in axes if a.number is None]
        if max(len(own), len(common)) > 2:  # which needs variables for each example
            received = f"axis={axis} and {variable} of {x.shape}, {x.layout.value}"
            raise ConfigurationError(f"Cuda: variables have at most two runs of axes in memory. Received: {received}")
        major, minor = [_Axis(1, 0, 0)] * (2 - len(own)) + own
        outer, inner = [_Axis(1, 0, None)] * (2 - len(common)) + common
        self.count, values = major.size * minor.size, outer.size * inner.size
        least = 1  # channels of a block
        if minor.stride == 1 and self.count > 1:
            least = min(power_of_two(self.count), SECTOR // x.dtype.itemsize if whole else SIDE_BY_SIDE)
        self.elements_of_whole = least * values
        """Number of elements of a block that takes all values of its channels."""
        self.threads = BLOCK
        if whole:
            self.threads = min(max(BLOCK, power_of_two(-(-least * values // CHUNK))), MOST_THREADS)
        free = self.threads // min(power_of_two(values), self.threads)  # how many channels' values fit into a block
        width = min(power_of_two(self.count), max(free, least))
        lanes, self._tiles = self.threads // width, -(-self.count // width)
        parts = 1 if whole else max(1, min(-(-GRID // self._tiles), values // (lanes * CHUNK)))
        part = -(-values // (parts * lanes)) * lanes
        self.parts = -(-values // part)
        division = (self.count, values, width, self.parts, part)
        by_channel = (minor.size, major.stride, minor.stride, major.number or 0, minor.number or 0)
        numbers = (*division, *by_channel, inner.size, outer.stride, inner.stride)
        self._structure = Structure(*numbers)

    @property
    def workspace(self) -> int:
        """Bytes of the sums of all parts."""
        return self.parts * 2 * self.count * 8

    def each(
        self, file: str, name: str, *arguments: Argument, more: tuple[np.generic, ...] = (), sums: bool = False
    ) -> Launch:
        """Return the call of a kernel of a file over all elements; `sums`: whether its threads add up. The kernel
        receives the division among blocks between `arguments` and `more`."""
        return self._call(file, name, self._tiles * self.parts, arguments, more, sums)

    def totals(self, file: str, name: str, *arguments: Argument) -> Launch:
        """Return the call of a kernel over all channels, which adds up the sums of the parts."""
        return self._call(file, name, self._tiles, arguments, (), sums=True)

    def _call(
        self,
        file: str,
        name: str,
        blocks: int,
        arguments: tuple[Argument, ...],
        more: tuple[np.generic, ...],
        sums: bool,
    ) -> Launch:
        kernel = CudaKernel(file, name, self.dtype)
        shared = self.threads * SUMS if sums else 0
        return kernel.blocks(blocks, *arguments, self._structure, *more, threads=self.threads, shared=shared)


def _axes(x: Tensor, axis: int, variable: Shape) -> list[_Axis]:
    """The axes in memory order, outermost first. Neighbours are joined if possible; axes of size 1 are left out."""
    numbers: dict[int, int] = {axis + d: math.prod(variable[d + 1 :]) for d in range(len(variable))}
    order = (0, 2, 3, 1) if x.layout is Layout.CHANNELS_LAST else range(len(x.shape))
    axes: list[_Axis] = []
    stride = x.elements
    for dimension in order:
        size, number = x.shape[dimension], numbers.get(dimension)
        stride //= size
        if size == 1:
            continue
        before = axes[-1] if axes else None
        if before is not None and before.number == (None if number is None else size * number):
            axes[-1] = _Axis(before.size * size, stride, number)
        else:
            axes.append(_Axis(size, stride, number))
    return axes
