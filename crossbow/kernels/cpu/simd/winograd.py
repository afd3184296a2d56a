"""Convolutions of 3×3 and 5×5 by Winograd's minimal filtering: with two to four times fewer products than windows have.

The output is cut into tiles of m×m, each computed from the (m + r − 1)² pixels below it, as Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks" (2015). With A, G and B as in `winograd_transforms.py`, for every tile t
and every point p of a grid of (m + r − 1)²:

    V[p, t] = (Bᵀ x[t] B)[p]        U[p] = (G w Gᵀ)[p]        M[p, t] = V[p, t] · U[p]        y[t] = Aᵀ M[:, t] A

M[p] is a product of matrices, tiles × channels and channels × outputs, and takes most of the time. The gradients are
the transposes of that:

    D[p, t] = (A dy[t] Aᵀ)[p]       P[p] = Σ_t V[p, t]ᵀ · D[p, t]       dw = Gᵀ P G
                                    Q[p, t] = D[p, t] · U[p]ᵀ           dx = Σ_t B Q[:, t] Bᵀ, where t lies

A block of tiles at a time passes through all steps, so that its points stay in the cache. One thread only.

Rounding: with 6 points in a row the errors are five to ten times those of a sum of products, with 4 about as large as
those (docs/numerics.md). They are relative to the largest number of a tile's input, not of a window: a number that is
not finite, or huge, spreads to every output of its tiles, and infinity becomes NaN.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from crossbow.kernels.compiled import inlined, int64_at, native
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import WINOGRAD
from crossbow.kernels.cpu.simd import image_convolution as sizing
from crossbow.kernels.cpu.simd import processor, tile
from crossbow.kernels.cpu.simd import winograd_transforms as transforms
from crossbow.kernels.cpu.simd.image_convolution import (
    Convolution,
    ImageConvolution,
    PaddedImages,
    chosen_storage,
    clear_image,
    image_with_padding,
    image_without_padding,
    known_sizes,
    own_sizes,
)
from crossbow.kernels.cpu.simd.tile import LANES, Product, multiply_chunk
from crossbow.kernels.cpu.simd.winograd_transforms import run_transform, transform_slots, transpose_square
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConvolutionBackwardData, ConvolutionBackwardWeights, ConvolutionForward
from crossbow.types import address

TILES = {3: (4, 2), 5: (2,)}
"""For a kernel, the tiles that are tried; larger ones would lose digits. 4×4 outputs of a 3×3 kernel take 1.2 to 1.5
times as long in tiles of 2×2, with a third of the error (`python -m benchmarks.winograd_tiles`)."""
BLOCK = 64
"""Tiles of a block, about: so many that a product is worth its call, so few that the points lie in the cache."""


TRANSFORM = 6
"""Products that take as long as the transform of a number of input or output to, or from, a point."""
CACHE, IN_CACHE, IN_MEMORY = 2**20, 8, 40
"""Bytes of a core's cache; products that take as long as the transform of a weight to a point, and reading it there:
where all of them lie in the cache, and where not."""
GAIN = 1.15
"""By what the work has to be less than with windows."""
LARGER_GAIN = 1.2
"""By what the work of larger tiles has to be less than the smallest ones'."""


