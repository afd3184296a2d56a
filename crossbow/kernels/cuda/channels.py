"""Division of a tensor among blocks, for kernels with variables per channel (batch normalisation, learned factors)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, PACK, CudaKernel, Launch, Structure, power_of_two
from crossbow.types import Array, ConfigurationError, Layout, Shape, Tensor, address

GRID = 1024
"""Number of blocks that suffices for a large GPU. It is the same for every GPU, so that the order of the sums is also
the same."""
CHUNK = 8
"""Number of elements that a thread takes at a time in single precision, as in sources/channels.cuh. A channel with
fewer elements is not divided among threads."""
SIDE_BY_SIDE = 32
"""Minimum number of channels of a block, if neighbouring channels are adjacent in memory."""
SUMS = 16
"""Bytes of the two sums of a thread."""
SECTOR = 32
"""Minimum number of adjacent bytes that a block reads if it processes all values of its channels."""
MOST_THREADS = 1024
"""Maximum number of threads of a block that processes all values of its channels."""
MOST_OF_A_BLOCK = 2**16
"""Maximum number of elements of such a block, which reads them twice. With more elements, it would take longer than two
kernels that use the whole GPU. This is an estimate, not a measurement."""


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
        """variable: the shape of the variables, which lie along the axes from `axis` on. whole: whether one block
        processes all values of a channel."""
        self.dtype = x.dtype
        axes = _axes(x, axis, variable)
        own, common = [a for a in axes if a.number is not None], [a for a in axes if a.number is None]
        if max(len(own), len(common)) > 2:  # only with separate variables for each example
            received = f"axis={axis} and {variable} of {x.shape}, {x.layout.value}"
            raise ConfigurationError(f"Cuda: variables have at most two runs of axes in memory. Received: {received}")
        major, minor = [_Axis(1, 0, 0)] * (2 - len(own)) + own
        outer, inner = [_Axis(1, 0, None)] * (2 - len(common)) + common
        self.count, values = major.size * minor.size, outer.size * inner.size
        least = 1  # channels of a block
        if minor.stride == 1 and self.count > 1:
            least = min(power_of_two(self.count), SECTOR // x.dtype.itemsize if whole else SIDE_BY_SIDE)
        self.elements_of_whole = least * values
        """Number of elements of a block that processes all values of its channels."""
        self.threads = BLOCK
        if whole:
            self.threads = min(max(BLOCK, power_of_two(-(-least * values // CHUNK))), MOST_THREADS)
        pack = PACK // x.dtype.itemsize
        self.values, self.channels = _run(major, minor, outer, inner, pack, whole=whole)
        """Numbers of adjacent values, and of adjacent channels, that a thread processes at once: VALUES and CHANNELS of
        the sources."""
        run = self.values * self.channels
        self._takes_packs = run > 1
        # From here on, all numbers and distances count runs.
        count, values, least = self.count // self.channels, values // self.values, max(1, least // self.channels)
        free = self.threads // min(power_of_two(values), self.threads)  # channels whose values fit in a block
        width = min(power_of_two(count), max(free, least))
        lanes, self._tiles = self.threads // width, -(-count // width)
        most = values // (lanes * max(1, CHUNK // run))
        parts = 1 if whole else max(1, min(-(-GRID // self._tiles), most))
        part = -(-values // (parts * lanes)) * lanes
        self.parts = -(-values // part)
        division = (count, values, width, self.parts, part)
        strides = (major.stride // run, minor.stride * self.channels // run)
        by_channel = (minor.size // self.channels, *strides, (major.number or 0) // self.channels, minor.number or 0)
        by_value = (inner.size // self.values, outer.stride // run, inner.stride * self.values // run)
        self._elements = x.elements
        self._structure = Structure(*division, *by_channel, *by_value)

    @property
    def workspace(self) -> int:
        """Bytes of the sums of all parts."""
        return self.parts * 2 * self.count * 8

    def each(
        self, file: str, name: str, *arguments: Array | None, more: tuple[np.generic, ...] = (), sums: bool = False
    ) -> Launch:
        """Return the call of a kernel of a file over all elements; `sums`: whether its threads add up. The kernel
        receives the division among blocks between `arguments` and `more`."""
        return self._call(file, name, self._tiles * self.parts, arguments, more, sums)

    def totals(self, file: str, name: str, *arguments: Array | None) -> Launch:
        """Return the call of a kernel over all channels, which adds up the sums of the parts."""
        return self._call(file, name, self._tiles, arguments, (), sums=True)

    def _call(
        self,
        file: str,
        name: str,
        blocks: int,
        arguments: tuple[Array | None, ...],
        more: tuple[np.generic, ...],
        sums: bool,
    ) -> Launch:
        for array in arguments:
            is_tensor = array is not None and array.dtype == self.dtype and array.size == self._elements
            if array is not None and is_tensor and self._takes_packs and address(array) % PACK:
                raise ValueError(f"expected tensors at multiples of {PACK} bytes. Received: {address(array):#x}")
        kernel = CudaKernel(file, name, self.dtype, constants=(("VALUES", self.values), ("CHANNELS", self.channels)))
        shared = self.threads * SUMS if sums else 0
        return kernel.blocks(blocks, *arguments, self._structure, *more, threads=self.threads, shared=shared)


def _run(major: _Axis, minor: _Axis, outer: _Axis, inner: _Axis, pack: int, *, whole: bool) -> tuple[int, int]:
    """The number of adjacent values, and of adjacent channels, that a thread takes at once: a pack of one or the other.

    Tensors begin at multiples of a pack. Blocks of whole channels have few threads for each channel, so their threads
    process single channels.
    """
    axes = (major, minor, outer, inner)
    if inner.stride == 1 and inner.size % pack == 0:
        return (pack, 1) if all(axis is inner or axis.stride % pack == 0 for axis in axes) else (1, 1)
    if not whole and minor.stride == 1 and minor.number == 1 and minor.size % pack == 0 and not major.number:
        return (1, pack) if all(axis is minor or axis.stride % pack == 0 for axis in axes) else (1, 1)
    return 1, 1


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
