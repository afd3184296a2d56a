"""Convolutions of 3×3 and 5×5 by Winograd's minimal filtering, with two to four times fewer products than a direct
convolution.

The output is cut into tiles of m×m, each computed from the (m + r − 1)² pixels below it, as in Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks" (2015). With A, G and B as in `winograd_transforms.py`, for every tile t
and every point p of a grid of (m + r − 1)²:

    V[p, t] = (Bᵀ x[t] B)[p]        U[p] = (G w Gᵀ)[p]        M[p, t] = V[p, t] · U[p]        y[t] = Aᵀ M[:, t] A

M[p] is a product of matrices, tiles × channels and channels × outputs, and takes most of the time. The gradients are
the transposes of that:

    D[p, t] = (A dy[t] Aᵀ)[p]       P[p] = Σ_t V[p, t]ᵀ · D[p, t]       dw = Gᵀ P G
                                    Q[p, t] = D[p, t] · U[p]ᵀ           dx = Σ_t B Q[:, t] Bᵀ, where t lies

Blocks of tiles go through all steps one after the other, so that their points stay in the cache, unless the points of
the weights do not. One thread only.

Rounding: with 6 points in a row the errors are five to ten times those of a sum of products, with 4 about as large as
those (docs/numerics.md). They are relative to the largest number of a tile's input, not of a window: a number that is
not finite, or huge, spreads to every output of its tiles, and infinity becomes NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments, Value
from crossbow.kernels.compiled import inlined, native_pass
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import WINOGRAD
from crossbow.kernels.cpu.simd import processor
from crossbow.kernels.cpu.simd import winograd_transforms as transforms
from crossbow.kernels.cpu.simd.image_convolution import (
    IMAGES,
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
from crossbow.kernels.cpu.simd.tile import LANES, PRODUCT, Product, multiply_chunk
from crossbow.kernels.cpu.simd.winograd_tiles import Tiling, best_tiling, smallest_tiling
from crossbow.kernels.cpu.simd.winograd_transforms import (
    BOUND_TRANSFORM,
    bound_transform,
    run_transform,
    transpose_square,
)
from crossbow.kernels.cpu.steps import Place, Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConvolutionBackwardData, ConvolutionBackwardWeights, ConvolutionForward

LINE, LONG_ROW = 16, 256
"""Number of elements of a cache line, and minimum number of elements of a long row (see `_width`)."""


def _taken(request: Convolution) -> bool:
    """Whether Winograd is estimated to be faster than the library."""
    sizes = own_sizes(request)
    return sizes is not None and processor.measured() and best_tiling(sizes) is not None


@WINOGRAD.kernel(ConvolutionForward, _taken)
def forward(request: ConvolutionForward) -> PreparedKernel:
    sizes = known_sizes(request)
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    whole, last = blocks.products(sizes.channels, sizes.outputs)
    steps.add_pass(
        "pass",
        forward_pass,
        x="input0",
        weights="weights",
        y="output",
        **blocks.workspace(steps),
        bias="bias" if request.bias is not None else None,
        zeros=np.zeros(sizes.outputs, np.float32),
        **blocks.arguments,
        input_transform=blocks.input_transform,
        output_transform=blocks.output_transform(0.0 if request.relu else -np.inf),
        weights_transform=blocks.weights_transform(sizes.channels, sizes.outputs),
        product=whole,
        last_product=last,
    )
    return steps.prepared(storages=chosen_storage(request))


@WINOGRAD.kernel(ConvolutionBackwardData, _taken)
def backward_data(request: ConvolutionBackwardData) -> PreparedKernel:
    sizes = known_sizes(request)
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    transposed = steps.reserve(4 * sizes.kernel[0] ** 2 * sizes.channels * sizes.outputs)
    whole, last = blocks.products(sizes.outputs, sizes.channels)
    steps.add_pass(
        "pass",
        data_pass,
        dy="output_gradient",
        weights="weights",
        dx="input_gradient",
        **blocks.workspace(steps),
        transposed=transposed,
        **blocks.arguments,
        input_transform=blocks.input_gradient_transform,
        output_transform=blocks.output_gradient_transform,
        weights_transform=blocks.weights_transform(sizes.outputs, sizes.channels),
        product=whole,
        last_product=last,
    )
    return steps.prepared()


@WINOGRAD.kernel(ConvolutionBackwardWeights, _taken)
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    sizes = known_sizes(request)
    steps, blocks = Steps(request, "winograd"), _Blocks(_chosen(sizes))
    product = Product(
        sizes.channels,
        sizes.outputs,
        outer=1,
        a_row=1,
        a_inner=_width(sizes.channels),
        b_inner=_width(sizes.outputs),
        c_row=_width(sizes.outputs),
    )
    steps.add_pass(
        "pass",
        weights_pass,
        x="input0",
        dy="output_gradient",
        dw="weights_gradient",
        **blocks.workspace(steps),
        **blocks.arguments,
        input_transform=blocks.input_transform,
        output_transform=blocks.output_gradient_transform,
        weights_transform=blocks.weights_gradient_transform,
        product=product.arguments,
    )
    if request.bias is not None:
        add_bias_gradient(steps, sizes.positions, sizes.outputs)
    return steps.prepared()


def _chosen(sizes: ImageConvolution) -> Tiling:
    """The fastest tiles, or the smallest if none are faster than the library."""
    return best_tiling(sizes) or smallest_tiling(sizes)


def _width(columns: int) -> int:
    """The distance between two rows of a matrix of points. Long rows have an odd number of cache lines: at a distance
    of a large power of two, the rows would share few sets of the cache."""
    return columns if columns < LONG_ROW else LINE * (-(-columns // LINE) | 1)


class _Blocks:
    """The arguments of a convolution's passes that depend on its tiles."""

    def __init__(self, tiling: Tiling) -> None:
        self.tiling, sizes = tiling, tiling.sizes
        m, r, down, across, x = tiling.outputs, tiling.kernel, tiling.down, tiling.across, sizes.input
        (top, _), (left, _) = x.padding
        # Memory for whole tiles at the lower and right edges of input and output.
        below, beside = m * down + r - 1 - top - x.height, m * across + r - 1 - left - x.width
        self.inside = PaddedImages(x.images, x.height, x.width, x.channels, ((top, below), (left, beside)))
        rest = ((0, m * down - sizes.rows), (0, m * across - sizes.columns))
        self.outside = PaddedImages(x.images, sizes.rows, sizes.columns, sizes.outputs, rest)
        tiles = tiling.block * across
        transposed, plain = sizes.outputs * _width(sizes.channels), sizes.channels * _width(sizes.outputs)
        elements = (tiles * _width(sizes.channels), tiles * _width(sizes.outputs), max(plain, transposed))
        # A gap between the points: at distances of whole pages, they would all map to the same cache lines.
        self.steps = tuple(4 * (count + LANES) for count in elements)
        counts = (tiling.rows, tiling.block, down, across, m, tiling.side**2, r**2)
        widths = (4 * _width(sizes.channels), 4 * _width(sizes.outputs))
        self.arguments: dict[str, Value] = {
            "tiles": dict(zip(TILES_OF_BLOCKS.names, (*counts, *self.steps, *widths), strict=True)),
            "input": self.inside.arguments,
            "output": self.outside.arguments,
        }

    def workspace(self, steps: Steps) -> dict[str, Place]:
        """Reserve the fields `WORKSPACE`."""
        points = (steps.reserve(self.tiling.side**2 * step) for step in self.steps)
        return dict(zip(WORKSPACE, (self.inside.reserve(steps), self.outside.reserve(steps), *points), strict=True))

    def products(self, inner: int, columns: int) -> tuple[Value, Value]:
        """Products of a block's tiles and weights, for whole blocks and for the last one."""
        rows, block = self.tiling.rows, self.tiling.block
        whole, last = (
            Product(
                count * self.tiling.across,
                columns,
                outer=1,
                inner=inner,
                a_row=_width(inner),
                a_inner=1,
                b_inner=_width(columns),
                c_row=_width(columns),
            )
            for count in (block, rows % block or block)
        )
        return whole.arguments, last.arguments

    @property
    def input_transform(self) -> dict[str, Value]:
        return self._pixels(transforms.INPUT, self.inside, self.steps[0], reads=True)

    @property
    def input_gradient_transform(self) -> dict[str, Value]:
        return self._pixels(transforms.INPUT_GRADIENT, self.inside, self.steps[0], reads=False)

    def output_transform(self, floor: float) -> dict[str, Value]:
        return self._pixels(transforms.OUTPUT, self.outside, self.steps[1], reads=False, floor=floor)

    @property
    def output_gradient_transform(self) -> dict[str, Value]:
        return self._pixels(transforms.OUTPUT_GRADIENT, self.outside, self.steps[1], reads=True)

    def weights_transform(self, rows: int, columns: int) -> dict[str, Value]:
        return self._taps(transforms.WEIGHTS, True, rows, columns)

    @property
    def weights_gradient_transform(self) -> dict[str, Value]:
        sizes = self.tiling.sizes
        return self._taps(transforms.WEIGHTS_GRADIENT, False, sizes.channels, sizes.outputs)

    def _pixels(self, which: int, images: PaddedImages, step: int, reads: bool, floor: float = 0.0) -> dict[str, Value]:
        """The transform from a row of tiles of images to points, or back."""
        pixel = 4 * images.channels
        grid = (self.tiling.outputs * pixel, images.padded[1] * pixel, pixel)
        points = (4 * _width(images.channels), self.tiling.side * step, step)
        return self._bound(which, grid, points, reads, tiles=self.tiling.across, elements=images.channels, floor=floor)

    def _taps(self, which: int, reads: bool, rows: int, columns: int) -> dict[str, Value]:
        """The transform from weights to points, or back. The weights are matrices of rows × columns."""
        tap, step = 4 * rows * columns, self.steps[2]
        grid = (4 * columns, self.tiling.kernel * tap, tap)
        points = (4 * _width(columns), self.tiling.side * step, step)
        if _width(columns) == columns:  # no gaps: as one long row, which has fewer partial vectors
            rows, columns = 1, rows * columns
        return self._bound(which, grid, points, reads, tiles=rows, elements=columns)

    def _bound(
        self, which: int, grid: tuple[int, ...], points: tuple[int, ...], reads: bool, **more: int | float
    ) -> dict[str, Value]:
        """reads: whether the transform is from the grid to points. grid, points: distances in bytes between tiles, rows
        and columns."""
        ends = {"source": grid, "target": points} if reads else {"source": points, "target": grid}
        distances = {
            f"{end}_{name}": distance
            for end, values in ends.items()
            for name, distance in zip(("tile", "row", "column"), values, strict=True)
        }
        return bound_transform(which, self.tiling.outputs, self.tiling.kernel, **distances, **more)