@dataclass(frozen=True)
class Tiling:
    """A convolution's output in tiles, in blocks of whole rows of tiles; a block may go over several images."""

    sizes: ImageConvolution
    outputs: int
    """Of a tile, in a row."""

    @property
    def kernel(self) -> int:
        return self.sizes.kernel[0]

    @property
    def side(self) -> int:
        """Points in a row."""
        return self.outputs + self.kernel - 1

    @property
    def down(self) -> int:
        return -(-self.sizes.rows // self.outputs)

    @property
    def across(self) -> int:
        return -(-self.sizes.columns // self.outputs)

    @property
    def rows(self) -> int:
        """Of tiles, in all images."""
        return self.sizes.input.images * self.down

    @property
    def block(self) -> int:
        """Rows of tiles in a block; the last one may have fewer."""
        blocks = -(-self.rows // max(1, BLOCK // self.across))
        return -(-self.rows // blocks)

    @property
    def in_cache(self) -> bool:
        """Whether the weights' points are."""
        return 4 * self.side**2 * self.sizes.channels * self.sizes.outputs <= CACHE

    @property
    def work(self) -> float:
        """In products of two numbers."""
        c, o, tiles = self.sizes.channels, self.sizes.outputs, self.rows * self.across
        weights = IN_CACHE if self.in_cache else IN_MEMORY
        return self.side**2 * (tiles * (c * o + TRANSFORM * (c + o)) + weights * c * o)


def gains(sizes: ImageConvolution) -> bool:
    """Whether such a convolution is faster here than with the library."""
    return processor.measured() and _tiling(sizes) is not None


def _taken(request: Convolution) -> bool:
    sizes = own_sizes(request)
    return sizes is not None and gains(sizes)


def larger_tiles_pay(tiling: Tiling, smallest: Tiling) -> bool:
    """Whether tiles that are not the smallest save enough work for their larger errors."""
    return LARGER_GAIN * tiling.work <= smallest.work


@functools.cache
def _tiling(sizes: ImageConvolution) -> Tiling | None:
    """The tiles with the least work, where that is less than the library's."""
    (kernel, width), around = sizes.kernel, max(map(max, sizes.input.padding))
    if kernel != width or kernel not in TILES or sizes.stride != (1, 1) or sizes.dilation != 1 or around >= kernel:
        return None
    if min(sizes.channels, sizes.outputs) < LANES:
        return None
    *larger, smallest = (Tiling(sizes, outputs) for outputs in TILES[kernel])
    tried = [smallest, *(tiling for tiling in larger if larger_tiles_pay(tiling, smallest))]
    best = min(tried, key=lambda tiling: tiling.work)
    return best if GAIN * best.work <= _library_work(sizes) else None


def _library_work(sizes: ImageConvolution) -> int:
    """Products with windows, in whole vectors of channels, without those of padding."""
    x = sizes.input
    taps = x.images
    for size, count, kernel, (before, _) in zip(
        (x.height, x.width), (sizes.rows, sizes.columns), sizes.kernel, x.padding, strict=True
    ):
        taps *= sum(min(first + kernel, size) - max(first, 0) for first in range(-before, count - before))
    return taps * -(-sizes.channels // LANES) * LANES * -(-sizes.outputs // LANES) * LANES


@WINOGRAD.kernel(ConvolutionForward, _taken)
def forward(request: ConvolutionForward) -> PreparedKernel:
    sizes, bias = known_sizes(request), request.bias is not None
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    places = ("input0", "weights", "output", *blocks.reserve(steps), "bias" if bias else None)
    zeros = np.zeros(sizes.outputs, np.float32)
    inside, outside = blocks.input_slots, blocks.output_slots(0.0 if request.relu else -np.inf)
    products = blocks.products(sizes.channels, sizes.outputs)
    slots = (address(zeros), *blocks.slots, *inside, *outside, *blocks.weights_slots, *products)
    steps.add_pass("pass", forward_pass, places, *slots, references=(zeros,))
    return steps.prepared(storages=chosen_storage(request))


@WINOGRAD.kernel(ConvolutionBackwardData, _taken)
def backward_data(request: ConvolutionBackwardData) -> PreparedKernel:
    sizes = known_sizes(request)
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    transposed = steps.reserve(4 * sizes.kernel[0] ** 2 * sizes.channels * sizes.outputs)
    places = ("output_gradient", "weights", "input_gradient", *blocks.reserve(steps), transposed)
    inside, outside = blocks.input_gradient_slots, blocks.output_gradient_slots
    products = blocks.products(sizes.outputs, sizes.channels)
    steps.add_pass("pass", data_pass, places, 0, *blocks.slots, *inside, *outside, *blocks.weights_slots, *products)
    return steps.prepared()


@WINOGRAD.kernel(ConvolutionBackwardWeights, _taken)
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    sizes = known_sizes(request)
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    places = ("input0", "output_gradient", "weights_gradient", *blocks.reserve(steps), None)
    strides = {tile.OUTER: 1, tile.A_ROW: 1, tile.A_INNER: sizes.channels}
    strides |= {tile.B_INNER: sizes.outputs, tile.C_ROW: sizes.outputs}
    product = Product(sizes.channels, sizes.outputs, strides).slots
    inside, outside = blocks.input_slots, blocks.output_gradient_slots
    slots = (0, *blocks.slots, *inside, *outside, *blocks.weights_gradient_slots, len(product), *product)
    steps.add_pass("pass", weights_pass, places, *slots)
    if request.bias is not None:
        add_bias_gradient(steps, sizes.positions, sizes.outputs)
    return steps.prepared()


def _chosen(sizes: ImageConvolution) -> Tiling:
    """The tiles that gain, or, where none do, the smallest."""
    return _tiling(sizes) or Tiling(sizes, TILES[sizes.kernel[0]][-1])


class _Blocks:
    """What the passes need to know of the tiles of a convolution."""

    def __init__(self, tiling: Tiling) -> None:
        self.tiling, sizes = tiling, tiling.sizes
        m, r, down, across, x = tiling.outputs, tiling.kernel, tiling.down, tiling.across, sizes.input
        (top, _), (left, _) = x.padding
        # Room for whole tiles, at the lower and right edges of input and output.
        below, beside = m * down + r - 1 - top - x.height, m * across + r - 1 - left - x.width
        self.inside = PaddedImages(x.images, x.height, x.width, x.channels, ((top, below), (left, beside)))
        rest = ((0, m * down - sizes.rows), (0, m * across - sizes.columns))
        self.outside = PaddedImages(x.images, sizes.rows, sizes.columns, sizes.outputs, rest)
        tiles = tiling.block * across
        elements = (tiles * sizes.channels, tiles * sizes.outputs, sizes.channels * sizes.outputs)
        # Between the points is a gap: at distances of whole pages all of them would want the same place in the cache.
        self.steps = tuple(4 * (count + LANES) for count in elements)
        counts = (tiling.rows, tiling.block, down, across, m, tiling.side**2, r**2)
        self.slots = (*counts, *self.steps, *self.inside.slots, *self.outside.slots)

    def reserve(self, steps: Steps) -> tuple[Place, ...]:
        """Places of an image of the input with its padding and one of the output, where these have any, and of the
        points of a block's input and output, and of the weights."""
        points = (steps.reserve(self.tiling.side**2 * step) for step in self.steps)
        return (self.inside.reserve(steps), self.outside.reserve(steps), *points)

    def products(self, inner: int, columns: int) -> list[int]:
        """Of a block's tiles with weights: how many slots the first has, for whole blocks, and the second, for the
        last one."""
        strides = {tile.OUTER: 1, tile.INNER: inner, tile.A_ROW: inner, tile.A_INNER: 1}
        strides |= {tile.B_INNER: columns, tile.C_ROW: columns}
        rows, block = self.tiling.rows, self.tiling.block
        whole, last = (
            Product(count * self.tiling.across, columns, strides).slots for count in (block, rows % block or block)
        )
        return [len(whole), *whole, *last]

    @property
    def input_slots(self) -> list[int | float]:
        return self._slots(transforms.INPUT, self._pixels(self.inside, self.steps[0], reads=True))

    @property
    def input_gradient_slots(self) -> list[int | float]:
        return self._slots(transforms.INPUT_GRADIENT, self._pixels(self.inside, self.steps[0], reads=False))

    def output_slots(self, floor: float) -> list[int | float]:
        slots = self._pixels(self.outside, self.steps[1], reads=False)
        return self._slots(transforms.OUTPUT, {**slots, transforms.FLOOR: floor})

    @property
    def output_gradient_slots(self) -> list[int | float]:
        return self._slots(transforms.OUTPUT_GRADIENT, self._pixels(self.outside, self.steps[1], reads=True))

    @property
    def weights_slots(self) -> list[int | float]:
        return self._slots(transforms.WEIGHTS, self._taps(reads=True))

    @property
    def weights_gradient_slots(self) -> list[int | float]:
        return self._slots(transforms.WEIGHTS_GRADIENT, self._taps(reads=False))

    def _slots(self, which: int, slots: dict[int, int | float]) -> list[int | float]:
        return transform_slots(which, self.tiling.outputs, self.tiling.kernel, slots)

    def _pixels(self, images: PaddedImages, step: int, reads: bool) -> dict[int, int | float]:
        """Of a transform from a row of tiles of images to points, or back."""
        pixel = 4 * images.channels
        tiles = (self.tiling.outputs * pixel, images.padded[1] * pixel, pixel)
        return self._between(tiles, (pixel, self.tiling.side * step, step), reads, self.tiling.across, images.channels)

    def _taps(self, reads: bool) -> dict[int, int | float]:
        """Of a transform from weights to points, or back."""
        elements, step = self.tiling.sizes.channels * self.tiling.sizes.outputs, self.steps[2]
        taps = (0, self.tiling.kernel * 4 * elements, 4 * elements)
        return self._between(taps, (0, self.tiling.side * step, step), reads, 1, elements)

    @staticmethod
    def _between(
        grid: tuple[int, ...], points: tuple[int, ...], reads: bool, tiles: int, elements: int
    ) -> dict[int, int | float]:
        source, target = (grid, points) if reads else (points, grid)
        return {
            **dict(zip((transforms.SOURCE_TILE, transforms.SOURCE_ROW, transforms.SOURCE_COLUMN), source, strict=True)),
            **dict(zip((transforms.TARGET_TILE, transforms.TARGET_ROW, transforms.TARGET_COLUMN), target, strict=True)),
            transforms.TILES: tiles,
            transforms.ELEMENTS: elements,
        }


# The passes' argument blocks. First come addresses:
_IMAGE, _RESULT, _INSIDE, _OUTSIDE, _KERNEL, _MORE, _ZEROS = range(3, 10)
"""Behind three operands: an image of the input with its padding or 0, one of the output or 0; the points of a block's
input and output, and of the weights; the bias, or room for the transposed weights; zeros instead of a bias."""
_TILES = 8 * 10
"""And then, so many bytes behind the beginning, the tiles:"""
_COUNT, _BLOCK, _DOWN, _ACROSS, _OUTPUTS, _POINTS, _TAPS, _INSIDE_STEP, _OUTSIDE_STEP, _KERNEL_STEP = range(10)
"""Rows of tiles, and in a block; rows and columns of tiles in an image; a tile's outputs in a row; points; taps of the
kernel; the bytes between two points."""
_SIZES_INSIDE = 8 * 10
_SIZES_OUTSIDE = _SIZES_INSIDE + 8 * sizing.IMAGE_SIZES
_TRANSFORM_INSIDE = _SIZES_OUTSIDE + 8 * sizing.IMAGE_SIZES
_TRANSFORM_OUTSIDE = _TRANSFORM_INSIDE + 8 * (1 + transforms.SLOTS)
_TRANSFORM_WEIGHTS = _TRANSFORM_OUTSIDE + 8 * (1 + transforms.SLOTS)
_PRODUCT_SLOTS = _TRANSFORM_WEIGHTS + 8 * (1 + transforms.SLOTS)
_PRODUCT = _PRODUCT_SLOTS + 8
"""In bytes behind the tiles: sizes of the input's and the output's images; the transforms; products."""


@inlined
def _read_rows(
    tiles: int, sizes: int, transform: int, first: int, count: int, source: int, image: int, points: int
) -> None:
    """Points from rows of tiles of images, which pass through one with padding where `image` is not 0."""
    t, s = int64_at(tiles), int64_at(sizes)
    pixel, start = 4 * s[sizing.CHANNELS], image
    for row in range(count):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        if i == 0 or image == 0:
            start = image_with_padding(sizes, source, number, image)
        line = start + t[_OUTPUTS] * i * s[sizing.PADDED_WIDTH] * pixel
        run_transform(transform, line, points + row * t[_ACROSS] * pixel)


@inlined
def _write_rows(
    tiles: int, sizes: int, transform: int, first: int, count: int, points: int, image: int, target: int, clear: bool
) -> None:
    """The way back. clear: the transform adds to what is there."""
    t, s = int64_at(tiles), int64_at(sizes)
    pixel = 4 * s[sizing.CHANNELS]
    for row in range(count):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        start = image if image != 0 else target + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel
        if clear and i == 0:
            clear_image(sizes, start)
        line = start + t[_OUTPUTS] * i * s[sizing.PADDED_WIDTH] * pixel
        run_transform(transform, points + row * t[_ACROSS] * pixel, line)
        if i == t[_DOWN] - 1:
            image_without_padding(sizes, image, target, number)


@inlined
def _multiply_points(tiles: int, product: int, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int) -> None:
    for point in range(int64_at(tiles)[_POINTS]):
        for chunk in range(int64_at(product)[tile.CHUNKS]):
            multiply_chunk(product, chunk, a + point * a_step, b + point * b_step, c + point * c_step, 0)


@inlined
def _product_for(tiles: int, count: int) -> int:
    """That for so many rows of tiles."""
    t = int64_at(tiles)
    whole = count == t[_BLOCK]
    return tiles + _PRODUCT if whole else tiles + _PRODUCT + 8 * int64_at(tiles + _PRODUCT_SLOTS)[0]


@inlined
def _transpose_taps(weights: int, target: int, taps: int, rows: int, columns: int) -> None:
    """Matrices of columns × rows to rows × columns, in squares; the last ones begin inside those before."""
    for tap in range(0, taps * 4 * rows * columns, 4 * rows * columns):
        for row in range(0, rows, LANES):
            r = min(row, rows - LANES)
            for column in range(0, columns, LANES):
                c = min(column, columns - LANES)
                source = weights + tap + 4 * (c * rows + r)
                transpose_square(source, 4 * rows, target + tap + 4 * (r * columns + c), 4 * columns)


@native
def forward_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Operands: x, weights, y."""
    b, tiles = int64_at(arguments), np.int64(arguments) + _TILES
    t, inside, outside = int64_at(tiles), tiles + _SIZES_INSIDE, tiles + _SIZES_OUTSIDE
    a_step, b_step, c_step = t[_INSIDE_STEP], t[_KERNEL_STEP], t[_OUTSIDE_STEP]
    run_transform(tiles + _TRANSFORM_WEIGHTS, b[1], b[_KERNEL])
    int64_at(tiles + _TRANSFORM_OUTSIDE + 8)[transforms.SHIFT] = b[_MORE] if b[_MORE] != 0 else b[_ZEROS]
    for first in range(0, t[_COUNT], t[_BLOCK]):
        count = min(t[_BLOCK], t[_COUNT] - first)
        _read_rows(tiles, inside, tiles + _TRANSFORM_INSIDE, first, count, b[0], b[_IMAGE], b[_INSIDE])
        product = _product_for(tiles, count)
        _multiply_points(tiles, product, b[_INSIDE], a_step, b[_KERNEL], b_step, b[_OUTSIDE], c_step)
        _write_rows(tiles, outside, tiles + _TRANSFORM_OUTSIDE, first, count, b[_OUTSIDE], b[_RESULT], b[2], False)
    return 0


@native
def data_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Operands: dy, weights, dx."""
    b, tiles = int64_at(arguments), np.int64(arguments) + _TILES
    t, inside, outside = int64_at(tiles), tiles + _SIZES_INSIDE, tiles + _SIZES_OUTSIDE
    a_step, b_step, c_step = t[_OUTSIDE_STEP], t[_KERNEL_STEP], t[_INSIDE_STEP]
    channels, outputs = int64_at(inside)[sizing.CHANNELS], int64_at(outside)[sizing.CHANNELS]
    _transpose_taps(b[1], b[_MORE], t[_TAPS], outputs, channels)
    run_transform(tiles + _TRANSFORM_WEIGHTS, b[_MORE], b[_KERNEL])
    for first in range(0, t[_COUNT], t[_BLOCK]):
        count = min(t[_BLOCK], t[_COUNT] - first)
        _read_rows(tiles, outside, tiles + _TRANSFORM_OUTSIDE, first, count, b[0], b[_RESULT], b[_OUTSIDE])
        product = _product_for(tiles, count)
        _multiply_points(tiles, product, b[_OUTSIDE], a_step, b[_KERNEL], b_step, b[_INSIDE], c_step)
        _write_rows(tiles, inside, tiles + _TRANSFORM_INSIDE, first, count, b[_INSIDE], b[_IMAGE], b[2], True)
    return 0


@native
def weights_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Operands: x, dy, dw."""
    b, tiles = int64_at(arguments), np.int64(arguments) + _TILES
    t, inside, outside = int64_at(tiles), tiles + _SIZES_INSIDE, tiles + _SIZES_OUTSIDE
    a_step, b_step, c_step = t[_INSIDE_STEP], t[_OUTSIDE_STEP], t[_KERNEL_STEP]
    product = tiles + _PRODUCT
    for first in range(0, t[_COUNT], t[_BLOCK]):
        count = min(t[_BLOCK], t[_COUNT] - first)
        _read_rows(tiles, inside, tiles + _TRANSFORM_INSIDE, first, count, b[0], b[_IMAGE], b[_INSIDE])
        _read_rows(tiles, outside, tiles + _TRANSFORM_OUTSIDE, first, count, b[1], b[_RESULT], b[_OUTSIDE])
        int64_at(product)[tile.INNER] = count * t[_ACROSS]
        int64_at(product)[tile.ADD] = 0 if first == 0 else 1
        _multiply_points(tiles, product, b[_INSIDE], a_step, b[_OUTSIDE], b_step, b[_KERNEL], c_step)
    run_transform(tiles + _TRANSFORM_WEIGHTS, b[_KERNEL], b[2])
    return 0
