"""Encoding of data sets as batch-aligned files, with the original's scales, borders, file names and mean images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer
from crossbow.data.batch_files import BatchFiles
from crossbow.data.batch_metadata import LARGEST
from crossbow.data.batch_writer import BESIDE, DEFAULT_PARTITION, MEAN, BatchFileWriter
from crossbow.data.class_names import CLASSES, class_lines, read_class_names
from crossbow.data.dataset import Dataset
from crossbow.data.examples import Examples
from crossbow.files import file_error, kind_of_file
from crossbow.types import Array, DataError, Shape

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

AT_ONCE = 4096
"""Images that are added up at a time."""


def by_256(pixels: Pixels) -> Floats:
    """x / 256, from 0 to 255/256, as in the original's encoder of MNIST."""
    return pixels.astype(np.float32) * np.float32(0.00390625)


def by_255(pixels: Pixels) -> Floats:
    """x / 255, from 0 to 1, as uint8 images are when they are batched (`Dataset.scale`)."""
    return pixels.astype(np.float32) * np.float32(1 / 255)


def centred(pixels: Pixels) -> Floats:
    """x / 127.5 − 1, from −1 to 1, as in the original's encoders of CIFAR."""
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)


@dataclass(frozen=True)
class Encoding:
    """The encoding of a data set.

    name     prefix of the file names: NAME-train.examples.1, NAME-test.metadata, …
    convert  conversion of uint8 pixels
    border   width of a border of zeros around each image, in pixels
    mean     whether NAME-train.mean and NAME-test.mean are written: the mean image with its border, before `convert`,
             as float32
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
    "cifar100": Encoding("cifar", centred, border=4, mean=True),
    "cifar100_coarse": Encoding("cifar", centred, border=4, mean=True),
}
"""Encodings by data set. Those of MNIST and CIFAR-10 are the original's, with its default options. Those of
CIFAR-100 have the border that the original's VGG-16 expects."""


class EncodedExamples:
    """Examples as a source of float32 images and int32 or float32 labels."""

    def __init__(self, examples: Examples, encoding: Encoding) -> None:
        shape, labels = examples.image_shape, examples.labels
        self._examples, self._encoding = examples, encoding
        border = encoding.border
        sides = [(0, 0), *[(border, border) if axis > 0 else (0, 0) for axis in range(len(shape))]]
        self._borders = sides
        self.example_shape: Shape = tuple(
            size + before + after for size, (before, after) in zip(shape, sides[1:], strict=True)
        )
        self.label_shape: Shape = labels.shape[1:] or (1,)
        self.example_type = "float"
        self.label_type = "float" if labels.dtype.kind == "f" else "int"

    def __len__(self) -> int:
        return len(self._examples)

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        images = self._images(start, stop)
        numbers: Array = self._encoding.convert(images) if images.dtype == np.uint8 else images  # type: ignore[arg-type]
        labels = self._examples.labels[start:stop].reshape(-1, *self.label_shape)
        return np.pad(numbers.astype(np.float32, copy=False), self._borders), labels

    def _images(self, start: int, stop: int) -> Array:
        return self._examples.read_images(np.arange(start, stop))

    def mean(self) -> Floats:
        """The mean image, before pixels are converted."""
        total: NDArray[Any] = np.zeros(self._examples.image_shape, np.float64)
        for start in range(0, len(self), AT_ONCE):
            images: NDArray[Any] = self._images(start, min(start + AT_ONCE, len(self)))
            total += images.sum(axis=0, dtype=np.float64)
        mean = total.astype(np.float32) / np.float32(len(self))
        return np.pad(mean, self._borders[1:])


