"""Convolutions of 3×3 by Winograd's minimal filtering: 2.25 times fewer products than windows have.

An output of 2×2 pixels is computed from the 4×4 pixels below it, as Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (2015), F(2×2, 3×3). With B, G and A as in `INPUT`, `WEIGHTS` and `OUTPUT`, for every such tile t and
every of the 16 points p:

    V[p, t] = (Bᵀ x[t] B)[p]        U[p] = (G w Gᵀ)[p]        M[p, t] = V[p, t] · U[p]        y[t] = Aᵀ M[:, t] A

M[p] is a product of matrices, tiles × channels and channels × outputs, and takes nearly all the time. The gradient of
the input is the same with the kernel turned by half a turn and its two numbers of channels exchanged. That of the
weights is the transpose of the above:

    D[p, t] = (A dy[t] Aᵀ)[p]       P[p] = Σ_t V[p, t]ᵀ · D[p, t]       dw = Gᵀ P G

A block of tiles at a time passes through all steps, so that its V and M stay in the cache. One thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from crossbow.kernels.compiled import float64_at, inlined, instruction, int64_at, native
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import image_convolution as sizing
from crossbow.kernels.onednn import tile
from crossbow.kernels.onednn.image_convolution import (
    ImageConvolution,
    clear_padded,
    copy_from_padded,
    copy_into_padded,
)
from crossbow.kernels.onednn.inner_product import with_bias_gradient
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.kernels.onednn.tile import WIDTH, Product, multiply_chunk
from crossbow.types import address

Matrix = tuple[tuple[float, ...], ...]

INPUT: Matrix = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
"""Bᵀ: 4×4 pixels to 4×4 points."""
WEIGHTS: Matrix = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
"""G: 3×3 weights to 4×4 points."""
OUTPUT: Matrix = ((1, 1, 1, 0), (0, 1, -1, -1))
"""Aᵀ: 4×4 points to 2×2 pixels."""
POINTS = 16


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _sandwich(matrix: Matrix, finish: bool = False) -> Any:
    """The instruction `target ← matrix · source · matrixᵀ` on grids of vectors of 16 numbers.

    Arguments: the address of source's first vector and its distances in bytes between rows and columns; the same of
    target. With `finish`, two more: the address of a vector that is added to all of target, and a float32: what is
    less becomes it.
    """
    vector = ir.VectorType(ir.FloatType(), WIDTH)

    def combination(builder: Any, row: Sequence[float], values: Sequence[Any]) -> Any:
        total = None
        for factor, value in zip(row, values, strict=True):
            if factor == 0:
                continue
            if abs(factor) != 1:
                value = builder.fmul(value, ir.Constant(vector, [abs(factor)] * WIDTH))
            if total is None:
                total = value if factor > 0 else builder.fneg(value)
            else:
                total = builder.fadd(total, value) if factor > 0 else builder.fsub(total, value)
        return total

    def places(builder: Any, place: Sequence[Any], size: int) -> list[list[Any]]:
        base, row_step, column_step = place
        word = ir.IntType(64)
        columns = [builder.mul(column_step, word(column)) for column in range(size)]
        rows = [builder.add(base, builder.mul(row_step, word(row))) for row in range(size)]
        return [[builder.inttoptr(builder.add(row, column), vector.as_pointer()) for column in columns] for row in rows]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = arguments[:3], arguments[3:6]
        grid = [[builder.load(place, align=4) for place in row] for row in places(builder, source, len(matrix[0]))]
        # Rows first: row i of matrix · source.
        columns = [[combination(builder, row, column) for row in matrix] for column in zip(*grid, strict=True)]
        result = [[combination(builder, row, line) for row in matrix] for line in zip(*columns, strict=True)]
        if finish:
            shift = builder.load(builder.inttoptr(arguments[6], vector.as_pointer()), align=4)
            undefined = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(undefined, arguments[7], ir.IntType(32)(0))
            floor = builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None))
        for line, row in zip(result, places(builder, target, len(matrix)), strict=True):
            for value, place in zip(line, row, strict=True):
                if finish:
                    value = builder.fadd(value, shift)
                    value = builder.select(builder.fcmp_ordered("<", value, floor), floor, value)
                builder.store(value, place, align=4)
        return context.get_dummy_value()

    words = [types.int64] * 6
    if finish:

        @instruction
        def finished(typing_context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
            return types.void(*words, types.int64, types.float32), generate

        return finished

    @instruction
    def made(typing_context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return types.void(*words), generate

    return made


_transform_input = _sandwich(INPUT)
_transform_weights = _sandwich(WEIGHTS)
_transform_output = _sandwich(OUTPUT, finish=True)
_transform_gradient = _sandwich(_transposed(OUTPUT))
_weights_gradient = _sandwich(_transposed(WEIGHTS))


def _transposed_vectors() -> Any:
    """The instruction that writes the transpose of 16 × 16 numbers: source, its distance in bytes between rows, and
    those of target."""
    word, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), WIDTH)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(base: Any, step: Any, row: int) -> Any:
            return builder.inttoptr(builder.add(base, builder.mul(step, word(row))), vector.as_pointer())

        rows = [builder.load(place(arguments[0], arguments[1], row), align=4) for row in range(WIDTH)]
        distance = 1
        while distance < WIDTH:  # rows i and i + distance exchange squares of that size
            for low in (row for row in range(WIDTH) if not row & distance):
                high = low + distance
                lanes = [[lane & ~distance | (lane & distance and WIDTH) for lane in range(WIDTH)]]
                lanes.append([lane + distance for lane in lanes[0]])
                masks = [ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), chosen) for chosen in lanes]
                rows[low], rows[high] = (builder.shuffle_vector(rows[low], rows[high], mask) for mask in masks)
            distance *= 2
        for number, row in enumerate(rows):
            builder.store(row, place(arguments[2], arguments[3], number), align=4)
        return context.get_dummy_value()

    @instruction
    def made(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return made


_transpose = _transposed_vectors()


TILES = 64
"""Tiles of a block, about: so many that a product is worth its call, so few that the points lie in the cache."""
FEWER_PRODUCTS = 1.7
"""How many times fewer products than with windows pay for the transforms. It is 2.25 where the output is made of whole
tiles; on 7×7 it is 1.72, which gains a tenth, on 3×3 1.27, which loses a third."""
CHANNELS_A_TILE = 8
"""For how many channels there has to be a tile in the batch: the transformed weights of 512 channels are 16 MB."""


def gains(sizes: ImageConvolution) -> bool:
    """Whether such a convolution is faster here than with the library."""
    if (sizes.kernel, sizes.stride, sizes.dilation) != ((3, 3), (1, 1), 1) or max(map(max, sizes.padding)) > 2:
        return False
    if sizes.channels % WIDTH or sizes.outputs % WIDTH:
        return False
    tiles = -(-sizes.rows // 2) * -(-sizes.columns // 2)
    enough = CHANNELS_A_TILE * sizes.images * tiles >= max(sizes.channels, sizes.outputs)
    return enough and 9 * sizes.rows * sizes.columns >= FEWER_PRODUCTS * POINTS * tiles


gains_in_weights = gains


def forward(sizes: ImageConvolution, relu: bool, bias: bool) -> PreparedKernel:
    """input0, weights[, bias] → output."""
    steps = Steps(f"convolution_forward{' relu' if relu else ''} winograd")
    _add_products(steps, sizes, ("input0", "weights", "output"), "bias" if bias else None, relu)
    return steps.prepared(("input0", "weights", "bias") if bias else ("input0", "weights"), ("output",))


def backward_data(sizes: ImageConvolution) -> PreparedKernel:
    """output_gradient, weights → input_gradient."""
    steps = Steps("convolution_backward_data winograd")
    (top, bottom), (left, right) = sizes.padding
    turned = replace(
        sizes,
        height=sizes.rows,
        width=sizes.columns,
        channels=sizes.outputs,
        outputs=sizes.channels,
        rows=sizes.height,
        columns=sizes.width,
        padding=((2 - top, 2 - bottom), (2 - left, 2 - right)),
    )
    _add_products(steps, turned, ("output_gradient", "weights", "input_gradient"), turned_by_half=True)
    return steps.prepared(("output_gradient", "weights"), ("input_gradient",))


def backward_weights(sizes: ImageConvolution, bias: bool) -> PreparedKernel:
    """input0, output_gradient → weights_gradient[, bias_gradient]."""
    steps, blocks = Steps("convolution_backward_weights winograd"), _Blocks(sizes)
    strides = {tile.OUTER: 1, tile.INNER: blocks.tiles, tile.A_ROW: 1, tile.A_INNER: sizes.channels}
    strides |= {tile.B_INNER: sizes.outputs, tile.C_ROW: sizes.outputs}
    product = Product(sizes.channels, sizes.outputs, strides)
    places = (
        *("input0", "output_gradient", "weights_gradient"),
        *blocks.reserve(steps),
        steps.reserve(_points(sizes.channels * sizes.outputs)),
    )
    steps.add_pass("pass", weights_pass, places, *blocks.slots, *product.slots)
    return with_bias_gradient(steps, sizes.images * sizes.rows * sizes.columns, sizes.outputs, bias)


class _Blocks:
    """The tiles of a convolution, in blocks of whole rows of tiles; a block may go over several images."""

    def __init__(self, sizes: ImageConvolution) -> None:
        down, across = -(-sizes.rows // 2), -(-sizes.columns // 2)
        rows = sizes.images * down
        self.rows = max(
            count for count in range(1, rows + 1) if rows % count == 0 and count * across <= max(TILES, across)
        )
        self.tiles = self.rows * across
        (top, _), (left, _) = sizes.padding
        # Room for whole tiles, at the lower and right edge of input and output.
        inside = replace(
            sizes, padding=((top, 2 * down + 2 - top - sizes.height), (left, 2 * across + 2 - left - sizes.width))
        )
        outside = replace(
            sizes,
            height=sizes.rows,
            width=sizes.columns,
            channels=sizes.outputs,
            padding=((0, 2 * down - sizes.rows), (0, 2 * across - sizes.columns)),
        )
        self.inside, self.outside = inside, outside
        self.slots = (self.rows, down, across, *inside.slots, *outside.slots)

    def reserve(self, steps: Steps) -> tuple[Place, ...]:
        """Places of an image of the input with its padding, one of the output if that is not made of whole tiles, and
        the points of a block's input and output."""
        image = steps.reserve(self.inside.padded_bytes)
        result = steps.reserve(self.outside.padded_bytes) if self.outside.has_padding else None
        points = (steps.reserve(_points(self.tiles * sizes.channels)) for sizes in (self.inside, self.outside))
        return (image, result, *points)


