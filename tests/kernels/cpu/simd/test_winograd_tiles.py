"""The choice of tiles for Winograd's convolutions."""

from __future__ import annotations

import pytest

from crossbow.kernels.cpu.simd import processor
from crossbow.kernels.cpu.simd.image_convolution import ImageConvolution, PaddedImages
from crossbow.kernels.cpu.simd.winograd_tiles import best_tiling
from crossbow.types import Shape


@pytest.mark.skipif(not processor.measured(), reason="needs vectors of 8 or 16 lanes, for which costs were measured")
@pytest.mark.parametrize(
    ("shape", "outputs", "tile"),
    [
        ((16, 64, 32, 32), 64, 4),
        ((16, 128, 16, 16), 128, 4),  # whose weights' points do not fit into the cache
        ((16, 256, 8, 8), 256, 4),
        ((32, 512, 4, 4), 512, 2),  # few tiles for the number of weights
        ((64, 512, 4, 4), 512, 4),
        ((32, 32, 6, 6), 32, 2),  # two tiles of 4×4 in a row compute 8 outputs, for 6
    ],
)
def test_larger_tiles_where_they_save_work(shape: Shape, outputs: int, tile: int) -> None:
    images, channels, height, width = shape
    padded = PaddedImages(images, height, width, channels, ((1, 1), (1, 1)))
    tiling = best_tiling(ImageConvolution(padded, outputs, height, width, (3, 3), (1, 1), 1))
    assert tiling is not None
    assert tiling.outputs == tile
