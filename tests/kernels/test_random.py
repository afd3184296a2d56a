from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.random import below, image_words, keep_mask, philox, threshold


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    """The vectors that Random123 publishes for philox4x32-10."""
    np.testing.assert_array_equal(philox(np.array([counter], np.uint32), key), np.array([words], np.uint32))


def test_rows_are_independent() -> None:
    counters = np.arange(40, dtype=np.uint32).reshape(10, 4)
    together = philox(counters, (1, 2))
    for row in range(10):
        np.testing.assert_array_equal(together[row : row + 1], philox(counters[row : row + 1], (1, 2)))


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.5, 0.9])
def test_rate(ratio: float) -> None:
    elements = 400_000
    dropped = 1 - keep_mask(elements, ratio, seed=1, key=2, task=3).mean()
    deviation = (ratio * (1 - ratio) / elements) ** 0.5
    assert abs(dropped - ratio) < 4 * deviation


def test_threshold_of_the_extremes() -> None:
    assert threshold(0) == 0
    assert threshold(0.5) == 2**31
    assert threshold(1) == 2**32 - 1
    assert keep_mask(1000, 0, seed=1, key=2, task=3).all()


def test_every_position_matters_and_nothing_else() -> None:
    base = {"elements": 256, "ratio": 0.5, "seed": 2**40 + 5, "key": 2, "task": 3}
    mask = keep_mask(**base)  # type: ignore[arg-type]
    np.testing.assert_array_equal(mask, keep_mask(**base))  # type: ignore[arg-type]
    for name, value in (("seed", 5), ("seed", 2**40 + 6), ("key", 3), ("task", 4), ("task", 3 + 2**32)):
        other = keep_mask(**{**base, name: value})  # type: ignore[arg-type]
        assert 64 < np.count_nonzero(mask != other) < 192, name


def test_an_element_keeps_its_number_whatever_the_size() -> None:
    long = keep_mask(1001, 0.3, seed=1, key=2, task=3)
    for elements in (0, 1, 5, 1000):
        np.testing.assert_array_equal(keep_mask(elements, 0.3, seed=1, key=2, task=3), long[:elements])


def test_mask_is_made_of_the_words_in_order() -> None:
    words = philox(np.array([[0, 7, 9, 0], [1, 7, 9, 0]], np.uint32), (11, 0)).reshape(-1)
    np.testing.assert_array_equal(keep_mask(8, 0.5, seed=11, key=7, task=9), words >= 2**31)


def test_a_word_at_the_threshold_is_kept() -> None:
    word = int(philox(np.array([[0, 2, 3, 0]], np.uint32), (1, 0))[0, 0])
    assert keep_mask(1, word / 2**32, seed=1, key=2, task=3).item()
    assert not keep_mask(1, (word + 1) / 2**32, seed=1, key=2, task=3).item()


def test_an_image_has_four_words_by_epoch_and_index() -> None:
    positions = np.array([[0, 0], [3, 7], [2**32 + 5, 2**33 + 9]])
    words = image_words(positions, seed=2**40 + 11, key=6)
    counters = np.array([[0, 6, 0, 0], [7, 6, 3, 0], [9, 6, 5, 2]], np.uint32)
    np.testing.assert_array_equal(words, philox(counters, (11, 2**8)))


@pytest.mark.parametrize("count", [1, 2, 3, 9, 2**31, 2**32])
def test_words_become_integers_below_a_count(count: int) -> None:
    words = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    assert below(words, count).tolist() == [int(word) * count // 2**32 for word in words]
