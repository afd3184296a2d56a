"""Sizes of the convolutions that we have kernels of our own for, and their images with padding around them."""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding
import numpy as np

from crossbow.kernels.compiled import float32_at, inlined, int64_at
from crossbow.kernels.interface import ConvolutionGeometry
from crossbow.kernels.onednn import binding as dnnl
from crossbow.types import Tensor

(IMAGES, HEIGHT, WIDTH, CHANNELS, OUTPUTS, ROWS, COLUMNS, KERNEL_ROWS, KERNEL_COLUMNS) = range(9)
(ROW_STRIDE, COLUMN_STRIDE, TOP, LEFT, PADDED_HEIGHT, PADDED_WIDTH, DILATION) = range(9, 16)
"""Where the sizes lie in an argument block; rows and columns are those of the output."""
SIZES = 16


@dataclass(frozen=True)
class ImageConvolution:
    """Sizes of a convolution on images of (height, width, channels)."""

    images: int
    height: int
    width: int
    channels: int
    outputs: int
    rows: int
    columns: int
    """Of the output."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: int
    """Of rows; columns have none."""

    @property
    def padded(self) -> tuple[int, int]:
        (top, bottom), (left, right) = self.padding
        return self.height + top + bottom, self.width + left + right

    @property
    def window(self) -> int:
        """Elements of a row of a window."""
        return self.kernel[1] * self.channels

    @property
    def padded_bytes(self) -> int:
        """Of an image with its padding."""
        height, width = self.padded
        return 4 * height * width * self.channels

    @property
    def has_padding(self) -> bool:
        return self.padded != (self.height, self.width)

    @property
    def slots(self) -> tuple[int, ...]:
        """As they lie in argument blocks."""
        (top, _), (left, _) = self.padding
        height, width = self.padded
        return (
            *(self.images, self.height, self.width, self.channels, self.outputs, self.rows, self.columns),
            *(*self.kernel, *self.stride, top, left, height, width, self.dilation),
        )


def image_convolution(x: Tensor, y: Tensor, geometry: ConvolutionGeometry) -> ImageConvolution | None:
    """The sizes of a convolution that our own kernels can do on this machine and thread, else None."""
    if len(x.shape) != 4 or geometry.groups != 1 or geometry.dilation[1] != 1:
        return None
    if dnnl.omp_get_max_threads() != 1 or not llvmlite.binding.get_host_cpu_features().get("avx512f"):
        return None
    (images, channels, height, width), (_, outputs, rows, columns) = x.shape, y.shape
    (kh, kw), (sh, sw) = geometry.kernel, geometry.stride
    (top, bottom), (left, right) = geometry.padding
    padding, kernel, stride = ((top, bottom), (left, right)), (kh, kw), (sh, sw)
    return ImageConvolution(
        images, height, width, channels, outputs, rows, columns, kernel, stride, padding, geometry.dilation[0]
    )


@inlined
def clear_padded(sizes: int, image: int) -> None:
    """Before the first image: padding is 0, and stays that."""
    s, pixels = int64_at(sizes), float32_at(image)
    for index in range(s[PADDED_HEIGHT] * s[PADDED_WIDTH] * s[CHANNELS]):
        pixels[index] = np.float32(0)


@inlined
def copy_into_padded(sizes: int, source: int, image: int) -> None:
    """An image into the middle of one with padding."""
    s, pixels, copy = int64_at(sizes), float32_at(source), float32_at(image)
    start, step, row = (
        (s[TOP] * s[PADDED_WIDTH] + s[LEFT]) * s[CHANNELS],
        s[PADDED_WIDTH] * s[CHANNELS],
        s[WIDTH] * s[CHANNELS],
    )
    for line in range(s[HEIGHT]):
        for index in range(row):
            copy[start + line * step + index] = pixels[line * row + index]


@inlined
def copy_from_padded(sizes: int, image: int, target: int) -> None:
    """The middle of an image with padding."""
    s, pixels, copy = int64_at(sizes), float32_at(image), float32_at(target)
    start, step, row = (
        (s[TOP] * s[PADDED_WIDTH] + s[LEFT]) * s[CHANNELS],
        s[PADDED_WIDTH] * s[CHANNELS],
        s[WIDTH] * s[CHANNELS],
    )
    for line in range(s[HEIGHT]):
        for index in range(row):
            copy[line * row + index] = pixels[start + line * step + index]
