"""Convolutions whose numbers of channels do not fill vectors of 16, as products of overlapping windows.

The library pads 20 → 50 channels to 32 → 64, twice the work. In channels-last order a row of a window, kw pixels of C
channels, is contiguous, and so is the same row of the next window, sw · C elements on. So a row of the output is, for
each row u of the kernel, the product of a matrix of overlapping rows and one of weights, and tiles (`tile.py`) take the
edges in smaller vectors. With the weights as (kh, kw · C, O):

    y[i, j]      = b + Σ_u  x[i·sh + u, j·sw …] · w[u]
    dw[u]        = Σ_{n, i, j}  x[i·sh + u, j·sw …]ᵀ · dy[n, i, j]
    dx[i·sh + u, j·sw …]  +=  dy[i, j] · w[u]ᵀ

All others take this way too where oneDNN is not installed, or refuses. One thread only; with padding, images pass
through a padded copy.
"""

from __future__ import annotations

import numpy as np

from crossbow.kernels.compiled import float32_at, int64_at, native
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import PASSES, SIMD
from crossbow.kernels.cpu.simd import image_convolution as sizing
from crossbow.kernels.cpu.simd import processor, tile
from crossbow.kernels.cpu.simd.image_convolution import (
    Convolution,
    ImageConvolution,
    chosen_storage,
    clear_image,
    image_with_padding,
    image_without_padding,
    known_sizes,
    own_sizes,
)
from crossbow.kernels.cpu.simd.tile import Product, multiply_chunk
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConvolutionBackwardData, ConvolutionBackwardWeights, ConvolutionForward

WASTE = 1.3
"""How many times the work the library has to do, in whole vectors of inputs and outputs, that this gains
(`python -m benchmarks.pieces`)."""
FEW = 4
"""Input channels up to which the library does not fill them up to a vector. With a single one its weight gradient is
slower all the same."""
SUMMED = 1024
"""Positions whose products are added up before the sum is added to the weight gradient: the rounding error of one sum
grows with their number."""


def gains(sizes: ImageConvolution) -> bool:
    """Whether such a convolution is faster here than with the library."""
    filled = _whole(sizes.outputs) * (_whole(sizes.channels) if sizes.channels > FEW else sizes.channels)
    return processor.measured() and filled >= WASTE * sizes.outputs * sizes.channels


def gains_in_weights(sizes: ImageConvolution) -> bool:
    """Whether its weight gradient is."""
    return gains(sizes) or (processor.measured() and sizes.channels == 1)


def _taken(request: Convolution) -> bool:
    sizes = own_sizes(request)
    if sizes is None:
        return False
    return gains_in_weights(sizes) if isinstance(request, ConvolutionBackwardWeights) else gains(sizes)


