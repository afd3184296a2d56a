"""Compiled windows of images: the same crops, mirrors and numbers as the reference's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import ImageTransform, ImageWindows
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, draw, state, tensor


def transform(padding: int, mirror: bool, mean_shape: Shape) -> ImageTransform:
    scale = np.linspace(0.5, 2, mean_shape[0]).reshape(-1, 1, 1)
    return ImageTransform(padding, mirror, np.random.default_rng(1).standard_normal(mean_shape), scale)


@pairwise
@pytest.mark.parametrize(("channels", "per_pixel"), [(1, False), (3, False), (3, True), (5, True)])
@pytest.mark.parametrize("padding", [0, 2, 9])
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("window", [(5, 4), (1, 1), (6, 7)])
@pytest.mark.parametrize("seed", [None, 0, 2**40 + 1])
def test_it_is_bit_identical(
    channels: int, per_pixel: bool, padding: int, mirror: bool, window: tuple[int, int], seed: int | None
) -> None:
    """A padding of 9 is wider than the image, so that whole windows lie in it."""
    x, y = tensor((12, channels, 6, 7)), tensor((12, channels, *window))
    mean = (channels, 6, 7) if per_pixel else (channels, 1, 1)
    positions = np.random.default_rng(2).integers(0, 2**40, (3, 12, 2))
    values = {"input0": draw(x.shape), "state": state(SLOT=2), "slot_positions": positions}
    request = ImageWindows(x, y, transform(padding, mirror, mean), seed, 7)
    actual, expected = both(COMPILED, request, {"input0": x, "output": y}, values, by="numba")
    np.testing.assert_array_equal(actual["output"], expected["output"])


def test_plain_images_are_left_to_the_reference() -> None:
    plain = Tensor((2, 3, 6, 7), FLOAT32, Layout.PLAIN)
    for seed in (None, 0):
        request = ImageWindows(plain, tensor((2, 3, 5, 5)), transform(0, True, (3, 1, 1)), seed, 0)
        assert COMPILED.prepare(request).name.endswith("reference")