# The passes

TILES_OF_BLOCKS = Arguments(
    count=int,
    block=int,
    down=int,
    across=int,
    outputs=int,
    points=int,
    taps=int,
    input_step=int,
    output_step=int,
    weights_step=int,
    input_width=int,
    output_width=int,
)
"""Numbers of rows of tiles in all and in a block; of rows and columns of tiles in an image; of outputs in a row of a
tile; of points and of the kernel's taps. Bytes between two points of the input, the output and the weights; between two
tiles in a point of the input and of the output."""
WORKSPACE = ("padded_input", "padded_output", "input_points", "output_points", "weights_points")
"""Addresses of an image of the input and of the output with padding, or 0 without padding; of the points of a block;
and of the points of the weights."""
_SHARED: dict[str, Value] = {
    **dict.fromkeys(WORKSPACE, Address),
    "tiles": TILES_OF_BLOCKS,
    "input": IMAGES,
    "output": IMAGES,
    "input_transform": BOUND_TRANSFORM,
    "output_transform": BOUND_TRANSFORM,
    "weights_transform": BOUND_TRANSFORM,
    "product": PRODUCT,
}
FORWARD = Arguments(x=Address, weights=Address, y=Address, bias=Address, zeros=Address, **_SHARED, last_product=PRODUCT)
"""zeros: used instead of a missing bias. product, last_product: products for whole blocks and for the last one."""
DATA = Arguments(dy=Address, weights=Address, dx=Address, transposed=Address, **_SHARED, last_product=PRODUCT)
"""transposed: memory for the transposed weights."""
WEIGHTS = Arguments(x=Address, dy=Address, dw=Address, **_SHARED)


