"""The tiles of Winograd's convolutions: their size, their blocks, and whether they make a convolution faster than the
library's.

The choice compares estimates of the work, in products of two numbers. Their constants were fitted to measured times of
convolutions, on processors with AVX2 and with AVX-512.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from crossbow.kernels.cpu.simd.image_convolution import ImageConvolution
from crossbow.kernels.cpu.simd.tile import LANES

TILES = {3: (4, 2), 5: (2,)}
"""Candidate numbers of outputs in a row of a tile, by kernel size. Larger tiles would lose digits. 4×4 outputs of a 3×3
kernel take 1.2 to 1.5 times as long in tiles of 2×2, with a third of the error (`python -m
benchmarks.winograd_tiles`)."""
BLOCK = 64
"""Approximate number of tiles in a block: enough that products are worth their calls, few enough for the cache."""
MANY_WEIGHTS, LARGE_BLOCK = 2**16, 256
"""Minimum product of channels and outputs for large blocks, and approximate number of tiles in them. Each block reads
all points of the weights, and if there are many, from memory."""

CACHE, IN_CACHE = 2**20, 8
"""Size of a core's cache in bytes; cost of transforming a weight to a point and reading it, in products, if all points
of the weights fit in the cache."""
LARGER_GAIN = 1.2
"""Minimum estimated gain of larger tiles over the smallest."""


@dataclass(frozen=True)
class Costs:
    """The costs that depend on the size of vectors, in products, as measured."""

    transform: int
    """Cost of the transform of a number of the input or output to or from a point."""
    in_memory: int
    """Cost of transforming a weight to a point and reading it, if the points do not fit in the cache."""
    gain: float
    """Minimum estimated gain before Winograd is chosen."""
    padding: bool
    """Whether products of padding are counted in the library's work, as its time suggests."""


AVX2 = Costs(transform=4, in_memory=25, gain=1.05, padding=True)
AVX512 = Costs(transform=6, in_memory=40, gain=1.15, padding=False)
COSTS = AVX512 if LANES == 16 else AVX2


@dataclass(frozen=True)
class Tiling:
    """A convolution's output in tiles, in blocks of whole rows of tiles. A block may extend over several images."""

    sizes: ImageConvolution
    outputs: int
    """Number of outputs in a row of a tile."""

    @property
    def kernel(self) -> int:
        return self.sizes.kernel[0]

    @property
    def side(self) -> int:
        """Number of points in a row."""
        return self.outputs + self.kernel - 1

    @property
    def down(self) -> int:
        return -(-self.sizes.rows // self.outputs)

    @property
    def across(self) -> int:
        return -(-self.sizes.columns // self.outputs)

    @property
    def rows(self) -> int:
        """Number of rows of tiles, in all images."""
        return self.sizes.input.images * self.down

    @property
    def block(self) -> int:
        """Number of rows of tiles in a block. The last block may have fewer."""
        tiles = LARGE_BLOCK if self.sizes.channels * self.sizes.outputs >= MANY_WEIGHTS else BLOCK
        blocks = -(-self.rows // max(1, tiles // self.across))
        return -(-self.rows // blocks)

    @property
    def in_cache(self) -> bool:
        """Whether the weights' points fit in the cache."""
        return 4 * self.side**2 * self.sizes.channels * self.sizes.outputs <= CACHE

    @property
    def work(self) -> float:
        """Estimated work, in products of two numbers."""
        c, o, tiles = self.sizes.channels, self.sizes.outputs, self.rows * self.across
        weights = IN_CACHE if self.in_cache else COSTS.in_memory
        return self.side**2 * (tiles * (c * o + COSTS.transform * (c + o)) + weights * c * o)


def smallest_tiling(sizes: ImageConvolution) -> Tiling:
    """The smallest tiles, which have the smallest errors."""
    return Tiling(sizes, TILES[sizes.kernel[0]][-1])


def larger_tiles_pay(tiling: Tiling, smallest: Tiling) -> bool:
    """Whether larger tiles save enough work to justify their larger errors."""
    return LARGER_GAIN * tiling.work <= smallest.work


@functools.cache
def best_tiling(sizes: ImageConvolution) -> Tiling | None:
    """The tiles with the least work, or None if the library needs less work."""
    (kernel, width), around = sizes.kernel, max(map(max, sizes.input.padding))
    if kernel != width or kernel not in TILES or sizes.stride != (1, 1) or sizes.dilation != 1 or around >= kernel:
        return None
    if min(sizes.channels, sizes.outputs) < LANES:
        return None
    smallest = smallest_tiling(sizes)
    larger = (Tiling(sizes, outputs) for outputs in TILES[kernel][:-1])
    tried = [smallest, *(tiling for tiling in larger if larger_tiles_pay(tiling, smallest))]
    best = min(tried, key=lambda tiling: tiling.work)
    return best if COSTS.gain * best.work <= _library_work(sizes) else None


def _library_work(sizes: ImageConvolution) -> int:
    """Number of products of a direct convolution, in whole vectors of channels."""
    x = sizes.input
    taps = x.images
    for size, count, kernel, (before, _) in zip(
        (x.height, x.width), (sizes.rows, sizes.columns), sizes.kernel, x.padding, strict=True
    ):
        inside = sum(min(first + kernel, size) - max(first, 0) for first in range(-before, count - before))
        taps *= count * kernel if COSTS.padding else inside
    return taps * -(-sizes.channels // LANES) * LANES * -(-sizes.outputs // LANES) * LANES
