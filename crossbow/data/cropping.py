"""Random choice of the area of an image that becomes a training example."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.data.preprocessing import Boxes, Window
from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, inlined, native_pass, philox
from crossbow.kernels.native import NativeCall
from crossbow.kernels.random import halves
from crossbow.types import address

ATTEMPTS = 100
LEAST_COVERAGE = 0.1
"""Minimum fraction of a bounding box in the area."""
LEAST_ASPECT, MOST_ASPECT = 3 / 4, 4 / 3
"""Bounds of the aspect ratio of the area, width / height."""
LEAST_AREA, MOST_AREA = 0.05, 1.0
"""Bounds of the size of the area, as a fraction of the image."""

KEY = 0x696D6700
"""Separates these random numbers from others with the same seed. Attempt n uses KEY + n."""
MIRROR_KEY = KEY + ATTEMPTS


CHOICES = Arguments(seed_low=int, seed_high=int, epoch=int, index=int)
"""The numbers on which random choices for an example depend; the seed in halves of 32 bits."""
CHOICE = Arguments(
    height=int,
    width=int,
    boxes=Address,
    number_of_boxes=int,
    choices=CHOICES,
    # Results: by default the whole image.
    top=int,
    left=int,
    rows=int,
    columns=int,
    mirrored=int,
)
RESULTS = ("top", "left", "rows", "columns", "mirrored")


class RandomWindows:
    """Chooses windows for training. It keeps its working memory, so only one thread at a time may use it.

    The area is a *distorted bounding box* (Szegedy et al., 2015), as TensorFlow's `sample_distorted_bounding_box`
    chooses it. Its aspect ratio is uniform in [3/4, 4/3]. Its height is uniform among the heights for which it has
    5 % to 100 % of the image's area and fits into the image, and so is its position. It must contain at least 10 % of
    the area of one of the boxes. After 100 attempts, the whole image is taken. Half of the windows are mirrored.

    All choices are functions of (seed, epoch, index): Philox4x32-10 with the counter (index low, key, epoch low,
    index high), as `crossbow.kernels.random.image_words`.
    """

    def __init__(self, size: int) -> None:
        self._resized = (size, size)
        self._block = np.zeros((), CHOICE.dtype)
        self._call = NativeCall("choose window", _choose.address, (address(self._block),))

    def choose(self, height: int, width: int, boxes: Boxes | None, seed: int, epoch: int, index: int) -> Window:
        """The window for an image of this size.

        boxes: (k, 4), xmin, ymin, xmax, ymax in [0, 1], contiguous. Boxes without area do not count; without others,
        the whole image is the box.
        """
        count, location = (0, 0) if boxes is None else (len(boxes), address(boxes))
        image = (height, width, location, count)
        self._block[()] = (*image, (*halves(seed), epoch & 0xFFFFFFFF, index), 0, 0, height, width, 0)
        self._call()
        top, left, rows, columns, mirrored = (int(self._block[name]) for name in RESULTS)
        return Window(top, left, rows, columns, self._resized, mirrored=bool(mirrored))


@inlined
def _word_below(word: Any, count: Any) -> Any:
    """An integer in [0, count), computed from a random word as by `crossbow.kernels.random.below`."""
    return np.int64((word * np.uint64(count)) >> np.uint64(32))


@inlined
def _overlap(start: Any, length: Any, first: Any, last: Any) -> Any:
    """Length of the intersection of two intervals."""
    return max(min(start + length, last) - max(start, first), 0.0)


@inlined
def _covers(boxes: Any, count: Any, height: Any, width: Any, top: Any, left: Any, rows: Any, columns: Any) -> Any:
    """Whether the area contains enough of a box, or of the image if there is no box."""
    boxed = False
    for n in range(count):
        xmin, xmax = boxes[4 * n] * width, boxes[4 * n + 2] * width
        ymin, ymax = boxes[4 * n + 1] * height, boxes[4 * n + 3] * height
        if xmax > xmin and ymax > ymin:
            boxed = True
            inside = _overlap(left, columns, xmin, xmax) * _overlap(top, rows, ymin, ymax)
            if inside >= LEAST_COVERAGE * (xmax - xmin) * (ymax - ymin):
                return True
    return not boxed and rows * columns >= LEAST_COVERAGE * height * width


@native_pass(CHOICE)
def _choose(block: Any) -> int:
    height, width, boxes, count = block.height, block.width, float32_at(block.boxes), block.number_of_boxes
    choices = block.choices
    k0, k1, epoch = np.uint64(choices.seed_low), np.uint64(choices.seed_high), np.uint64(choices.epoch)
    low, high = np.uint64(choices.index & 0xFFFFFFFF), np.uint64(choices.index >> 32)
    least_area, most_area = LEAST_AREA * height * width, MOST_AREA * height * width
    for attempt in range(ATTEMPTS):
        w0, w1, w2, w3 = philox(low, np.uint64(KEY + attempt), epoch, high, k0, k1)
        aspect = LEAST_ASPECT + (MOST_ASPECT - LEAST_ASPECT) * (np.float64(w0) / 2.0**32)
        least = np.int64(math.sqrt(least_area / aspect) + 0.5)
        if least * np.int64(least * aspect + 0.5) < least_area:  # rounded down
            least += 1
        most = min(height, np.int64((width + 0.5) / aspect), np.int64(math.sqrt(most_area / aspect) + 0.5))
        if least > most:
            continue
        rows = least + _word_below(w1, most - least + 1)
        columns = min(np.int64(rows * aspect + 0.5), width)
        top, left = _word_below(w2, height - rows + 1), _word_below(w3, width - columns + 1)
        if _covers(boxes, count, height, width, top, left, rows, columns):
            block.top, block.left, block.rows, block.columns = top, left, rows, columns
            break
    word, _, _, _ = philox(low, np.uint64(MIRROR_KEY), epoch, high, k0, k1)
    block.mirrored = _word_below(word, 2)
    return 0
