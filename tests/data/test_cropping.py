"""Random areas for training: distorted bounding boxes, from the same random numbers on every machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.data.cropping import ATTEMPTS, KEY, MIRROR_KEY, RandomWindows
from crossbow.data.preprocessing import Window
from crossbow.kernels.random import below, image_words

WINDOWS = RandomWindows(224)
SIZES = [(321, 481), (480, 320), (40, 40), (9, 300), (1, 1), (2, 3), (1, 500), (2, 5), (5, 2)]
BOXES: dict[str, list[list[float]]] = {
    "none": [],
    "one": [[0.6, 0.5, 0.9, 0.95]],
    "small": [[0.9, 0.9, 1, 1]],
    "two": [[0, 0, 0.1, 0.1], [0.5, 0.2, 1, 0.7]],
    "no area": [[0.5, 0.5, 0.5, 0.9], [0.7, 0.2, 0.1, 0.9]],
    "one of two without area": [[0.5, 0.5, 0.5, 0.9], [0.8, 0.8, 1, 1]],
}


def boxes(name: str) -> np.ndarray:
    return np.array(BOXES[name], np.float32).reshape(-1, 4)


def coverage(window: Window, height: int, width: int, box: np.ndarray) -> float:
    """The fraction of a box in a window; −1 of a box without area."""
    scaled = [float(part) * length for part, length in zip(box, (width, height, width, height), strict=True)]
    xmin, ymin, xmax, ymax = scaled
    if xmax <= xmin or ymax <= ymin:
        return -1
    columns = max(min(window.left + window.width, xmax) - max(window.left, xmin), 0)
    rows = max(min(window.top + window.height, ymax) - max(window.top, ymin), 0)
    return columns * rows / (xmax - xmin) / (ymax - ymin)


def covered(window: Window, height: int, width: int, given: np.ndarray) -> bool:
    fractions = [coverage(window, height, width, box) for box in given]
    if all(fraction < 0 for fraction in fractions):
        fractions = [coverage(window, height, width, np.array([0, 0, 1, 1]))]
    return max(fractions) >= 0.1


def expected(height: int, width: int, given: np.ndarray, seed: int, epoch: int, index: int) -> Window:
    """The definition, with the random numbers in NumPy."""
    position = np.array([[epoch, index]])
    mirrored = bool(below(image_words(position, seed, MIRROR_KEY)[:, 0], 2)[0])
    for attempt in range(ATTEMPTS):
        words = image_words(position, seed, KEY + attempt)
        aspect = 3 / 4 + (4 / 3 - 3 / 4) * float(words[0, 0]) / 2**32
        heights = [
            rows
            for rows in range(1, height + 1)
            if height * width * 0.05 <= rows * math.floor(rows * aspect + 0.5) and rows <= (width + 0.5) / aspect
        ]
        heights = [rows for rows in heights if rows <= math.floor(math.sqrt(height * width / aspect) + 0.5)]
        if not heights:
            continue
        rows = heights[int(below(words[:, 1], len(heights))[0])]
        columns = min(math.floor(rows * aspect + 0.5), width)
        top, left = (int(below(words[:, n], free + 1)[0]) for n, free in ((2, height - rows), (3, width - columns)))
        window = Window(top, left, rows, columns, (224, 224), mirrored=mirrored)
        if covered(window, height, width, given):
            return window
    return Window(0, 0, height, width, (224, 224), mirrored=mirrored)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOXES)
def test_windows_are_those_of_the_definition(name: str) -> None:
    for n, (height, width) in enumerate(SIZES * 3):
        place = (2**40 * n + 7, n % 5, 3 * n + 2**35 * (n % 2))
        assert WINDOWS.choose(height, width, boxes(name), *place) == expected(height, width, boxes(name), *place)


@st.composite
def boxed_images(draw: st.DrawFn) -> tuple[int, int, np.ndarray]:
    sides = st.integers(1, 700)
    parts = st.floats(0, 1, width=32)
    count = draw(st.integers(0, 4))
    values = [[draw(parts) for _ in range(4)] for _ in range(count)]
    return draw(sides), draw(sides), np.array(values, np.float32).reshape(-1, 4)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(boxed_images(), st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**40))
def test_any_window_satisfies_the_constraints(
    image: tuple[int, int, np.ndarray], seed: int, epoch: int, index: int
) -> None:
    height, width, given = image
    window = WINDOWS.choose(height, width, given, seed, epoch, index)
    assert window.lies_in(height, width, 224)
    if (window.height, window.width) == (height, width):
        return
    assert 0.05 * height * width <= window.height * window.width
    assert 3 / 4 * (window.height - 0.5) - 0.5 <= window.width <= 4 / 3 * (window.height + 0.5) + 0.5
    assert covered(window, height, width, given)


def test_a_missing_box_is_the_whole_image() -> None:
    for index in range(20):
        with_none = WINDOWS.choose(100, 120, None, 1, 2, index)
        assert with_none == WINDOWS.choose(100, 120, boxes("none"), 1, 2, index)
        assert with_none == WINDOWS.choose(100, 120, boxes("no area"), 1, 2, index)
        assert with_none.height * with_none.width >= 0.1 * 100 * 120


def test_choices_vary_with_seed_epoch_and_index_alone() -> None:
    def choose(*place: int) -> Window:
        return RandomWindows(224).choose(300, 400, None, *place)

    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**32, 0, 0), (0, 0, 2**32)]
    assert len({choose(*place) for place in places}) == len(places)
    assert choose(5, 6, 7) == choose(5, 6, 7)


def test_all_positions_and_heights_occur() -> None:
    """The last row and column too, and about half of the windows are mirrored."""
    chosen = [WINDOWS.choose(20, 20, None, 3, 0, index) for index in range(4000)]
    assert {window.height for window in chosen} == set(range(6, 21))
    assert {window.top for window in chosen if window.height == 12} == set(range(9))
    assert {window.left for window in chosen if window.width == 12} == set(range(9))
    assert 1880 < sum(window.mirrored for window in chosen) < 2120


def test_a_narrow_image_is_taken_as_a_whole() -> None:
    assert WINDOWS.choose(1, 100, None, 0, 0, 0).width == 100
    assert WINDOWS.choose(600, 8, None, 0, 0, 0).height == 600