def _whole(channels: int) -> int:
    return -(-channels // tile.LANES) * tile.LANES


@SIMD.kernel(ConvolutionForward, _taken)
@PASSES.kernel(ConvolutionForward, lambda request: own_sizes(request) is not None)
def forward(request: ConvolutionForward) -> PreparedKernel:
    sizes, bias = known_sizes(request), request.bias is not None
    strides = {
        tile.OUTER: sizes.kernel[0],
        tile.INNER: sizes.window,
        tile.A_ROW: sizes.stride[1] * sizes.channels,
        tile.A_OUTER: sizes.dilation * sizes.input.padded[1] * sizes.channels,
        tile.A_INNER: 1,
        tile.B_OUTER: sizes.window * sizes.outputs,
        tile.B_INNER: sizes.outputs,
        tile.C_ROW: sizes.outputs,
        tile.RELU: int(request.relu),
    }
    product = Product(sizes.columns, sizes.outputs, strides)
    steps = Steps(request, "narrow")
    places = ("input0", "weights", "output", sizes.input.reserve(steps), "bias" if bias else None)
    steps.add_pass("pass", forward_pass, places, *sizes.slots, *product.slots)
    return steps.prepared(storages=chosen_storage(request))


@SIMD.kernel(ConvolutionBackwardWeights, _taken)
@PASSES.kernel(ConvolutionBackwardWeights, lambda request: own_sizes(request) is not None)
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    sizes = known_sizes(request)
    strides = {
        tile.OUTER: sizes.rows,
        tile.INNER: sizes.columns,
        tile.A_ROW: 1,
        tile.A_OUTER: sizes.stride[0] * sizes.input.padded[1] * sizes.channels,
        tile.A_INNER: sizes.stride[1] * sizes.channels,
        tile.B_OUTER: sizes.columns * sizes.outputs,
        tile.B_INNER: sizes.outputs,
        tile.C_ROW: sizes.outputs,
    }
    product = Product(sizes.window, sizes.outputs, strides)
    steps = Steps(request, "narrow")
    places = ("input0", "output_gradient", "weights_gradient", sizes.input.reserve(steps), None)
    steps.add_pass("pass", weights_pass, places, *sizes.slots, *product.slots)
    if request.bias is not None:
        add_bias_gradient(steps, sizes.positions, sizes.outputs)
    return steps.prepared()


@SIMD.kernel(ConvolutionBackwardData, _taken)
@PASSES.kernel(ConvolutionBackwardData, lambda request: own_sizes(request) is not None)
def backward_data(request: ConvolutionBackwardData) -> PreparedKernel:
    sizes = known_sizes(request)
    strides = {
        tile.OUTER: 1,
        tile.INNER: sizes.outputs,
        tile.A_ROW: sizes.outputs,
        tile.A_INNER: 1,
        tile.B_INNER: sizes.window,
        tile.C_ROW: sizes.stride[1] * sizes.channels,
        tile.ADD: 1,
    }
    product = Product(sizes.columns, sizes.window, strides)
    steps = Steps(request, "narrow")
    transposed = steps.reserve(4 * sizes.kernel[0] * sizes.outputs * sizes.window)
    places = ("output_gradient", "weights", "input_gradient", sizes.input.reserve(steps), transposed)
    steps.add_pass("pass", data_pass, places, *sizes.slots, *product.slots)
    return steps.prepared()


_SIZES = 5
"""Where the sizes begin in the passes' blocks, behind five addresses; the product follows them."""
_PRODUCT = _SIZES + sizing.SIZES


@native
def forward_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, weights, y, padded image or 0, bias or 0; sizes; product."""
    b, sizes, product = int64_at(arguments), np.int64(arguments) + 8 * _SIZES, np.int64(arguments) + 8 * _PRODUCT
    s = int64_at(sizes)
    for n in range(s[sizing.IMAGES]):
        image = image_with_padding(sizes, b[0], n, b[3])
        for chunk in range(int64_at(product)[tile.CHUNKS]):
            for i in range(s[sizing.ROWS]):
                a = image + 4 * i * s[sizing.ROW_STRIDE] * s[sizing.PADDED_WIDTH] * s[sizing.CHANNELS]
                multiply_chunk(
                    product,
                    chunk,
                    a,
                    b[1],
                    b[2] + 4 * (n * s[sizing.ROWS] + i) * s[sizing.COLUMNS] * s[sizing.OUTPUTS],
                    b[4],
                )
    return 0


@native
def weights_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, dy, dw, padded image or 0, nothing; sizes; product."""
    b, sizes, product = int64_at(arguments), np.int64(arguments) + 8 * _SIZES, np.int64(arguments) + 8 * _PRODUCT
    s, window = int64_at(sizes), int64_at(sizes)[sizing.KERNEL_COLUMNS] * int64_at(sizes)[sizing.CHANNELS]
    rows, step = s[sizing.ROWS], max(1, SUMMED // s[sizing.COLUMNS])
    for n in range(s[sizing.IMAGES]):
        image = image_with_padding(sizes, b[0], n, b[3])
        for first in range(0, rows, step):
            int64_at(product)[tile.OUTER] = min(step, rows - first)
            int64_at(product)[tile.ADD] = 0 if n == 0 and first == 0 else 1
            for chunk in range(int64_at(product)[tile.CHUNKS]):
                for u in range(s[sizing.KERNEL_ROWS]):
                    row = first * s[sizing.ROW_STRIDE] + u * s[sizing.DILATION]
                    a, dy = (
                        image + 4 * row * s[sizing.PADDED_WIDTH] * s[sizing.CHANNELS],
                        b[1] + 4 * (n * rows + first) * s[sizing.COLUMNS] * s[sizing.OUTPUTS],
                    )
                    multiply_chunk(product, chunk, a, dy, b[2] + 4 * u * window * s[sizing.OUTPUTS], 0)
    return 0


@native
def data_pass(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: dy, weights, dx, padded image or 0, room for the transposed weights; sizes; product."""
    b, sizes, product = int64_at(arguments), np.int64(arguments) + 8 * _SIZES, np.int64(arguments) + 8 * _PRODUCT
    s, window, outputs = (
        int64_at(sizes),
        int64_at(sizes)[sizing.KERNEL_COLUMNS] * int64_at(sizes)[sizing.CHANNELS],
        int64_at(sizes)[sizing.OUTPUTS],
    )
    weights, transposed = float32_at(b[1]), float32_at(b[4])
    for u in range(s[sizing.KERNEL_ROWS]):
        for first in range(0, window, 8):  # a few rows at a time, or every number would be in a cache line of its own
            for o in range(outputs):
                for index in range(first, min(first + 8, window)):
                    transposed[(u * outputs + o) * window + index] = weights[(u * window + index) * outputs + o]
    for n in range(s[sizing.IMAGES]):
        own = b[2] + 4 * n * s[sizing.HEIGHT] * s[sizing.WIDTH] * s[sizing.CHANNELS]
        image = own if b[3] == 0 else b[3]
        clear_image(sizes, image)
        for u in range(s[sizing.KERNEL_ROWS]):
            for chunk in range(int64_at(product)[tile.CHUNKS]):
                for i in range(s[sizing.ROWS]):
                    a = b[0] + 4 * (n * s[sizing.ROWS] + i) * s[sizing.COLUMNS] * outputs
                    row = (
                        image
                        + 4
                        * (i * s[sizing.ROW_STRIDE] + u * s[sizing.DILATION])
                        * s[sizing.PADDED_WIDTH]
                        * s[sizing.CHANNELS]
                    )
                    multiply_chunk(product, chunk, a, b[4] + 4 * u * outputs * window, row, 0)
        image_without_padding(sizes, b[3], b[2], n)
    return 0
