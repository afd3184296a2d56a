"""Weight gradients of 1×1 convolutions, as products of packed panels.

With the positions of all images as rows of two matrices, dw = xᵀ · dy. A tile of dw reads a few columns of many
rows. In channels-last order each of these rows is in a different cache line, and if the number of channels is a power
of two, all the lines belong to the same few sets of the cache. So blocks of positions are first copied to panels. A
panel contains the columns of one tile, position after position: `ROWS` channels of x, or `COLUMNS` outputs of dy. A
panel of dy stays in the first-level cache, and the panels of a chunk of x's channels stay in the second level. The sums
of a block are added to dw, which also bounds rounding errors. One thread only; channels and outputs fill whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import address_of, call_address, copy_bytes, float32_at, inlined, int64_at, native_pass
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import SIMD
from crossbow.kernels.cpu.simd import processor
from crossbow.kernels.cpu.simd.image_convolution import CONVOLUTION, image_convolution
from crossbow.kernels.cpu.simd.tile import LANES, PACKED, ROWS, TILE, VECTORS, tile
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.cpu.storage import BlockedStorage
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConvolutionBackwardWeights

COLUMNS = VECTORS * LANES
"""Number of columns of a tile."""
BLOCK = 2**12 // COLUMNS
"""Number of positions in a block: a panel of dy takes half of a first-level cache of 32 KiB."""
CHUNK = 32 * ROWS
"""Number of channels in a chunk: its panels take less than half of a second-level cache of 512 KiB."""
MEASURED_LANES, MEASURED_CHANNELS = 8, 64
"""Number of lanes, and minimum number of channels and of outputs, with which this pass was found to be faster than
oneDNN's (`python -m benchmarks.pieces`)."""


def _taken(request: ConvolutionBackwardWeights) -> bool:
    enough = min(request.weights.shape[:2]) >= MEASURED_CHANNELS
    return enough and processor.VECTORS.lanes == MEASURED_LANES and supported(request)


def supported(request: ConvolutionBackwardWeights) -> bool:
    """Whether the gradient is that of a 1×1 convolution without padding, on weights in blocks of whole vectors."""
    geometry = request.geometry
    sizes = image_convolution(request.x, request.dy, geometry)
    if sizes is None or sizes.kernel != (1, 1) or any(map(any, geometry.padding)):
        return False
    weights = request.weights.storage
    return (
        isinstance(weights, BlockedStorage)
        and weights.blocks == ((1, LANES), (0, LANES))
        and weights.strides[:2] == (LANES * sizes.channels, LANES * LANES)
        and weights.elements == sizes.outputs * sizes.channels
    )


@SIMD.kernel(ConvolutionBackwardWeights, _taken)
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    sizes = image_convolution(request.x, request.dy, request.geometry)
    assert sizes is not None
    channels, outputs, block = sizes.channels, sizes.outputs, min(BLOCK, sizes.positions)
    tiles = [
        tile(rows, columns, packed=True).address if 0 < rows <= channels and 0 < columns <= outputs else 0
        for columns in (COLUMNS, outputs % COLUMNS)
        for rows in (ROWS, channels % ROWS)
    ]
    steps = Steps(request, "pointwise")
    steps.add_pass(
        "pass",
        weights_pass,
        x="input0",
        dy="output_gradient",
        dw="weights_gradient",
        x_rows=steps.reserve(8 * block),
        dy_rows=steps.reserve(8 * block),
        x_panels=steps.reserve(4 * block * min(CHUNK, _whole(channels, ROWS))),
        dy_panels=steps.reserve(4 * block * _whole(outputs, COLUMNS)),
        sizes=sizes.arguments,
        tile={**dict.fromkeys(TILE.names, 0), **PACKED, "c_row": LANES, "c_vector": LANES * channels},
        tiles=np.array(tiles, np.int64),
    )
    if request.bias is not None:
        add_bias_gradient(steps, sizes.positions, outputs)
    return steps.prepared()


def _whole(columns: int, width: int) -> int:
    return -(-columns // width) * width


# The pass


def _packing(width: int) -> Any:
    """Return a function that copies rows to panels of this width, which is a constant for the compiler."""

    @inlined
    def pack(rows: int, count: int, first: int, columns: int, panels: int) -> None:
        """Copy columns first … first + columns − 1 of `count` rows to panels. rows: table of the rows' addresses. The
        last panel may have fewer columns."""
        row, whole = int64_at(rows), columns // width
        for k in range(count):
            source, target = row[k] + 4 * first, panels + 4 * width * k
            for _ in range(whole):
                copy_bytes(target, source, 4 * width)
                source += 4 * width
                target += 4 * width * count
            rest, panel = float32_at(source), float32_at(target)
            for column in range(columns - whole * width):
                panel[column] = rest[column]

    return pack


_pack_rows, _pack_columns = _packing(ROWS), _packing(COLUMNS)


@inlined
def _multiply_panels(tile: Any, tiles: int, a: int, rows: int, b: int, columns: int, c: int) -> None:
    """Add the products of all panels to C. tiles: addresses of the compiled tiles: a whole one, with the last rows,
    with the last columns, with both."""
    compiled, count = int64_at(tiles), tile.inner
    for column in range(0, columns, COLUMNS):
        narrow = 2 if column + COLUMNS > columns else 0
        tile.b = b + 4 * column * count
        tile.a = a
        tile.c = c + 4 * (column // LANES) * tile.c_vector
        for row in range(0, rows, ROWS):
            short = 1 if row + ROWS > rows else 0
            call_address(compiled[narrow + short], address_of(tile), 0, 0, 0)
            tile.a += 4 * ROWS * count
            tile.c += 4 * ROWS * tile.c_row


@native_pass(
    Arguments(
        x=Address,
        dy=Address,
        dw=Address,
        x_rows=Address,
        dy_rows=Address,
        x_panels=Address,
        dy_panels=Address,
        sizes=CONVOLUTION,
        tile=TILE,
        tiles=Address,
    )
)
def weights_pass(block: Any) -> int:
    """x_rows, dy_rows: memory for tables of the addresses of a block's rows. x_panels, dy_panels: memory for panels.
    tiles: see `_multiply_panels`."""
    sizes, x, tile = block.sizes, block.sizes.input, block.tile
    x_rows, dy_rows = int64_at(block.x_rows), int64_at(block.dy_rows)
    positions, line, column, row = x.images * sizes.rows * sizes.columns, block.x, 0, 0
    for first in range(0, positions, BLOCK):
        count = min(BLOCK, positions - first)
        for k in range(count):
            x_rows[k] = line + 4 * column * sizes.column_stride * x.channels
            dy_rows[k] = block.dy + 4 * (first + k) * sizes.outputs
            column += 1
            if column == sizes.columns:
                column, row = 0, row + 1
                above = row // sizes.rows * x.height + row % sizes.rows * sizes.row_stride
                line = block.x + 4 * above * x.width * x.channels
        tile.inner, tile.add = count, 0 if first == 0 else 1
        _pack_columns(block.dy_rows, count, 0, sizes.outputs, block.dy_panels)
        for channel in range(0, x.channels, CHUNK):
            channels = min(CHUNK, x.channels - channel)
            _pack_rows(block.x_rows, count, channel, channels, block.x_panels)
            c = block.dw + 4 * channel * tile.c_row
            _multiply_panels(tile, block.tiles, block.x_panels, channels, block.dy_panels, sizes.outputs, c)
    return 0
