"""The central window of an image, as torchvision's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.torchvision_import import import_torchvision
from crossbow.data.preprocessing import Preprocessing, Window, centre_window
from crossbow.types import DataError
from tests.data.test_resampling import MISSING, by_pillow, difference, noise, resampled


@pytest.mark.parametrize("size", [(321, 481), (481, 321), (224, 224), (256, 256), (100, 130), (700, 225)])
def test_the_centre_equals_pillow_within_one_level(size: tuple[int, int]) -> None:
    """As Resize(256) and CenterCrop(224)."""
    window = centre_window(*size, 224)
    assert min(window.resized) == 256
    assert all(abs(side - 224 - 2 * at) <= 1 for side, at in zip(window.resized, window.offset, strict=True))
    pixels = noise(*size)
    assert difference(resampled(pixels, window, 224), by_pillow(pixels, window, 224)) <= 1


def test_the_centre_for_other_sizes() -> None:
    assert centre_window(100, 200, 32).resized == (37, 74)
    assert centre_window(200, 100, 299).resized == (684, 342)
    assert centre_window(24, 24, 21).offset == (2, 2)  # 1.5 is rounded to an even number, as 0.5 is
    assert centre_window(8, 8, 7).offset == (0, 0)
    assert centre_window(3, 1, 1) == Window(0, 0, 3, 1, (3, 1), (1, 0))


@pytest.mark.slow  # torchvision takes seconds to import
@pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}")
def test_the_centre_equals_torchvision_within_one_level() -> None:
    transforms = import_torchvision("transforms.v2")
    image = pytest.importorskip("PIL.Image")
    theirs: Any = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    for height, width in ((321, 481), (481, 321), (225, 700), (300, 301), (37, 50)):
        pixels = noise(height, width)
        expected = np.asarray(theirs(image.fromarray(pixels))).transpose(2, 0, 1)
        assert difference(resampled(pixels, centre_window(height, width, 224), 224), expected) <= 1


@pytest.mark.parametrize("size", [0, -1, 5000, 2.5, "224", True])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(DataError, match=r"^image_size: expected an integer from 1 to 4096\. Received: "):
        Preprocessing(size, training=True)


def test_a_distortion_that_is_no_choice() -> None:
    with pytest.raises(DataError, match=r"^colour_distortion: expected True or False\. Received: 3$"):
        Preprocessing(8, training=True, colour_distortion=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, np.int64(4096)])
def test_the_smallest_and_the_largest_size(size: Any) -> None:
    assert Preprocessing(size, training=True).size == int(size)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(0, 0, 6, 8, (4, 4)), True),  # the whole image
        (Window(5, 7, 1, 1, (4, 4)), True),  # its last pixel
        (Window(-1, 0, 6, 8, (4, 4)), False),
        (Window(0, -1, 6, 8, (4, 4)), False),
        (Window(1, 0, 6, 8, (4, 4)), False),
        (Window(0, 1, 6, 8, (4, 4)), False),
        (Window(0, 0, 0, 8, (4, 4)), False),
        (Window(0, 0, 6, 0, (4, 4)), False),
        (Window(0, 0, 6, 8, (5, 6), (0, 0)), True),
        (Window(0, 0, 6, 8, (5, 6), (1, 2)), True),
        (Window(0, 0, 6, 8, (5, 6), (2, 2)), False),
        (Window(0, 0, 6, 8, (5, 6), (1, 3)), False),
        (Window(0, 0, 6, 8, (5, 6), (-1, 0)), False),
        (Window(0, 0, 6, 8, (3, 6)), False),
    ],
)
def test_windows_that_lie_in_an_image(window: Window, expected: bool) -> None:
    assert window.lies_in(6, 8, 4) == expected