def _points(elements: int) -> int:
    """Bytes of 16 matrices. Between them is a gap: at distances of whole pages, 16 numbers would want the same place in
    the cache."""
    return POINTS * 4 * (elements + WIDTH)


def _add_products(
    steps: Steps,
    sizes: ImageConvolution,
    roles: tuple[str, str, str],
    bias: str | None = None,
    relu: bool = False,
    turned_by_half: bool = False,
) -> None:
    blocks = _Blocks(sizes)
    strides = {tile.OUTER: 1, tile.INNER: sizes.channels, tile.A_ROW: sizes.channels, tile.A_INNER: 1}
    strides |= {tile.B_INNER: sizes.outputs, tile.C_ROW: sizes.outputs}
    product = Product(blocks.tiles, sizes.outputs, strides)
    places = (
        *roles,
        *blocks.reserve(steps),
        steps.reserve(_points(sizes.channels * sizes.outputs)),
        bias,
        steps.reserve(9 * 4 * sizes.channels * sizes.outputs) if turned_by_half else None,
    )
    floor, zeros = 0.0 if relu else -np.inf, np.zeros(sizes.outputs, np.float32)
    steps.add_pass(
        "pass", products_pass, places, floor, address(zeros), *blocks.slots, *product.slots, references=(zeros,)
    )