def encode(
    data: Dataset, encoding: Encoding, directory: Path, batch_size: int, partition_size: int = DEFAULT_PARTITION
) -> list[Path]:
    """Write the training examples as NAME-train and the check examples as NAME-test, each with the names of the classes
    if they are known. Returns the metadata's paths.

    The metadata files are written after all others. The metadata files of an older data set are removed first,
    including that of its check examples if the new data set has none.

    Raises DataError if a batch does not fit into a file, or a file cannot be written.
    """
    phases = {f"{encoding.name}-train": data.train, f"{encoding.name}-test": data.check}
    sources = {name: EncodedExamples(examples, encoding) for name, examples in phases.items() if examples is not None}
    writer = BatchFileWriter(
        directory,
        sources,
        batch_size,
        partition_size,
        also_replaced=phases.keys() - sources.keys(),
        class_names=data.class_names,
    )
    beside: dict[str, bytes] = {}
    if encoding.mean:
        beside |= {f"{name}{MEAN}": source.mean().astype("<f4").tobytes() for name, source in sources.items()}
    if lines := class_lines(data.class_names):
        beside |= {f"{name}{CLASSES}": lines for name in sources}
    return writer.write(beside)


def write_batch_files(
    data: Dataset,
    directory: str | os.PathLike[str],
    batch_size: int,
    *,
    name: str = "data",
    partition_size: int = DEFAULT_PARTITION,
) -> list[Path]:
    """Write any data set as batch-aligned files: its training examples as NAME-train, and its check examples, if it has
    any, as NAME-test. `batch_files` reads them.

    uint8 pixels x become x / 255, as they are when they are batched, so training gives the same weights. Other numbers
    become float32. Integer labels are stored as int32, others as float32.

    batch_size       examples in a batch of the files; training may use another one
    name             beginning of the file names
    partition_size   maximum size of a file, in bytes

    Returns the paths of the metadata files. They are written last; existing files of these names are replaced.

    Raises DataError if an argument is wrong, if the directory has a data set of this name with examples of another
    shape or with other classes, or if a file cannot be written. Then no new file is left.

    >>> import tempfile
    >>> data = Dataset((np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 2, 1])))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     (path,) = write_batch_files(data, directory, 2)
    ...     print(path.name, len(BatchFiles(path)))
    data-train.metadata 4
    """
    if not isinstance(data, Dataset):
        raise DataError(f"data: expected a Dataset. Received: {type(data).__name__}")
    for setting, value, most in (("batch_size", batch_size, LARGEST), ("partition_size", partition_size, None)):
        if not is_integer(value) or value < 1 or (most is not None and value > most):
            limits = "≥ 1" if most is None else f"from 1 to {most:,}"
            raise DataError(f"{setting}: expected an integer {limits}. Received: {value!r}")
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise DataError(f"name: expected the beginning of a file name, without a directory. Received: {name!r}")
    place = Path(directory).expanduser()
    return encode(data, Encoding(name, by_255), place, int(batch_size), int(partition_size))


class _Rebatched:
    """The examples of batch-aligned files as a source."""

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
    """Copy the data set of a metadata file to another directory, with another batch size and the same name, including
    the files of its mean image and its class names. Returns the path of the new metadata.

    Raises DataError if the data set cannot be read or written, or is in the same directory.
    """
    files = BatchFiles(path)
    own = {path.parent.resolve(), *(file.parent.resolve() for pair in files.paths() for file in pair)}
    if directory.resolve() in own:
        raise DataError(f"{directory}: expected another directory than that of {path}. Received: the same")
    names = read_class_names(path.with_suffix(CLASSES))
    sources = {path.stem: _Rebatched(files)}
    writer = BatchFileWriter(directory, sources, batch_size, partition_size, class_names=names)
    (written,) = writer.write(_files_beside(path))
    return written


def _files_beside(path: Path) -> dict[str, bytes]:
    """The contents of a data set's optional files, by their names."""
    files = [path.with_suffix(suffix) for suffix in BESIDE]
    try:
        return {file.name: file.read_bytes() for file in files if kind_of_file(file) == "a file"}
    except OSError as error:
        raise file_error(error, path, "a readable file") from error
