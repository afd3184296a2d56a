"""Random distortion of an image's colours, for training: brightness, saturation, hue and contrast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.cropping import CHOICES
from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float64_at, int64_at, native_pass, philox, uint8_at
from crossbow.kernels.native import NativeCall
from crossbow.kernels.random import halves
from crossbow.types import address

KEY = 0x696D6800
"""Separates these random numbers from others with the same seed."""
MOST_BRIGHTNESS = 32.0
"""Maximum amount that is added to pixels or subtracted, in levels."""
LEAST_FACTOR, MOST_FACTOR = 0.5, 1.5
"""Factors of saturation and contrast."""
MOST_HUE = 0.2
"""Maximum rotation of the hue, in turns."""

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_TO_RGB = np.linalg.inv(_TO_YIQ)

Matrix = NDArray[np.float64]


COLOURS = Arguments(image=Address, pixels=int, choices=CHOICES, amounts=Address, sums=Address, affine=Address)


class ColourDistortion:
    """Distorts colours in place. It keeps its working memory, so only one thread at a time may use it.

    The four amounts are uniform in the ranges of Inception's preprocessing (Szegedy et al., 2015; TensorFlow's models):
    b in [−32, 32] levels, saturation s and contrast c in [0.5, 1.5], hue h in [−0.2, 0.2] turns. With M, the rotation
    of the chroma (I, Q) of YIQ by h, scaled by s, and m, the mean colour of the image, a pixel p becomes

        p' = M (p + b),   p'' = M (m + b) + c (p' − M (m + b)) = c M p + M (b + (1 − c) m)

    rounded and clipped to [0, 255] once, at the end. The amounts are functions of (seed, epoch, index).
    """

    def __init__(self) -> None:
        self._amounts = np.zeros(4)
        self._sums = np.zeros(3, np.int64)
        self._affine = np.zeros((3, 4))
        self._block = np.zeros((), COLOURS.dtype)
        for name, array in (("amounts", self._amounts), ("sums", self._sums), ("affine", self._affine)):
            self._block[name] = address(array)
        self._measure = NativeCall("measure colours", _measure.address, (address(self._block),))
        self._apply = NativeCall("distort colours", _apply.address, (address(self._block),))

    def distort(self, image: NDArray[np.uint8], seed: int, epoch: int, index: int) -> None:
        """Distort the colours of `image` (3, H, W), which must be contiguous."""
        count = image.size // 3
        self._block["image"], self._block["pixels"] = address(image), count
        self._block["choices"] = (*halves(seed), epoch & 0xFFFFFFFF, index)
        self._measure()
        brightness, saturation, hue, contrast = amounts(self._amounts)
        matrix = chroma_matrix(saturation, hue)
        self._affine[:, :3] = contrast * matrix
        self._affine[:, 3] = matrix @ (brightness + (1 - contrast) * self._sums / count)
        self._apply()


def amounts(uniform: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Brightness, saturation, hue and contrast, computed from four uniform numbers in [0, 1)."""
    b, s, h, c = uniform.tolist()
    span = MOST_FACTOR - LEAST_FACTOR
    return (2 * b - 1) * MOST_BRIGHTNESS, LEAST_FACTOR + span * s, (2 * h - 1) * MOST_HUE, LEAST_FACTOR + span * c


def chroma_matrix(saturation: float, hue: float) -> Matrix:
    """The matrix (3, 3) on RGB pixels that multiplies the chroma by `saturation` and rotates it by `hue` turns."""
    cos, sin = (saturation * value(2 * math.pi * hue) for value in (math.cos, math.sin))
    matrix: Matrix = _TO_RGB @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ _TO_YIQ
    return matrix


@native_pass(COLOURS)
def _measure(block: Any) -> int:
    """Compute four random numbers in [0, 1), and the sum of each channel."""
    choices, count = block.choices, block.pixels
    low, high = np.uint64(choices.index & 0xFFFFFFFF), np.uint64(choices.index >> 32)
    seed_low, seed_high = np.uint64(choices.seed_low), np.uint64(choices.seed_high)
    words = philox(low, np.uint64(KEY), np.uint64(choices.epoch), high, seed_low, seed_high)
    for n in range(4):
        float64_at(block.amounts)[n] = np.float64(words[n]) / 2.0**32
    for channel in range(3):
        pixels, total = uint8_at(block.image + channel * count), np.int64(0)
        for n in range(count):
            total += pixels[n]
        int64_at(block.sums)[channel] = total
    return 0


@native_pass(COLOURS)
def _apply(block: Any) -> int:
    """Multiply all pixels by the matrix (3, 4)."""
    m, count = float64_at(block.affine), block.pixels
    red, green, blue = (uint8_at(block.image), uint8_at(block.image + count), uint8_at(block.image + 2 * count))
    a: Any = (m[0], m[1], m[2], m[3] + 0.5, m[4], m[5], m[6], m[7] + 0.5, m[8], m[9], m[10], m[11] + 0.5)
    for n in range(count):
        x, y, z = np.float64(red[n]), np.float64(green[n]), np.float64(blue[n])
        red[n] = np.int32(min(max(a[0] * x + a[1] * y + a[2] * z + a[3], 0.0), 255.0))
        green[n] = np.int32(min(max(a[4] * x + a[5] * y + a[6] * z + a[7], 0.0), 255.0))
        blue[n] = np.int32(min(max(a[8] * x + a[9] * y + a[10] * z + a[11], 0.0), 255.0))
    return 0