_IMAGE, _RESULT, _INSIDE, _OUTSIDE, _KERNEL = range(3, 8)
"""Places of both passes' blocks behind three operands: an image with its padding, an image of the output or 0, the
points of a block's input, of its output, and those of the weights."""
_ROWS, _DOWN, _ACROSS = range(3)
"""Slots of the tiles: rows of tiles in a block, rows and columns of tiles in an image; then the sizes of both sides."""
_SIZES_INSIDE, _SIZES_OUTSIDE = 3, 3 + sizing.SIZES
_PRODUCT = 3 + 2 * sizing.SIZES


@inlined
def _read_rows(tiles: int, first: int, source: int, image: int, points: int) -> None:
    """The points of a block's input: a copy of every image with padding, and its tiles of 4×4."""
    t, inside = int64_at(tiles), tiles + 8 * _SIZES_INSIDE
    s = int64_at(inside)
    pixel = 4 * s[sizing.CHANNELS]
    line, step = pixel * s[sizing.PADDED_WIDTH], pixel * t[_ROWS] * t[_ACROSS] + 4 * WIDTH
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        if i == 0:
            copy_into_padded(inside, source + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel, image)
        for j in range(t[_ACROSS]):
            corner, target = image + 2 * i * line + 2 * j * pixel, points + (row * t[_ACROSS] + j) * pixel
            for vector in range(0, pixel, 4 * WIDTH):
                _transform_input(corner + vector, line, pixel, target + vector, 4 * step, step)


