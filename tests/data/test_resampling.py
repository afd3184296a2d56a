"""Resized windows of images: as Pillow resizes them, and as torchvision crops them."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import mmap
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.data.preprocessing import Window
from crossbow.data.resampling import Resampler, most_taps
from crossbow.types import address

MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
RANDOM = np.random.default_rng(0)


def noise(height: int, width: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (height, width, 3)).astype(np.uint8)


def resampled(pixels: np.ndarray, window: Window, size: int) -> np.ndarray:
    out = np.full((3, size, size), 99, np.uint8)
    Resampler(size).resample(pixels, window, out)
    return out


def by_pillow(pixels: np.ndarray, window: Window, size: int) -> np.ndarray:
    image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
    top, left, (height, width) = window.top, window.left, window.resized
    area = image.fromarray(pixels).crop((left, top, left + window.width, top + window.height))
    resized = np.asarray(area.resize((width, height), image.Resampling.BILINEAR))
    (y, x) = window.offset
    found = resized[y : y + size, x : x + size].transpose(2, 0, 1)
    return found[:, :, ::-1] if window.mirrored else found


def difference(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first.astype(int) - second).max())


def whole(height: int, width: int, size: int) -> Window:
    return Window(0, 0, height, width, (size, size))


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(224, 224, 224), (300, 300, 224), (112, 112, 224), (224, 300, 224), (321, 481, 256), (7, 5, 3), (1, 1, 5)],
)
def test_rows_first_equals_pillow(height: int, width: int, size: int) -> None:
    """Bit for bit, where Pillow resizes rows first too."""
    pixels = noise(height, width)
    window = whole(height, width, size)
    np.testing.assert_array_equal(resampled(pixels, window, size), by_pillow(pixels, window, size))


@pytest.mark.parametrize(("height", "width", "size"), [(230, 158, 224), (402, 208, 224), (40, 1, 6), (1, 40, 6)])
def test_columns_first_differs_by_one_level(height: int, width: int, size: int) -> None:
    pixels = noise(height, width)
    window = whole(height, width, size)
    assert difference(resampled(pixels, window, size), by_pillow(pixels, window, size)) <= 1


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, Window, int]:
    """Height and width of an image, a window of it, and the window's size."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns))
    size = draw(st.integers(1, 40))
    resized = (draw(st.integers(size, 60)), draw(st.integers(size, 60)))
    offset = (draw(st.integers(0, resized[0] - size)), draw(st.integers(0, resized[1] - size)))
    return height, width, Window(top, left, rows, columns, resized, offset, draw(st.booleans())), size


@settings(deadline=None, max_examples=60)
@given(windows())
def test_any_window_equals_pillow_within_one_level(case: tuple[int, int, Window, int]) -> None:
    height, width, window, size = case
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    assert difference(resampled(pixels, window, size), by_pillow(pixels, window, size)) <= 1


def test_most_taps() -> None:
    """Two supports, of a scale or 1, and one for rounding."""
    assert [most_taps(*pair) for pair in ((300, 224), (224, 224), (3, 224), (2, 224), (100, 10), (101, 10))] == [
        5, 3, 3, 2, 21, 23,
    ]  # fmt: skip
    for length, resized in itertools.product(range(1, 40), range(1, 60)):
        support, scale = max(length / resized, 1), length / resized
        centres = [(place + 0.5) * scale for place in range(resized)]
        taps = [min(int(c + support + 0.5), length) - max(int(c - support + 0.5), 0) for c in centres]
        assert max(taps) <= most_taps(length, resized)


@pytest.mark.parametrize("value", [0, 1, 128, 255])
def test_a_plain_image_stays_plain(value: int) -> None:
    """The rounded weights of a sum add to 1, and none overflows."""
    for height, width, size in ((37, 61, 9), (500, 3, 40), (5, 4, 33)):
        pixels = np.full((height, width, 3), value, np.uint8)
        assert (resampled(pixels, whole(height, width, size), size) == value).all()


def test_memory_is_used_again() -> None:
    """Results do not depend on what was resized before."""
    resampler, out = Resampler(8), np.empty((3, 8, 8), np.uint8)
    for height, width in ((90, 80), (5, 4), (20, 120)):
        pixels = noise(height, width)
        resampler.resample(pixels, whole(height, width, 8), out)
        np.testing.assert_array_equal(out, resampled(pixels, whole(height, width, 8), 8))
    weights, rows = resampler._weights, resampler._rows
    resampler.resample(noise(50, 50), whole(50, 50, 8), out)
    assert resampler._weights is weights
    assert resampler._rows is rows


@pytest.mark.parametrize(
    "window",
    [
        Window(0, 0, 11, 20, (8, 8)),
        Window(5, 0, 6, 20, (8, 8)),
        Window(0, -1, 10, 20, (8, 8)),
        Window(0, 0, 0, 20, (8, 8)),
        Window(0, 0, 10, 20, (8, 7)),
        Window(0, 0, 10, 20, (8, 9), (0, 2)),
        Window(0, 0, 10, 20, (9, 9), (-1, 0)),
    ],
    ids=str,
)
def test_windows_outside_of_an_image(window: Window) -> None:
    with pytest.raises(ValueError, match=r"expected a window of 8×8 in 10×20 pixels\. Received: Window"):
        resampled(noise(10, 20), window, 8)


def test_arrays_that_are_not_contiguous() -> None:
    resampler, window = Resampler(8), whole(10, 20, 8)
    out = np.empty((3, 8, 8), np.uint8)
    for pixels, target in (
        (noise(20, 10).transpose(1, 0, 2), out),
        (noise(10, 20), out[:, :, ::-1]),
        (noise(10, 20), out[:, :4]),
    ):
        with pytest.raises(ValueError, match="expected contiguous arrays"):
            resampler.resample(pixels, window, target)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does it")
@pytest.mark.parametrize("size", [8, 20, 40])
def test_nothing_after_an_image_is_read(size: int) -> None:
    """The page after the image must not be touched: reading it would end the process."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    pages = np.frombuffer(memory, np.uint8)
    height, width = 20, page // 60
    pixels = pages[page - 60 * width : page].reshape(height, width, 3)
    pixels[...] = noise(height, width)
    libc = ctypes.CDLL(None, use_errno=True)
    after = ctypes.c_void_p(address(pages) + page)
    assert libc.mprotect(after, ctypes.c_size_t(page), 0) == 0
    try:
        window = whole(height, width, size)
        np.testing.assert_array_equal(resampled(pixels, window, size), resampled(pixels.copy(), window, size))
    finally:
        libc.mprotect(after, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
