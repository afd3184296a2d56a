"""Convolutions whose numbers of channels do not fill vectors of 16, as products of overlapping windows.

The library pads 20 → 50 channels to 32 → 64, which doubles the work. In channels-last order a row of a window, kw
pixels of C channels, is contiguous, and so is the same row of the next window, sw · C elements on. So a row of the
output is, for each row u of the kernel, the product of a matrix of overlapping rows and a matrix of weights. Tiles
(`tile.py`) use smaller vectors at the edges. With the weights as (kh, kw · C, O):

    y[i, j]      = b + Σ_u  x[i·sh + u, j·sw …] · w[u]
    dw[u]        = Σ_{n, i, j}  x[i·sh + u, j·sw …]ᵀ · dy[n, i, j]
    dx[i·sh + u, j·sw …]  +=  dy[i, j] · w[u]ᵀ

Other convolutions use these passes, too, if oneDNN is not installed or rejects them. One thread only; images with
padding are copied.
"""

from __future__ import annotations

from typing import Any

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass
from crossbow.kernels.cpu.passes.sums import add_bias_gradient
from crossbow.kernels.cpu.rooms import PASSES, SIMD
from crossbow.kernels.cpu.simd import processor, tile
from crossbow.kernels.cpu.simd.image_convolution import (
    CONVOLUTION,
    Convolution,
    ImageConvolution,
    chosen_storage,
    clear_image,
    image_with_padding,
    image_without_padding,
    known_sizes,
    own_sizes,
)
from crossbow.kernels.cpu.simd.tile import PRODUCT, Product, multiply_chunk
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConvolutionBackwardData, ConvolutionBackwardWeights, ConvolutionForward

WASTE = 1.3
"""Minimum ratio of the library's work, in whole vectors of channels, to the actual work for which these passes are
faster (`python -m benchmarks.pieces`)."""
FEW = 4
"""Maximum number of input channels that the library does not pad to a vector. With one channel, its weight gradient is
slower nevertheless."""
SUMMED = 1024
"""Number of positions that are summed before the sum is added to the weight gradient, to bound rounding errors."""


def gains(sizes: ImageConvolution) -> bool:
    """Whether these passes are faster than the library for such a convolution."""
    filled = _whole(sizes.outputs) * (_whole(sizes.channels) if sizes.channels > FEW else sizes.channels)
    return processor.measured() and filled >= WASTE * sizes.outputs * sizes.channels


def gains_in_weights(sizes: ImageConvolution) -> bool:
    """Whether they are faster for its weight gradient."""
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
    sizes = known_sizes(request)
    product = Product(
        sizes.columns,
        sizes.outputs,
        outer=sizes.kernel[0],
        inner=sizes.window,
        a_row=sizes.stride[1] * sizes.channels,
        a_outer=sizes.dilation * sizes.input.padded[1] * sizes.channels,
        a_inner=1,
        b_outer=sizes.window * sizes.outputs,
        b_inner=sizes.outputs,
        c_row=sizes.outputs,
        relu=int(request.relu),
    )
    steps = Steps(request, "narrow")
    steps.add_pass(
        "pass",
        forward_pass,
        x="input0",
        weights="weights",
        y="output",
        padded=sizes.input.reserve(steps),
        bias="bias" if request.bias is not None else None,
        sizes=sizes.arguments,
        product=product.arguments,
    )
    return steps.prepared(storages=chosen_storage(request))


@SIMD.kernel(ConvolutionBackwardWeights, _taken)
@PASSES.kernel(ConvolutionBackwardWeights, lambda request: own_sizes(request) is not None)
def backward_weights(request: ConvolutionBackwardWeights) -> PreparedKernel:
    sizes = known_sizes(request)
    product = Product(
        sizes.window,
        sizes.outputs,
        outer=sizes.rows,
        inner=sizes.columns,
        a_row=1,
        a_outer=sizes.stride[0] * sizes.input.padded[1] * sizes.channels,
        a_inner=sizes.stride[1] * sizes.channels,
        b_outer=sizes.columns * sizes.outputs,
        b_inner=sizes.outputs,
        c_row=sizes.outputs,
    )
    steps = Steps(request, "narrow")
    steps.add_pass(
        "pass",
        weights_pass,
        x="input0",
        dy="output_gradient",
        dw="weights_gradient",
        padded=sizes.input.reserve(steps),
        sizes=sizes.arguments,
        product=product.arguments,
    )
    if request.bias is not None:
        add_bias_gradient(steps, sizes.positions, sizes.outputs)
    return steps.prepared()


