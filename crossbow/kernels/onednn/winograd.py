"""Convolutions of 3×3 and 5×5 by Winograd's minimal filtering: with two to four times fewer products than windows have.

The output is cut into tiles of m×m, each computed from the (m + r − 1)² pixels below it, as Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks" (2015). With A, G and B as in `winograd_transforms.py`, for every tile t
and every point p of a grid of (m + r − 1)²:

    V[p, t] = (Bᵀ x[t] B)[p]        U[p] = (G w Gᵀ)[p]        M[p, t] = V[p, t] · U[p]        y[t] = Aᵀ M[:, t] A

M[p] is a product of matrices, tiles × channels and channels × outputs, and takes most of the time. The gradients are
the transposes of that:

    D[p, t] = (A dy[t] Aᵀ)[p]       P[p] = Σ_t V[p, t]ᵀ · D[p, t]       dw = Gᵀ P G
                                    Q[p, t] = D[p, t] · U[p]ᵀ           dx = Σ_t B Q[:, t] Bᵀ, where t lies

A block of tiles at a time passes through all steps, so that its points stay in the cache. Rounding: with 6 points in a
row the errors are about four times those of a sum of products, with 4 less than those. One thread only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from crossbow.kernels.compiled import inlined, int64_at, native
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import image_convolution as sizing
from crossbow.kernels.onednn import tile
from crossbow.kernels.onednn import winograd_transforms as transforms
from crossbow.kernels.onednn.image_convolution import (
    ImageConvolution,
    clear_padded,
    copy_from_padded,
    copy_into_padded,
)
from crossbow.kernels.onednn.inner_product import with_bias_gradient
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.kernels.onednn.tile import WIDTH, Product, multiply_chunk
from crossbow.kernels.onednn.winograd_transforms import run_transform, transform_slots, transpose_square
from crossbow.types import address

TILES = {3: (4, 2), 5: (2,)}
"""For a kernel, the tiles that are tried; larger ones would lose digits."""
BLOCK = 64
"""Tiles of a block, about: so many that a product is worth its call, so few that the points lie in the cache."""


@dataclass(frozen=True)
class Tiling:
    """A convolution's output in tiles, in blocks of whole rows of tiles; a block may go over several images."""

    sizes: ImageConvolution
    outputs: int
    """Of a tile, in a row."""

    @property
    def points(self) -> int:
        return (self.outputs + self.kernel - 1) ** 2

    @property
    def kernel(self) -> int:
        return self.sizes.kernel[0]

    @property
    def down(self) -> int:
        return -(-self.sizes.rows // self.outputs)

    @property
    def across(self) -> int:
        return -(-self.sizes.columns // self.outputs)

    @property
    def work(self) -> float:
        """In products with windows; see `gains`."""
        c, o, tiles = self.sizes.channels, self.sizes.outputs, self.sizes.images * self.down * self.across
        weights = IN_CACHE if 4 * self.points * c * o <= CACHE else IN_MEMORY
        return self.points * (tiles * (c * o + TRANSFORM * (c + o)) + weights * c * o)


def gains(sizes: ImageConvolution) -> bool:
    """Whether such a convolution is faster here than with the library."""
    return _tiling(sizes) is not None


gains_in_weights = gains

TRANSFORM = 6
"""Products that take as long as the transforms of a number of input or output to, or from, a point."""
CACHE, IN_CACHE, IN_MEMORY = 2**20, 8, 40
"""Bytes of a core's cache; products that take as long as the transforms of a weight to a point, and reading it there:
where all of them lie in the cache, and where not."""
GAIN = 1.1
"""By what the work has to be less than with windows."""


@functools.cache
def _tiling(sizes: ImageConvolution) -> Tiling | None:
    """The tiles with the least work, where that is less than the library's."""
    (kernel, width), around = sizes.kernel, max(map(max, sizes.padding))
    if kernel != width or kernel not in TILES or sizes.stride != (1, 1) or sizes.dilation != 1 or around >= kernel:
        return None
    if min(sizes.channels, sizes.outputs) < WIDTH:
        return None
    best = min((Tiling(sizes, outputs) for outputs in TILES[kernel]), key=lambda tiling: tiling.work)
    channels = -(-sizes.channels // WIDTH) * WIDTH * -(-sizes.outputs // WIDTH) * WIDTH
    windows = sizes.images * sizes.rows * sizes.columns * kernel**2 * channels
    return best if GAIN * best.work <= windows else None


def forward(sizes: ImageConvolution, relu: bool, bias: bool) -> PreparedKernel:
    """input0, weights[, bias] → output."""
    steps, blocks = Steps(f"convolution_forward{' relu' if relu else ''} winograd"), _Blocks(_chosen(sizes))
    strides = {tile.OUTER: 1, tile.INNER: sizes.channels, tile.A_ROW: sizes.channels, tile.A_INNER: 1}
    strides |= {tile.B_INNER: sizes.outputs, tile.C_ROW: sizes.outputs}
    product = Product(blocks.tiles, sizes.outputs, strides)
    zeros = np.zeros(sizes.outputs, np.float32)
    steps.add_pass(
        "pass",
        forward_pass,
        ("input0", "weights", "output", *blocks.reserve(steps), "bias" if bias else None),
        address(zeros),
        *blocks.slots,
        *blocks.input_slots,
        *blocks.output_slots(0.0 if relu else -np.inf),
        *blocks.weights_slots,
        *product.slots,
        references=(zeros,),
    )
    return steps.prepared(("input0", "weights", "bias") if bias else ("input0", "weights"), ("output",))


def backward_data(sizes: ImageConvolution) -> PreparedKernel:
    """output_gradient, weights → input_gradient."""
    steps, blocks = Steps("convolution_backward_data winograd"), _Blocks(_chosen(sizes))
    strides = {tile.OUTER: 1, tile.INNER: sizes.outputs, tile.A_ROW: sizes.outputs, tile.A_INNER: 1}
    strides |= {tile.B_INNER: sizes.channels, tile.C_ROW: sizes.channels}
    product = Product(blocks.tiles, sizes.channels, strides)
    transposed = steps.reserve(4 * sizes.kernel[0] ** 2 * sizes.channels * sizes.outputs)
    steps.add_pass(
        "pass",
        data_pass,
        ("output_gradient", "weights", "input_gradient", *blocks.reserve(steps), transposed),
        *blocks.slots,
        *blocks.input_gradient_slots,
        *blocks.output_gradient_slots,
        *blocks.weights_slots,
        *product.slots,
    )
    return steps.prepared(("output_gradient", "weights"), ("input_gradient",))


def backward_weights(sizes: ImageConvolution, bias: bool) -> PreparedKernel:
    """input0, output_gradient → weights_gradient[, bias_gradient]."""
    steps, blocks = Steps("convolution_backward_weights winograd"), _Blocks(_chosen(sizes))
    strides = {tile.OUTER: 1, tile.INNER: blocks.tiles, tile.A_ROW: 1, tile.A_INNER: sizes.channels}
    strides |= {tile.B_INNER: sizes.outputs, tile.C_ROW: sizes.outputs}
    product = Product(sizes.channels, sizes.outputs, strides)
    places = ("input0", "output_gradient", "weights_gradient", *blocks.reserve(steps))
    steps.add_pass(
        "pass",
        weights_pass,
        places,
        *blocks.slots,
        *blocks.input_slots,
        *blocks.output_gradient_slots,
        *blocks.weights_gradient_slots,
        *product.slots,
    )
    return with_bias_gradient(steps, sizes.images * sizes.rows * sizes.columns, sizes.outputs, bias)


def _chosen(sizes: ImageConvolution) -> Tiling:
    """The tiles that gain, or, where none do, the smallest."""
    return _tiling(sizes) or Tiling(sizes, TILES[sizes.kernel[0]][-1])


class _Blocks:
    """What both passes need to know of the tiles of a convolution."""

    def __init__(self, tiling: Tiling) -> None:
        self.tiling, sizes = tiling, tiling.sizes
        m, r, down, across = tiling.outputs, tiling.kernel, tiling.down, tiling.across
        rows = sizes.images * down
        self.rows = max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * across <= BLOCK))
        self.tiles = self.rows * across
        (top, _), (left, _) = sizes.padding
        # Room for whole tiles, at the lower and right edges of input and output.
        below, beside = m * down + r - 1 - top - sizes.height, m * across + r - 1 - left - sizes.width
        self.inside = replace(sizes, padding=((top, below), (left, beside)))
        self.outside = replace(
            sizes,
            height=sizes.rows,
            width=sizes.columns,
            channels=sizes.outputs,
            padding=((0, m * down - sizes.rows), (0, m * across - sizes.columns)),
        )
        elements = (self.tiles * sizes.channels, self.tiles * sizes.outputs, sizes.channels * sizes.outputs)
        # Between the points is a gap: at distances of whole pages all of them would want the same place in the cache.
        self.steps = tuple(4 * (count + WIDTH) for count in elements)
        self.slots = (self.rows, down, across, m, tiling.points, *self.steps, *self.inside.slots, *self.outside.slots)

    def reserve(self, steps: Steps) -> tuple[Place, ...]:
        """Places of an image of the input with its padding, one of the output if that is not made of whole tiles, and
        the points of a block's input and output, and of the weights."""
        image = steps.reserve(self.inside.padded_bytes)
        result = steps.reserve(self.outside.padded_bytes) if self.outside.has_padding else None
        return (image, result, *(steps.reserve(self.tiling.points * step) for step in self.steps))

    def _slots(self, which: int, slots: dict[int, int | float]) -> list[int | float]:
        return transform_slots(which, self.tiling.outputs, self.tiling.kernel, slots)

    def _pixels(self, sizes: ImageConvolution, step: int, reads: bool) -> dict[int, int | float]:
        """Of a transform between an image's rows of tiles and their points."""
        pixel, m = 4 * sizes.channels, self.tiling.outputs
        image, points = (m * pixel, sizes.padded[1] * pixel, pixel), (pixel, self._side * step, step)
        source, target = (image, points) if reads else (points, image)
        return {
            **dict(zip((transforms.SOURCE_TILE, transforms.SOURCE_ROW, transforms.SOURCE_COLUMN), source, strict=True)),
            **dict(zip((transforms.TARGET_TILE, transforms.TARGET_ROW, transforms.TARGET_COLUMN), target, strict=True)),
            transforms.TILES: self.tiling.across,
            transforms.ELEMENTS: sizes.channels,
        }

    @property
    def _side(self) -> int:
        """Points in a row."""
        return self.tiling.outputs + self.tiling.kernel - 1

    @property
    def input_slots(self) -> list[int | float]:
        return self._slots(transforms.INPUT, self._pixels(self.inside, self.steps[0], reads=True))

    @property
    def input_gradient_slots(self) -> list[int | float]:
        return self._slots(transforms.INPUT_GRADIENT, self._pixels(self.inside, self.steps[0], reads=False))

    @property
    def output_gradient_slots(self) -> list[int | float]:
        return self._slots(transforms.OUTPUT_GRADIENT, self._pixels(self.outside, self.steps[1], reads=True))

    def output_slots(self, floor: float) -> list[int | float]:
        slots = self._pixels(self.outside, self.steps[1], reads=False)
        return self._slots(transforms.OUTPUT, {**slots, transforms.FLOOR: floor})

    @property
    def weights_slots(self) -> list[int | float]:
        elements = self.tiling.sizes.channels * self.tiling.sizes.outputs
        slots: dict[int, int | float] = {
            transforms.SOURCE_ROW: self.tiling.kernel * 4 * elements,
            transforms.SOURCE_COLUMN: 4 * elements,
            transforms.TARGET_ROW: self._side * self.steps[2],
            transforms.TARGET_COLUMN: self.steps[2],
            transforms.TILES: 1,
            transforms.ELEMENTS: elements,
        }
        return self._slots(transforms.WEIGHTS, slots)

    @property
    def weights_gradient_slots(self) -> list[int | float]:
        elements = self.tiling.sizes.channels * self.tiling.sizes.outputs
        slots: dict[int, int | float] = {
            transforms.SOURCE_ROW: self._side * self.steps[2],
            transforms.SOURCE_COLUMN: self.steps[2],
            transforms.TARGET_ROW: self.tiling.kernel * 4 * elements,
            transforms.TARGET_COLUMN: 4 * elements,
            transforms.TILES: 1,
            transforms.ELEMENTS: elements,
        }
        return self._slots(transforms.WEIGHTS_GRADIENT, slots)


# Places of both passes' blocks, behind three operands.
_IMAGE, _RESULT, _INSIDE, _OUTSIDE, _KERNEL = range(3, 8)
"""An image with its padding; one of the output, or 0; the points of a block's input and output, and of the weights."""
# And what follows them.
_ROWS, _DOWN, _ACROSS, _OUTPUTS, _POINTS, _INSIDE_STEP, _OUTSIDE_STEP, _KERNEL_STEP = range(8)
"""Rows of tiles in a block; rows and columns of tiles in an image; a tile's outputs in a row; points; the bytes between
two points."""
_SIZES_INSIDE = 8 * 8
_SIZES_OUTSIDE = _SIZES_INSIDE + 8 * sizing.SIZES
_FIRST = _SIZES_OUTSIDE + 8 * sizing.SIZES
_SECOND = _FIRST + 8 * (1 + transforms.SLOTS)
_THIRD = _SECOND + 8 * (1 + transforms.SLOTS)
_PRODUCT = _THIRD + 8 * (1 + transforms.SLOTS)
"""In bytes: the sizes of both sides; the transforms of input, of output and of weights; the product."""


@inlined
def _read_rows(tiles: int, sizes: int, transform: int, first: int, source: int, image: int, points: int) -> None:
    """A block's points, from images that pass through one with padding where `image` is not 0."""
    t, s = int64_at(tiles), int64_at(sizes)
    pixel = 4 * s[sizing.CHANNELS]
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        start = source + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel
        if image != 0:
            if i == 0:
                copy_into_padded(sizes, start, image)
            start = image
        line = start + t[_OUTPUTS] * i * s[sizing.PADDED_WIDTH] * pixel
        run_transform(transform, line, points + row * t[_ACROSS] * pixel)


@inlined
def _write_rows(tiles: int, first: int, points: int, image: int, target: int) -> None:
    """The output of a block from its points; by way of an image with room for whole tiles where `image` is not 0."""
    t, sizes = int64_at(tiles), tiles + _SIZES_OUTSIDE
    s = int64_at(sizes)
    pixel = 4 * s[sizing.CHANNELS]
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        own = target + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel
        line = (own if image == 0 else image) + t[_OUTPUTS] * i * s[sizing.PADDED_WIDTH] * pixel
        run_transform(tiles + _SECOND, points + row * t[_ACROSS] * pixel, line)
        if image != 0 and i == t[_DOWN] - 1:
            copy_from_padded(sizes, image, own)


@inlined
def _add_rows(tiles: int, first: int, points: int, image: int, target: int) -> None:
    """The gradient of the input from a block's points; tiles overlap, in an image with padding."""
    t, sizes = int64_at(tiles), tiles + _SIZES_INSIDE
    s = int64_at(sizes)
    pixel = 4 * s[sizing.CHANNELS]
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        if i == 0:
            clear_padded(sizes, image)
        line = image + t[_OUTPUTS] * i * s[sizing.PADDED_WIDTH] * pixel
        run_transform(tiles + _FIRST, points + row * t[_ACROSS] * pixel, line)
        if i == t[_DOWN] - 1:
            copy_from_padded(sizes, image, target + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel)


@inlined
def _multiply_points(tiles: int, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int) -> None:
    for point in range(int64_at(tiles)[_POINTS]):
        for chunk in range(int64_at(tiles + _PRODUCT)[tile.CHUNKS]):
            places = a + point * a_step, b + point * b_step, c + point * c_step
            multiply_chunk(tiles + _PRODUCT, chunk, places[0], places[1], places[2], 0)


@inlined
def _transpose_taps(weights: int, target: int, taps: int, rows: int, columns: int) -> None:
    """Matrices of columns × rows to rows × columns, in squares; the last ones begin inside those before."""
    for tap in range(0, taps * 4 * rows * columns, 4 * rows * columns):
        for row in range(0, rows, WIDTH):
            r = min(row, rows - WIDTH)
            for column in range(0, columns, WIDTH):
                c = min(column, columns - WIDTH)
                source = weights + tap + 4 * (c * rows + r)
                transpose_square(source, 4 * rows, target + tap + 4 * (r * columns + c), 4 * columns)


@native
def forward_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, weights, y, and as `_IMAGE` says; bias or 0; address of zeros; then as `_ROWS` says."""
    b, tiles = int64_at(arguments), np.int64(arguments) + 8 * 10
    t, inside = int64_at(tiles), tiles + _SIZES_INSIDE
    run_transform(tiles + _THIRD, b[1], b[_KERNEL])
    int64_at(tiles + _SECOND + 8)[transforms.SHIFT] = b[8] if b[8] != 0 else b[9]
    clear_padded(inside, b[_IMAGE])
    for first in range(0, int64_at(inside)[sizing.IMAGES] * t[_DOWN], t[_ROWS]):
        _read_rows(tiles, inside, tiles + _FIRST, first, b[0], b[_IMAGE], b[_INSIDE])
        steps = t[_INSIDE_STEP], t[_KERNEL_STEP], t[_OUTSIDE_STEP]
        _multiply_points(tiles, b[_INSIDE], steps[0], b[_KERNEL], steps[1], b[_OUTSIDE], steps[2])
        _write_rows(tiles, first, b[_OUTSIDE], b[_RESULT], b[2])
    return 0


@native
def data_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, weights, dx, and as `_IMAGE` says; room for the transposed weights; then as `_ROWS` says."""
    b, tiles = int64_at(arguments), np.int64(arguments) + 8 * 9
    t, inside, outside = int64_at(tiles), tiles + _SIZES_INSIDE, tiles + _SIZES_OUTSIDE
    s = int64_at(inside)
    taps = s[sizing.KERNEL_ROWS] * s[sizing.KERNEL_COLUMNS]
    _transpose_taps(b[1], b[8], taps, int64_at(outside)[sizing.CHANNELS], s[sizing.CHANNELS])
    run_transform(tiles + _THIRD, b[8], b[_KERNEL])
    if b[_RESULT] != 0:
        clear_padded(outside, b[_RESULT])
    for first in range(0, s[sizing.IMAGES] * t[_DOWN], t[_ROWS]):
        _read_rows(tiles, outside, tiles + _SECOND, first, b[0], b[_RESULT], b[_OUTSIDE])
        steps = t[_OUTSIDE_STEP], t[_KERNEL_STEP], t[_INSIDE_STEP]
        _multiply_points(tiles, b[_OUTSIDE], steps[0], b[_KERNEL], steps[1], b[_INSIDE], steps[2])
        _add_rows(tiles, first, b[_INSIDE], b[_IMAGE], b[2])
    return 0


@native
def weights_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, dw, and as `_IMAGE` says; then as `_ROWS` says."""
    b, tiles = int64_at(arguments), np.int64(arguments) + 8 * 8
    t, inside, outside = int64_at(tiles), tiles + _SIZES_INSIDE, tiles + _SIZES_OUTSIDE
    clear_padded(inside, b[_IMAGE])
    if b[_RESULT] != 0:
        clear_padded(outside, b[_RESULT])
    for first in range(0, int64_at(inside)[sizing.IMAGES] * t[_DOWN], t[_ROWS]):
        _read_rows(tiles, inside, tiles + _FIRST, first, b[0], b[_IMAGE], b[_INSIDE])
        _read_rows(tiles, outside, tiles + _SECOND, first, b[1], b[_RESULT], b[_OUTSIDE])
        int64_at(tiles + _PRODUCT)[tile.ADD] = 0 if first == 0 else 1
        steps = t[_INSIDE_STEP], t[_OUTSIDE_STEP], t[_KERNEL_STEP]
        _multiply_points(tiles, b[_INSIDE], steps[0], b[_OUTSIDE], steps[1], b[_KERNEL], steps[2])
    run_transform(tiles + _THIRD, b[_KERNEL], b[2])
    return 0
