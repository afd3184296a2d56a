"""Settings of the preprocessing of images to one size, and the window of an image that is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, plain
from crossbow.types import DataError

Pixels = NDArray[np.uint8]
Boxes = NDArray[np.float32]
"""Bounding boxes (k, 4): xmin, ymin, xmax, ymax, relative to the size of the image."""

LARGEST_SIZE = 4096
"""Maximum height and width of preprocessed images."""


@dataclass(frozen=True)
class Preprocessing:
    """Settings of the preprocessing that converts images of any size to (3, S, S).

    size                S
    training            True: a random area, mirrored at random (`RandomWindows`); False: the centre (`centre_window`)
    colour_distortion   whether colours are distorted at random in training (`ColourDistortion`)
    """

    size: int
    training: bool
    colour_distortion: bool = False

    def __post_init__(self) -> None:
        size = plain(self.size)
        if not is_integer(size) or not 1 <= size <= LARGEST_SIZE:
            raise DataError(f"image_size: expected an integer from 1 to {LARGEST_SIZE}. Received: {size!r}")
        object.__setattr__(self, "size", size)
        distortion = plain(self.colour_distortion)
        if not isinstance(distortion, bool):
            raise DataError(f"colour_distortion: expected True or False. Received: {distortion!r}")
        object.__setattr__(self, "colour_distortion", distortion)


@dataclass(frozen=True)
class Window:
    """The S×S pixels to compute: an area of the source is resized, and the window is a part of the result.

    top, left, height, width    the area, in pixels of the source
    resized                     height and width to which the area is resized
    offset                      top and left edge of the window in the resized area
    mirrored                    whether left and right are exchanged
    """

    top: int
    left: int
    height: int
    width: int
    resized: tuple[int, int]
    offset: tuple[int, int] = (0, 0)
    mirrored: bool = False

    def lies_in(self, height: int, width: int, size: int) -> bool:
        """Whether the area lies in an image of this size, and S×S pixels lie in the resized area."""
        return (
            0 <= self.top < self.top + self.height <= height
            and 0 <= self.left < self.left + self.width <= width
            and all(0 <= at <= length - size for at, length in zip(self.offset, self.resized, strict=True))
        )


def centre_window(height: int, width: int, size: int) -> Window:
    """The central window of S×S pixels, after the shorter side is resized to 8/7 S: 256 for 224.

    Sizes are rounded as by torchvision's `Resize` and `CenterCrop`.
    """
    shorter, length = min(height, width), round(size * 8 / 7)
    resized = (int(length * height / shorter), int(length * width / shorter))
    top, left = (round((side - size) / 2) for side in resized)
    return Window(0, 0, height, width, resized, (top, left))
