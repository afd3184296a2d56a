"""Windows of images, by hand, and at the places that an image's random words name."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.random import image_words
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ImageTransform, ImageWindows
from tests.kernels.reference.running import Numbers, draw, nan, run, state, tensor


def windows(x: Numbers, size: tuple[int, int], transform: ImageTransform, seed: int | None = None) -> Numbers:
    shape = (*x.shape[:2], *size)
    kernel = Reference(np.float64).prepare(ImageWindows(tensor(x.shape), tensor(shape), transform, seed, key=3))
    run(kernel, input0=x, output=(y := nan(shape)), state=state(SLOT=1), slot_positions=positions(len(x)))
    return y


def positions(count: int) -> Numbers:
    """Of two slots; the first one is another's."""
    return np.stack([np.zeros((count, 2)), np.arange(2 * count).reshape(count, 2) + 2**33]).astype(np.int64)


def transform(padding: int = 0, mean: Numbers | None = None, scale: float = 1.0) -> ImageTransform:
    """Of images with one channel."""
    means = np.zeros((1, 1, 1)) if mean is None else mean[np.newaxis]
    return ImageTransform(padding, False, means, np.full((1, 1, 1), scale))


X = np.arange(1.0, 13).reshape(1, 1, 3, 4)


def test_the_centred_window_by_hand() -> None:
    """Of an odd difference, the upper left one."""
    assert windows(X, (1, 2), transform()).tolist() == [[[[6, 7]]]]
    assert windows(X, (2, 1), transform()).tolist() == [[[[2], [6]]]]
    assert windows(X, (3, 4), transform(mean=np.full((1, 1), 3.0), scale=2)).tolist() == (2 * X - 6).tolist()


def test_padding_is_a_pixel_of_zero_less_the_mean_image_s_mean() -> None:
    mean = np.array([[0.0, 2, 4, 6]] * 3)
    y = windows(X, (5, 6), transform(padding=1, mean=mean, scale=10))
    np.testing.assert_array_equal(y[0, 0, 1:4, 1:5], (X[0, 0] - mean) * 10)
    border = np.ones((5, 6), bool)
    border[1:4, 1:5] = False
    assert set(y[0, 0][border]) == {-30}


@pytest.mark.parametrize("mirror", [False, True])
def test_random_windows_are_where_the_words_say(mirror: bool) -> None:
    x = draw(40, 2, 5, 6)
    y = windows(x, (4, 3), ImageTransform(1, mirror, np.zeros((2, 1, 1)), np.ones((2, 1, 1))), seed=9)
    around = np.zeros((40, 2, 7, 8))
    around[:, :, 1:-1, 1:-1] = x
    words = image_words(positions(40)[1], 9, 3).astype(object)
    found = set()
    for image, window, word in zip(around, y, words, strict=True):
        top, left, turned = word[0] * 4 >> 32, word[1] * 6 >> 32, mirror and word[2] >= 2**31
        expected = image[:, top : top + 4, left : left + 3]
        np.testing.assert_array_equal(window, expected[..., ::-1] if turned else expected)
        found.add((top, turned))
    assert len(found) == (8 if mirror else 4)  # all of them come