@inlined
def _read_rows(
    tiles: Any, sizes: Any, transform: Any, first: int, count: int, source: int, image: int, points: int, width: int
) -> None:
    """Compute points from rows of tiles of images, through an image with padding unless `image` is 0."""
    pixel, start = 4 * sizes.channels, image
    for row in range(count):
        number, i = (first + row) // tiles.down, (first + row) % tiles.down
        if i == 0 or image == 0:
            start = image_with_padding(sizes, source, number, image)
        line = start + tiles.outputs * i * sizes.padded_width * pixel
        run_transform(transform, line, points + row * tiles.across * width)


@inlined
def _write_rows(
    tiles: Any,
    sizes: Any,
    transform: Any,
    first: int,
    count: int,
    points: int,
    width: int,
    image: int,
    target: int,
    clear: bool,
) -> None:
    """Compute rows of tiles of images from points. clear: whether the transform adds to the image, which must then be
    cleared first."""
    pixel = 4 * sizes.channels
    for row in range(count):
        number, i = (first + row) // tiles.down, (first + row) % tiles.down
        start = image if image != 0 else target + number * sizes.height * sizes.width * pixel
        if clear and i == 0:
            clear_image(sizes, start)
        line = start + tiles.outputs * i * sizes.padded_width * pixel
        run_transform(transform, points + row * tiles.across * width, line)
        if i == tiles.down - 1:
            image_without_padding(sizes, image, target, number)


