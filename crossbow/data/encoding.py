"""Data sets to batch-aligned files, with the pixels, borders, names and means of the original's encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.batch_files import DEFAULT_PARTITION, BatchFiles, write_batch_files
from crossbow.data.dataset import Dataset, Examples
from crossbow.files import write_whole
from crossbow.types import Array, DataError, Shape

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

AT_ONCE = 4096
"""Images whose mean is computed at a time."""


def by_256(pixels: Pixels) -> Floats:
    """x / 256: from 0 to 255/256, as the original's encoder of MNIST."""
    return pixels.astype(np.float32) * np.float32(0.00390625)


def centred(pixels: Pixels) -> Floats:
    """x / 127.5 − 1: from −1 to 1, as the original's encoders of CIFAR."""
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)


@dataclass(frozen=True)
class Encoding:
    """How a data set is encoded.

    name     begins the files' names: NAME-train.examples.1, NAME-test.metadata, …
    convert  pixels to the numbers that are written
    border   pixels of zeros around each image
    mean     whether NAME-train.mean is written as well: the mean of each pixel of the image with its border, before
             `convert`, as float32
    """

    name: str
    convert: Callable[[Pixels], Floats] = by_256
    border: int = 0
    mean: bool = False


ENCODINGS = {
    "mnist": Encoding("mnist"),
    "fashion_mnist": Encoding("fashion-mnist"),
    "digits": Encoding("digits"),
    "cifar10": Encoding("cifar", centred, border=4, mean=True),
    "cifar100": Encoding("cifar", centred, mean=True),
}
"""By the data set's name. MNIST, CIFAR-10 and CIFAR-100 are encoded as by the original, with its default options."""


class EncodedExamples:
    """Examples in memory as they are written: float32 images, int32 or float32 labels."""

    def __init__(self, examples: Examples, encoding: Encoding) -> None:
        images, labels = examples.images, examples.labels
        self._examples, self._encoding = examples, encoding
        border = encoding.border if images.ndim == 4 else 0
        sides = [(0, 0), *[(border, border) if axis > 0 else (0, 0) for axis in range(images.ndim - 1)]]
        self._borders = sides
        self.example_shape: Shape = tuple(
            size + before + after for size, (before, after) in zip(images.shape[1:], sides[1:], strict=True)
        )
        self.label_shape: Shape = labels.shape[1:] or (1,)
        self.example_type = "float"
        self.label_type = "float" if labels.dtype.kind == "f" else "int"

    def __len__(self) -> int:
        return len(self._examples)

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        images: Array = self._examples.images[start:stop]
        numbers: Array = self._encoding.convert(images) if images.dtype == np.uint8 else images  # type: ignore[arg-type]
        labels = self._examples.labels[start:stop].reshape(-1, *self.label_shape)
        return np.pad(numbers.astype(np.float32, copy=False), self._borders), labels

    def mean(self) -> Floats:
        """The mean image, before pixels are converted."""
        total: NDArray[Any] = np.zeros(self._examples.image_shape, np.float64)
        for start in range(0, len(self), AT_ONCE):
            total += self._examples.images[start : start + AT_ONCE].sum(axis=0, dtype=np.float64)
        mean = total.astype(np.float32) / np.float32(len(self))
        return np.pad(mean, self._borders[1:])


def encode(
    data: Dataset, encoding: Encoding, directory: Path, batch_size: int, partition_size: int = DEFAULT_PARTITION
) -> list[Path]:
    """Write the training examples as NAME-train and those to check with as NAME-test. Returns the metadata's paths.

    Raises DataError where a batch does not fit into a file, or a file cannot be written.
    """
    paths = []
    for phase, examples in (("train", data.train), ("test", data.check)):
        if examples is not None:
            source, name = EncodedExamples(examples, encoding), f"{encoding.name}-{phase}"
            paths.append(write_batch_files(directory, name, source, batch_size, partition_size))
            if encoding.mean:
                write_whole(directory / f"{name}.mean", source.mean().astype("<f4").tobytes())
    return paths


class _Rebatched:
    """The examples of batch-aligned files, without those that fill the last batch."""

    def __init__(self, files: BatchFiles) -> None:
        meta = files.metadata
        self._files = files
        self.example_shape, self.label_shape = meta.example_shape, meta.label_shape
        self.example_type, self.label_type = meta.example_type, meta.label_type

    def __len__(self) -> int:
        return len(self._files)

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        return self._files.slice(start, stop)


def rebatch(path: Path, directory: Path, batch_size: int, partition_size: int = DEFAULT_PARTITION) -> Path:
    """Write the data set of a metadata file once more, with another batch size, under the same name in another
    directory. Returns the path of its metadata.

    Raises DataError, also where the directory is the one that the data set is in.
    """
    files = BatchFiles(path)
    own = {path.parent.resolve(), *(file.parent.resolve() for pair in files.paths() for file in pair)}
    if directory.resolve() in own:
        raise DataError(f"{directory}: expected another directory than that of {path}. Received: the same")
    return write_batch_files(directory, path.stem, _Rebatched(files), batch_size, partition_size)
