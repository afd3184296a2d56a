"""PNG files, as Pillow reads them."""

from __future__ import annotations

import io

import numpy as np
import pytest

from crossbow.png import png
from crossbow.types import Array

image_module = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (3, 4, 7)])
def test_pillow_reads_the_same_pixels(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    read = image_module.open(io.BytesIO(png(image)))
    assert read.mode == ("L" if shape[0] == 1 else "RGB")
    np.testing.assert_array_equal(np.asarray(read).reshape(*shape[1:], shape[0]), np.moveaxis(image, 0, 2))


@pytest.mark.parametrize("image", [np.zeros((2, 4, 4), np.uint8), np.zeros((4, 4), np.uint8), np.zeros((1, 4, 4))])
def test_other_arrays(image: Array) -> None:
    with pytest.raises(ValueError, match=r"expected an image \(1 or 3, H, W\) of uint8\. Received: "):
        png(image)