@inlined
def _multiply_points(points: int, product: Any, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int) -> None:
    for point in range(points):
        for chunk in range(product.chunks):
            multiply_chunk(product, chunk, a + point * a_step, b + point * b_step, c + point * c_step, 0)


@inlined
def _transpose_taps(weights: int, target: int, taps: int, rows: int, columns: int) -> None:
    """Transpose matrices of columns × rows, in squares. The last squares overlap the previous ones."""
    for tap in range(0, taps * 4 * rows * columns, 4 * rows * columns):
        for row in range(0, rows, LANES):
            r = min(row, rows - LANES)
            for column in range(0, columns, LANES):
                c = min(column, columns - LANES)
                source = weights + tap + 4 * (c * rows + r)
                transpose_square(source, 4 * rows, target + tap + 4 * (r * columns + c), 4 * columns)


@native_pass(FORWARD)
def forward_pass(block: Any) -> int:
    tiles, x, y = block.tiles, block.input, block.output
    a_step, b_step, c_step = tiles.input_step, tiles.weights_step, tiles.output_step
    run_transform(block.weights_transform, block.weights, block.weights_points)
    block.output_transform.block.shift = block.bias if block.bias != 0 else block.zeros
    for first in range(0, tiles.count, tiles.block):
        count = min(tiles.block, tiles.count - first)
        _read_rows(
            tiles,
            x,
            block.input_transform,
            first,
            count,
            block.x,
            block.padded_input,
            block.input_points,
            tiles.input_width,
        )
        product = block.product if count == tiles.block else block.last_product
        a, b, c = block.input_points, block.weights_points, block.output_points
        _multiply_points(tiles.points, product, a, a_step, b, b_step, c, c_step)
        _write_rows(
            tiles, y, block.output_transform, first, count, c, tiles.output_width, block.padded_output, block.y, False
        )
    return 0


@native_pass(DATA)
def data_pass(block: Any) -> int:
    tiles, dx, dy = block.tiles, block.input, block.output
    a_step, b_step, c_step = tiles.output_step, tiles.weights_step, tiles.input_step
    _transpose_taps(block.weights, block.transposed, tiles.taps, dy.channels, dx.channels)
    run_transform(block.weights_transform, block.transposed, block.weights_points)
    for first in range(0, tiles.count, tiles.block):
        count = min(tiles.block, tiles.count - first)
        _read_rows(
            tiles,
            dy,
            block.output_transform,
            first,
            count,
            block.dy,
            block.padded_output,
            block.output_points,
            tiles.output_width,
        )
        product = block.product if count == tiles.block else block.last_product
        a, b, c = block.output_points, block.weights_points, block.input_points
        _multiply_points(tiles.points, product, a, a_step, b, b_step, c, c_step)
        _write_rows(
            tiles, dx, block.input_transform, first, count, c, tiles.input_width, block.padded_input, block.dx, True
        )
    return 0


@native_pass(WEIGHTS)
def weights_pass(block: Any) -> int:
    tiles, x, dy, product = block.tiles, block.input, block.output, block.product
    a_step, b_step, c_step = tiles.input_step, tiles.output_step, tiles.weights_step
    a, b, c = block.input_points, block.output_points, block.weights_points
    for first in range(0, tiles.count, tiles.block):
        count = min(tiles.block, tiles.count - first)
        _read_rows(tiles, x, block.input_transform, first, count, block.x, block.padded_input, a, tiles.input_width)
        _read_rows(
            tiles, dy, block.output_transform, first, count, block.dy, block.padded_output, b, tiles.output_width
        )
        product.tile.inner = count * tiles.across
        product.tile.add = 0 if first == 0 else 1
        _multiply_points(tiles.points, product, a, a_step, b, b_step, c, c_step)
    run_transform(block.weights_transform, c, block.dw)
    return 0
