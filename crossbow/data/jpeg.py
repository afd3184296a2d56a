"""Multithreaded decoding of many small JPEG files in one array."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from crossbow.data.images import decode_pixels
from crossbow.types import DataError, Shape

TOGETHER = 256
"""Number of images that a thread decodes at a time."""


def decode_images(
    content: NDArray[np.uint8], offsets: NDArray[np.int64], shape: Shape, source: str
) -> NDArray[np.uint8]:
    """RGB images (N, 3, H, W), all of one shape; image n is decoded from content[offsets[n] : offsets[n + 1]].

    Raises DataError, which begins with `source` and names the image.
    """
    _, height, width = shape
    images = np.empty((len(offsets) - 1, *shape), np.uint8)

    def check_size(*size: int) -> None:
        if size != (height, width):
            raise DataError(f"expected {height}×{width} pixels. Received: {size[0]}×{size[1]}")

    def decode(start: int) -> None:
        for n in range(start, min(start + TOGETHER, len(images))):
            try:
                pixels = decode_pixels(content[offsets[n] : offsets[n + 1]], check_size)
            except DataError as error:
                raise DataError(f"{source}: image {n}: {error}") from error
            images[n] = pixels.transpose(2, 0, 1)

    # The decoder releases the GIL. The first error, in the order of images, is raised.
    with ThreadPoolExecutor(_cores(), "crossbow-decode") as threads:
        for _ in threads.map(decode, range(0, len(images), TOGETHER)):
            pass
    return images


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