@inlined
def _read_gradient(tiles: int, first: int, source: int, image: int, points: int) -> None:
    """The points of a block's output gradient; image is 0 where it is made of whole tiles."""
    t, outside = int64_at(tiles), tiles + 8 * _SIZES_OUTSIDE
    s = int64_at(outside)
    pixel = 4 * s[sizing.CHANNELS]
    line, step = pixel * s[sizing.PADDED_WIDTH], pixel * t[_ROWS] * t[_ACROSS] + 4 * WIDTH
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        own = source + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel
        if image != 0 and i == 0:
            copy_into_padded(outside, own, image)
        for j in range(t[_ACROSS]):
            corner = (own if image == 0 else image) + 2 * i * line + 2 * j * pixel
            target = points + (row * t[_ACROSS] + j) * pixel
            for vector in range(0, pixel, 4 * WIDTH):
                _transform_gradient(corner + vector, line, pixel, target + vector, 4 * step, step)


@inlined
def _write_rows(tiles: int, first: int, points: int, image: int, target: int, bias: int, floor: float) -> None:
    """The output of a block from its points; image is 0 where it is made of whole tiles."""
    t, outside = int64_at(tiles), tiles + 8 * _SIZES_OUTSIDE
    s = int64_at(outside)
    pixel = 4 * s[sizing.CHANNELS]
    line, step = pixel * s[sizing.PADDED_WIDTH], pixel * t[_ROWS] * t[_ACROSS] + 4 * WIDTH
    for row in range(t[_ROWS]):
        number, i = (first + row) // t[_DOWN], (first + row) % t[_DOWN]
        own = target + number * s[sizing.HEIGHT] * s[sizing.WIDTH] * pixel
        for j in range(t[_ACROSS]):
            source = points + (row * t[_ACROSS] + j) * pixel
            corner = (own if image == 0 else image) + 2 * i * line + 2 * j * pixel
            for vector in range(0, pixel, 4 * WIDTH):
                _transform_output(
                    source + vector, 4 * step, step, corner + vector, line, pixel, bias + vector, np.float32(floor)
                )
        if image != 0 and i == t[_DOWN] - 1:
            copy_from_padded(outside, image, own)


@inlined
def _multiply_points(product: int, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int) -> None:
    for point in range(POINTS):
        for chunk in range(int64_at(product)[tile.CHUNKS]):
            multiply_chunk(product, chunk, a + point * a_step, b + point * b_step, c + point * c_step, 0)