@SIMD.kernel(ConvolutionBackwardData, _taken)
@PASSES.kernel(ConvolutionBackwardData, lambda request: own_sizes(request) is not None)
def backward_data(request: ConvolutionBackwardData) -> PreparedKernel:
    sizes = known_sizes(request)
    product = Product(
        sizes.columns,
        sizes.window,
        outer=1,
        inner=sizes.outputs,
        a_row=sizes.outputs,
        a_inner=1,
        b_inner=sizes.window,
        c_row=sizes.stride[1] * sizes.channels,
        add=1,
    )
    steps = Steps(request, "narrow")
    transposed = steps.reserve(4 * sizes.kernel[0] * sizes.outputs * sizes.window)
    steps.add_pass(
        "pass",
        data_pass,
        dy="output_gradient",
        weights="weights",
        dx="input_gradient",
        padded=sizes.input.reserve(steps),
        transposed=transposed,
        sizes=sizes.arguments,
        product=product.arguments,
    )
    return steps.prepared()


# The passes. padded: an image of the input with its padding, or 0 if there is no padding

FORWARD = Arguments(
    x=Address, weights=Address, y=Address, padded=Address, bias=Address, sizes=CONVOLUTION, product=PRODUCT
)
WEIGHTS = Arguments(x=Address, dy=Address, dw=Address, padded=Address, sizes=CONVOLUTION, product=PRODUCT)
DATA = Arguments(
    dy=Address, weights=Address, dx=Address, padded=Address, transposed=Address, sizes=CONVOLUTION, product=PRODUCT
)


@native_pass(FORWARD)
def forward_pass(block: Any) -> int:
    sizes, x = block.sizes, block.sizes.input
    step = 4 * sizes.row_stride * x.padded_width * x.channels
    for n in range(x.images):
        image = image_with_padding(x, block.x, n, block.padded)
        for chunk in range(block.product.chunks):
            for i in range(sizes.rows):
                y = block.y + 4 * (n * sizes.rows + i) * sizes.columns * sizes.outputs
                multiply_chunk(block.product, chunk, image + i * step, block.weights, y, block.bias)
    return 0


@native_pass(WEIGHTS)
def weights_pass(block: Any) -> int:
    sizes, x, product = block.sizes, block.sizes.input, block.product
    window, outputs = sizes.kernel_columns * x.channels, sizes.outputs
    rows, step = sizes.rows, max(1, SUMMED // sizes.columns)
    for n in range(x.images):
        image = image_with_padding(x, block.x, n, block.padded)
        for first in range(0, rows, step):
            product.tile.outer = min(step, rows - first)
            product.tile.add = 0 if n == 0 and first == 0 else 1
            dy = block.dy + 4 * (n * rows + first) * sizes.columns * outputs
            for chunk in range(product.chunks):
                for u in range(sizes.kernel_rows):
                    row = first * sizes.row_stride + u * sizes.dilation
                    a = image + 4 * row * x.padded_width * x.channels
                    multiply_chunk(product, chunk, a, dy, block.dw + 4 * u * window * outputs, 0)
    return 0


@native_pass(DATA)
def data_pass(block: Any) -> int:
    sizes, x = block.sizes, block.sizes.input
    window, outputs = sizes.kernel_columns * x.channels, sizes.outputs
    weights, transposed = float32_at(block.weights), float32_at(block.transposed)
    for u in range(sizes.kernel_rows):
        for first in range(0, window, 8):  # a few rows at a time: otherwise each number is in a separate cache line
            for o in range(outputs):
                for index in range(first, min(first + 8, window)):
                    transposed[(u * outputs + o) * window + index] = weights[(u * window + index) * outputs + o]
    for n in range(x.images):
        own = block.dx + 4 * n * x.height * x.width * x.channels
        image = own if block.padded == 0 else block.padded
        clear_image(x, image)
        for u in range(sizes.kernel_rows):
            turned = block.transposed + 4 * u * outputs * window
            for chunk in range(block.product.chunks):
                for i in range(sizes.rows):
                    dy = block.dy + 4 * (n * sizes.rows + i) * sizes.columns * outputs
                    row = i * sizes.row_stride + u * sizes.dilation
                    place = image + 4 * row * x.padded_width * x.channels
                    multiply_chunk(block.product, chunk, dy, turned, place, 0)
        image_without_padding(x, block.padded, block.dx, n)
    return 0
