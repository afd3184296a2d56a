"""Distorted colours: the formula, and the same random numbers on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.data.colours import KEY, ColourDistortion, amounts, chroma_matrix
from crossbow.kernels.random import image_words

DISTORTION = ColourDistortion()
IMAGE = np.random.default_rng(0).integers(0, 256, (3, 11, 13)).astype(np.uint8)
LUMA = np.array([0.299, 0.587, 0.114])


def distorted(image: np.ndarray, seed: int, epoch: int, index: int) -> np.ndarray:
    made = image.copy()
    DISTORTION.distort(made, seed, epoch, index)
    return made


def expected(image: np.ndarray, seed: int, epoch: int, index: int) -> np.ndarray:
    """One step after another, clipped and rounded at the end."""
    words = image_words(np.array([[epoch, index]]), seed, KEY)[0] / 2**32
    brightness, saturation, hue, contrast = amounts(words)
    pixels = image.reshape(3, -1) + brightness
    pixels = chroma_matrix(saturation, hue) @ pixels
    mean = pixels.mean(axis=1, keepdims=True)
    pixels = mean + contrast * (pixels - mean)
    return np.clip(np.floor(pixels + 0.5), 0, 255).astype(np.uint8).reshape(image.shape)


@pytest.mark.parametrize("place", [(0, 0, 0), (2**40 + 3, 5, 2**33 + 1), (7, 1, 2), (7, 2, 1)], ids=str)
def test_distortion_is_that_of_the_formula(place: tuple[int, int, int]) -> None:
    found, wanted = distorted(IMAGE, *place).astype(int), expected(IMAGE, *place)
    assert np.abs(found - wanted).max() <= 1  # of which the rounding may differ
    assert (found != wanted).mean() < 0.01
    assert (found != IMAGE).mean() > 0.5


def test_the_ranges_of_the_amounts() -> None:
    assert amounts(np.zeros(4)) == (-32, 0.5, -0.2, 0.5)
    assert amounts(np.full(4, 0.5)) == (0, 1, 0, 1)
    assert amounts(np.ones(4)) == (32, 1.5, 0.2, 1.5)


def test_the_chroma_matrix() -> None:
    """Without effect it is the identity; grey stays grey, luma is kept, and a whole turn is none."""
    np.testing.assert_allclose(chroma_matrix(1, 0), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(chroma_matrix(1, 1), np.eye(3), atol=1e-12)
    for saturation, hue in ((0.5, 0.1), (1.5, -0.2)):
        matrix = chroma_matrix(saturation, hue)
        np.testing.assert_allclose(matrix @ np.ones(3), np.ones(3), atol=1e-12)
        np.testing.assert_allclose(LUMA @ matrix, LUMA, atol=1e-12)
    np.testing.assert_allclose(chroma_matrix(0.5, 0.1) @ chroma_matrix(2, -0.1), np.eye(3), atol=1e-12)


def test_colours_depend_on_seed_epoch_and_index_alone() -> None:
    found = [distorted(IMAGE, *place).tobytes() for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(found)) == 4
    again = IMAGE.copy()
    ColourDistortion().distort(again, 0, 0, 1)
    assert again.tobytes() == found[3]


def test_black_and_white_are_clipped() -> None:
    image = np.zeros((3, 4, 4), np.uint8)
    image[:, 2:] = 255
    values = np.array([distorted(image, 0, 0, index) for index in range(30)])
    assert values.min() == 0
    assert values.max() == 255