@inlined
def _transpose_taps(weights: int, target: int, rows: int, columns: int) -> None:
    """Nine matrices of columns × rows to rows × columns."""
    for tap in range(0, 9 * 4 * rows * columns, 4 * rows * columns):
        for row in range(0, rows, WIDTH):
            for column in range(0, columns, WIDTH):
                source = weights + tap + 4 * (column * rows + row)
                _transpose(source, 4 * rows, target + tap + 4 * (row * columns + column), 4 * columns)


@native
def products_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: source, weights, target, and as `_IMAGE` says; bias or 0; room for the transposed weights, where they are
    to be turned; least value; address of zeros; tiles; product."""
    b, tiles = int64_at(arguments), np.int64(arguments) + 8 * 12
    t, product = int64_at(tiles), tiles + 8 * _PRODUCT
    inside, outside = int64_at(tiles + 8 * _SIZES_INSIDE), int64_at(tiles + 8 * _SIZES_OUTSIDE)
    c, o, images = inside[sizing.CHANNELS], outside[sizing.CHANNELS], inside[sizing.IMAGES]
    weights, tap, step = b[1], 4 * c * o, 4 * (c * o + WIDTH)
    count = t[_ROWS] * t[_ACROSS]
    if b[9] != 0:
        _transpose_taps(weights, b[9], c, o)
        weights, tap = b[9] + 8 * tap, -tap  # the last one first
    for index in range(0, 4 * c * o, 4 * WIDTH):
        _transform_weights(weights + index, 3 * tap, tap, b[_KERNEL] + index, 4 * step, step)
    clear_padded(tiles + 8 * _SIZES_INSIDE, b[_IMAGE])
    bias, floor = b[8] if b[8] != 0 else b[11], float64_at(arguments)[10]
    for first in range(0, images * t[_DOWN], t[_ROWS]):
        _read_rows(tiles, first, b[0], b[_IMAGE], b[_INSIDE])
        a_step, c_step = 4 * (count * c + WIDTH), 4 * (count * o + WIDTH)
        _multiply_points(product, b[_INSIDE], a_step, b[_KERNEL], step, b[_OUTSIDE], c_step)
        _write_rows(tiles, first, b[_OUTSIDE], b[_RESULT], b[2], bias, floor)
    return 0


@native
def weights_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, dw, and as `_IMAGE` says; tiles; product."""
    b, tiles = int64_at(arguments), np.int64(arguments) + 8 * 8
    t, product = int64_at(tiles), tiles + 8 * _PRODUCT
    inside, outside = int64_at(tiles + 8 * _SIZES_INSIDE), int64_at(tiles + 8 * _SIZES_OUTSIDE)
    c, o, images = inside[sizing.CHANNELS], outside[sizing.CHANNELS], inside[sizing.IMAGES]
    tap, step, count = 4 * c * o, 4 * (c * o + WIDTH), t[_ROWS] * t[_ACROSS]
    clear_padded(tiles + 8 * _SIZES_INSIDE, b[_IMAGE])
    if b[_RESULT] != 0:
        clear_padded(tiles + 8 * _SIZES_OUTSIDE, b[_RESULT])
    for first in range(0, images * t[_DOWN], t[_ROWS]):
        _read_rows(tiles, first, b[0], b[_IMAGE], b[_INSIDE])
        _read_gradient(tiles, first, b[1], b[_RESULT], b[_OUTSIDE])
        int64_at(product)[tile.ADD] = 0 if first == 0 else 1
        a_step, b_step = 4 * (count * c + WIDTH), 4 * (count * o + WIDTH)
        _multiply_points(product, b[_INSIDE], a_step, b[_OUTSIDE], b_step, b[_KERNEL], step)
    for index in range(0, tap, 4 * WIDTH):
        _weights_gradient(b[_KERNEL] + index, 4 * step, step, b[2] + index, 3 * tap, tap)
    return 0
