"""Images are decoded and preprocessed as Pillow does it, in memory that is used again."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

from crossbow.data import decode_image
from crossbow.data.colours import ColourDistortion
from crossbow.data.cropping import RandomWindows
from crossbow.data.preprocessing import Preprocessing, Window, centre_window
from crossbow.data.preprocessor import Preprocessor
from tests.data.picture_files import picture
from tests.data.test_resampling import by_pillow

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "jpeg"
REAL = pytest.mark.skipif(not SHARED.is_dir(), reason="no real JPEG files beside the repository (../shared/data/jpeg)")
TRUNCATED = {"truncated_jpeg.jpg", "ultrahdr.jpg"}
SIZE = 16
FILES = [picture(0, 90, 40), picture(1, 20, 30), picture(2, 33, 120)]
"""The second is smaller than the first, the third wider than both."""


def file_by_pillow(content: bytes, window: Window, size: int) -> np.ndarray:
    return by_pillow(np.ascontiguousarray(decode_image(content).transpose(1, 2, 0)), window, size).astype(int)


def preprocessed(
    preprocessor: Preprocessor,
    content: bytes,
    choices: tuple[int, int, int] = (0, 0, 0),
    boxes: np.ndarray | None = None,
) -> np.ndarray:
    out = np.full((3, SIZE, SIZE), 99, np.uint8)
    preprocessor.write(np.frombuffer(content, np.uint8), boxes, choices, out)
    return out


def test_check_images_are_the_centre_whatever_the_choices() -> None:
    preprocessor = Preprocessor(Preprocessing(SIZE, training=False, colour_distortion=True))
    for content in FILES:
        _, height, width = decode_image(content).shape
        expected = file_by_pillow(content, centre_window(height, width, SIZE), SIZE)
        for choices in ((0, 0, 0), (1, 2, 3)):
            assert np.abs(preprocessed(preprocessor, content, choices) - expected).max() <= 1


@pytest.mark.parametrize("boxes", [None, np.array([[0.8, 0.7, 1, 1]], np.float32)], ids=["no boxes", "a box"])
def test_training_images_are_the_windows_that_are_chosen(boxes: np.ndarray | None) -> None:
    preprocessor = Preprocessor(Preprocessing(SIZE, training=True))
    for index, content in enumerate(FILES):
        _, height, width = decode_image(content).shape
        for choices in ((5, 0, index), (5, 1, index), (6, 0, index)):
            window = RandomWindows(SIZE).choose(height, width, boxes, *choices)
            expected = file_by_pillow(content, window, SIZE)
            assert np.abs(preprocessed(preprocessor, content, choices, boxes) - expected).max() <= 1


def test_colours_are_distorted_after_resampling() -> None:
    plain = Preprocessor(Preprocessing(SIZE, training=True))
    distorted = Preprocessor(Preprocessing(SIZE, training=True, colour_distortion=True))
    for index, content in enumerate(FILES):
        expected = preprocessed(plain, content, (1, 2, index))
        before = expected.copy()
        ColourDistortion().distort(expected, 1, 2, index)
        assert (expected != before).any()
        np.testing.assert_array_equal(preprocessed(distorted, content, (1, 2, index)), expected)


def test_an_image_does_not_depend_on_those_before_it() -> None:
    """Their pixels are in the memory that is used again."""
    preprocessor = Preprocessor(Preprocessing(SIZE, training=False))
    alone = [preprocessed(Preprocessor(Preprocessing(SIZE, training=False)), content) for content in FILES]
    for index in (0, 1, 2, 1, 0):
        np.testing.assert_array_equal(preprocessed(preprocessor, FILES[index]), alone[index])


@REAL
@pytest.mark.parametrize("kind", ["odd", "exif", "photos"])
def test_check_images_of_real_files_equal_pillow_within_one_level(kind: str) -> None:
    preprocessor, out = Preprocessor(Preprocessing(56, training=False)), np.empty((3, 56, 56), np.uint8)
    paths = sorted((SHARED / kind).glob("*.jp*g"))[: 20 if kind == "photos" else None]
    assert len(paths) >= 8
    for path in paths:
        if path.name in TRUNCATED:
            continue
        content = path.read_bytes()
        preprocessor.write(np.frombuffer(content, np.uint8), None, (0, 0, 0), out)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content)).convert("RGB")
        window = centre_window(image.height, image.width, 56)
        (y, x), (height, width) = window.offset, window.resized
        expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))[y : y + 56, x : x + 56]
        assert np.abs(out.astype(int) - expected.transpose(2, 0, 1)).max() <= 1, path.name
