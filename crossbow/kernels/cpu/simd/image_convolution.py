"""Sizes of the convolutions that our own kernels support, and images with padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossbow.kernels.arguments import Arguments, Value
from crossbow.kernels.compiled import float32_at, inlined
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.cpu.storage import lies, outputs_last, strided_storage
from crossbow.kernels.cpu.threads import max_threads
from crossbow.kernels.interface import Storage
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.types import Tensor

IMAGES = Arguments(
    images=int, height=int, width=int, channels=int, top=int, left=int, padded_height=int, padded_width=int
)
"""`PaddedImages` in an argument block. top, left: the padding before the images."""
CONVOLUTION = Arguments(
    input=IMAGES,
    outputs=int,
    rows=int,
    columns=int,
    kernel_rows=int,
    kernel_columns=int,
    row_stride=int,
    column_stride=int,
    dilation=int,
)
"""An `ImageConvolution` in an argument block."""


@dataclass(frozen=True)
class PaddedImages:
    """Images of (height, width, channels), with padding (before, after) on both axes."""

    images: int
    height: int
    width: int
    channels: int
    padding: tuple[tuple[int, int], tuple[int, int]]

    @property
    def padded(self) -> tuple[int, int]:
        (top, bottom), (left, right) = self.padding
        return self.height + top + bottom, self.width + left + right

    @property
    def arguments(self) -> dict[str, int]:
        """The fields of `IMAGES`."""
        (top, _), (left, _) = self.padding
        sizes = (self.images, self.height, self.width, self.channels, top, left, *self.padded)
        return dict(zip(IMAGES.names, sizes, strict=True))

    def reserve(self, steps: Steps) -> int | None:
        """Reserve workspace for one image with its padding; None if there is no padding."""
        height, width = self.padded
        if (height, width) == (self.height, self.width):
            return None
        return steps.reserve(4 * height * width * self.channels)


@dataclass(frozen=True)
class ImageConvolution:
    """Sizes of a convolution on images."""

    input: PaddedImages
    outputs: int
    rows: int
    columns: int
    """Rows and columns of the output."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: int
    """Dilation of rows. Columns have none."""

    @property
    def channels(self) -> int:
        return self.input.channels

    @property
    def window(self) -> int:
        """Number of elements of a row of a window."""
        return self.kernel[1] * self.channels

    @property
    def positions(self) -> int:
        """Number of positions of windows, in all images."""
        return self.input.images * self.rows * self.columns

    @property
    def arguments(self) -> dict[str, Value]:
        """The fields of `CONVOLUTION`."""
        sizes = (self.outputs, self.rows, self.columns, *self.kernel, *self.stride, self.dilation)
        return dict(zip(CONVOLUTION.names, (self.input.arguments, *sizes), strict=True))


Convolution = ConvolutionForward | ConvolutionBackwardData | ConvolutionBackwardWeights


def own_sizes(request: Convolution) -> ImageConvolution | None:
    """The sizes of a convolution; None if our own kernels do not support it with these weights."""
    if isinstance(request, ConvolutionForward):
        x, y = request.x, request.y
    else:
        x, y = request.dx if isinstance(request, ConvolutionBackwardData) else request.x, request.dy
    weights, sizes = request.weights, image_convolution(x, y, request.geometry)
    free = weights.storage is None and isinstance(request, ConvolutionForward)
    return sizes if free or lies(weights, weights.shape, outputs_last(weights.shape)) else None


def known_sizes(request: Convolution) -> ImageConvolution:
    """`own_sizes` of a supported request."""
    sizes = own_sizes(request)
    assert sizes is not None
    return sizes


def chosen_storage(request: ConvolutionForward) -> dict[str, Storage]:
    """The storage of the weights for our own kernels, unless it is already determined."""
    weights = request.weights
    if weights.storage is not None:
        return {}
    return {"weights": strided_storage(weights.shape, weights.shape, outputs_last(weights.shape))}


def image_convolution(x: Tensor, y: Tensor, geometry: ConvolutionGeometry) -> ImageConvolution | None:
    """The sizes of a convolution; None if our own kernels do not support it with this number of threads."""
    if len(x.shape) != 4 or geometry.groups != 1 or geometry.dilation[1] != 1:
        return None
    if max_threads() != 1:
        return None
    (images, channels, height, width), (_, outputs, rows, columns) = x.shape, y.shape
    (kh, kw), (sh, sw) = geometry.kernel, geometry.stride
    (top, bottom), (left, right) = geometry.padding
    before = PaddedImages(images, height, width, channels, ((top, bottom), (left, right)))
    return ImageConvolution(before, outputs, rows, columns, (kh, kw), (sh, sw), geometry.dilation[0])


@inlined
def clear_image(sizes: Any, image: int) -> None:
    """Set an image with its padding to 0. sizes: `IMAGES`."""
    pixels = float32_at(image)
    for index in range(sizes.padded_height * sizes.padded_width * sizes.channels):
        pixels[index] = np.float32(0)


@inlined
def image_with_padding(sizes: Any, images: int, number: int, padded: int) -> int:
    """The address of an image with its padding. If `padded` is 0, it is in `images`; otherwise it is `padded`, to which
    the image is copied.

    Image 0 must be the first one: only then the padding is cleared, and it stays clear.
    """
    row = sizes.width * sizes.channels
    own: int = images + 4 * number * sizes.height * row
    if padded == 0:
        return own
    if number == 0:
        clear_image(sizes, padded)
    pixels, copy = float32_at(own), float32_at(padded)
    start = (sizes.top * sizes.padded_width + sizes.left) * sizes.channels
    step = sizes.padded_width * sizes.channels
    for line in range(sizes.height):
        for index in range(row):
            copy[start + line * step + index] = pixels[line * row + index]
    return padded


@inlined
def image_without_padding(sizes: Any, padded: int, images: int, number: int) -> None:
    """Copy the inside of the padding to an image. Does nothing if `padded` is 0."""
    row = sizes.width * sizes.channels
    if padded != 0:
        pixels, copy = float32_at(padded), float32_at(images + 4 * number * sizes.height * row)
        start = (sizes.top * sizes.padded_width + sizes.left) * sizes.channels
        step = sizes.padded_width * sizes.channels
        for line in range(sizes.height):
            for index in range(row):
                copy[line * row + index] = pixels[start + line * step + index]
