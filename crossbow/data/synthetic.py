"""Random images of any shape, with classes that a model can learn."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, plain
from crossbow.data.dataset import Dataset
from crossbow.host_memory import physical_memory
from crossbow.types import DataError, Shape, bytes_text

CELLS = 4
"""Maximum number of areas of a class's pattern along the height and the width of each channel."""

_PATTERNS, _TRAINING, _CHECK = 0x73796E30, 0x73796E31, 0x73796E32
"""Separate the random numbers of the patterns and of the two phases."""


def synthetic(
    image_shape: Shape, number_of_classes: int = 10, *, training: int = 2048, check: int = 512, seed: int = 0
) -> Dataset:
    """Random images, uint8 (N, *image_shape), with classes, for benchmarks and for shapes without a data set.

    Every class has its own pattern, the same in both phases: areas with a constant value from 64 to 191, 4 × 4 of them
    in each channel of an image (C, H, W). An image is the pattern of its class plus noise from −64 to 63 at every
    pixel. So the label is a simple function of the image: the loss falls visibly within the first epochs, and the
    accuracy approaches 1. This does not indicate how well a network learns other data.

    image_shape   (C, H, W), or (features,), where every feature is a separate area.
    training      number of training examples. Classes alternate, so that their numbers are as equal as possible.
    check         number of check examples; 0 is none.
    seed          the same seed gives the same data set.

    Raises DataError for an invalid shape or number, and for more images than fit into the machine's memory.

    >>> data = synthetic((3, 8, 8), number_of_classes=5, training=20, check=10)
    >>> data.train.images.shape, data.train.labels[:6].tolist(), len(data.check)
    ((20, 3, 8, 8), [0, 1, 2, 3, 4, 0], 10)
    """
    image_shape, number_of_classes, training, check, seed = plain(
        (image_shape, number_of_classes, training, check, seed)
    )
    _check_shape(image_shape)
    sizes = (
        ("number_of_classes", number_of_classes, 1),
        ("training", training, 1),
        ("check", check, 0),
        ("seed", seed, 0),
    )
    for name, value, least in sizes:
        if not is_integer(value) or value < least:
            raise DataError(f"{name}: expected an integer ≥ {least}. Received: {value!r}")
    shape = tuple(image_shape)
    nbytes, memory = (number_of_classes + training + check) * math.prod(shape), physical_memory()
    if nbytes > memory:
        raise DataError(
            f"expected images and patterns of classes that fit into {bytes_text(memory)} of memory. "
            f"Received: {bytes_text(nbytes)}, with image_shape={shape}, number_of_classes={number_of_classes}, "
            f"training={training}, check={check}"
        )
    patterns = _patterns(shape, number_of_classes, seed)
    return Dataset(
        _examples(patterns, training, seed, _TRAINING),
        _examples(patterns, check, seed, _CHECK) if check else None,
        number_of_classes=number_of_classes,
        sequences=True,
    )


def _check_shape(shape: object) -> None:
    good = isinstance(shape, tuple | list) and len(shape) >= 1
    if not good or not all(is_integer(size) and size >= 1 for size in shape):  # type: ignore[attr-defined]
        raise DataError(f"image_shape: expected (C, H, W), (features,) or another shape, each ≥ 1. Received: {shape!r}")


def _random_bytes(count: int, seed: int, purpose: int) -> NDArray[np.uint8]:
    """Words of Philox4x64-10 as bytes, the same for every version of NumPy, like the order of examples."""
    key = np.array([seed & (2**64 - 1), purpose], np.uint64)
    return np.random.Philox(key=key).random_raw(-(-count // 8)).view(np.uint8)[:count]


def _patterns(shape: Shape, number_of_classes: int, seed: int) -> NDArray[np.uint8]:
    """The images of each class without noise: (classes, *shape), values from 64 to 191."""
    cells = (number_of_classes, shape[0], *(min(CELLS, length) for length in shape[1:]))
    patterns = _random_bytes(math.prod(cells), seed, _PATTERNS).reshape(cells)
    patterns >>= 1
    patterns += np.uint8(64)
    for axis, length in enumerate(shape[1:], start=2):
        patterns = patterns.take(np.arange(length) * cells[axis] // length, axis=axis)
    return patterns


def _examples(
    patterns: NDArray[np.uint8], count: int, seed: int, purpose: int
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    shape = (count, *patterns.shape[1:])
    images = _random_bytes(math.prod(shape), seed, purpose).reshape(shape)
    images >>= 1
    images -= np.uint8(64)  # modulo 256, like the following sum; together they are exact
    for start in range(0, count, len(patterns)):
        part = images[start : start + len(patterns)]
        part += patterns[: len(part)]
    return images, np.arange(count, dtype=np.int32) % np.int32(len(patterns))
