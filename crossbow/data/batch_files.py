"""Batch-aligned files: a data set as batches of a fixed size, aligned to pages of memory.

A data set consists of `PREFIX.metadata`, a text file (`batch_metadata.py`), and the files `PREFIX.examples.N` and
`PREFIX.labels.N`, N from 1. Each is a sequence of batches: `batch size` examples (or labels) without gaps, then zeros
up to the next page of 4,096 bytes. Elements are little-endian int32 or float32. All files except the last have the same
number of batches, and a label file has as many as the example file of the same number. If the last batch is short, it
is filled with the first examples of the data set; their number is `fill`.

This is the original's format (`preprocess/Encoder.java`, `DatasetMetadata.java`). The original can only train with the
batch size of the files; here they can be read at any batch size.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.batch_metadata import TYPES, Metadata, read_metadata, tuple_bytes
from crossbow.files import checked_path, file_error, make_room_for_files
from crossbow.types import Array, DataError, Shape

Indices = NDArray[np.intp]


class BatchFiles:
    """Random access to a data set in batch-aligned files: `len(files)`, `files[i]`, `files.read(…)`.

    The files are mapped into memory, and never read as a whole. Opening checks their lengths and, unless `check_fill`
    is False, that the examples that fill the last batch begin with the first example. These repetitions are not
    counted.

    Each file is searched for by its name in the directory of the metadata file, then at the path in the metadata.

    Raises DataError with the file's name, what was expected and what was received.
    """

    def __init__(self, path: str | os.PathLike[str], *, check_fill: bool = True) -> None:
        self.path = checked_path("BatchFiles", path)
        self.metadata = metadata = read_metadata(self.path)
        if metadata.examples == metadata.labels:
            raise DataError(
                f"{self.path}: expected examples and labels in different files, as batch-aligned files are. "
                f"Received: {metadata.examples} for both, as of record files"
            )
        paths = self.paths()
        self._make_room(2 * len(paths))
        self._examples = _map_files([path for path, _ in paths], metadata, "examples")
        self._labels = _map_files([path for _, path in paths], metadata, "labels")
        for number, (x, y) in enumerate(zip(self._examples, self._labels, strict=True), start=1):
            if len(x) != len(y):
                raise DataError(
                    f"{self.path}: expected as many batches of labels as of examples in partition {number}, "
                    f"{len(x):,}. Received: {len(y):,}"
                )
        batches = [len(part) for part in self._examples]
        if sum(batches) != metadata.batches:
            raise DataError(
                f"{self.path}: expected {metadata.batches:,} batches (elements {metadata.elements:,}, batch size "
                f"{metadata.batch_size:,}) in {metadata.partitions:,} files. Received: {sum(batches):,}"
            )
        self._first_batches = np.cumsum([0, *batches])
        if check_fill:
            self._check_fill()

    def __len__(self) -> int:
        return self.metadata.number_of_examples

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        """The example and its label, copied."""
        number = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: expected an example from 0 to {len(self) - 1}. Received: {index}")
        examples, labels = self.slice(number, number + 1)
        return examples[0], labels[0]

    def __repr__(self) -> str:
        meta = self.metadata
        return f"BatchFiles({str(self.path)!r}: {len(self):,} examples {meta.example_shape} {meta.example_type})"

    def _check_fill(self) -> None:
        """Raise DataError unless the fill of the last batch begins with the first example, as it does if `fill` is
        correct."""
        if fill := self.metadata.fill:
            first, filling = self.slice(0, 1)[0][0], self.filling()[0][0]
            if first.tobytes() != filling.tobytes():
                raise DataError(
                    f"{self.path}: expected the last {fill:,} (fill) of {self.metadata.elements:,} elements to repeat "
                    "the first ones. Received: another example than the first; `crossbow data verify` says more"
                )

    def _make_room(self, count: int) -> None:
        """Raise the process's limit of open files if necessary: all files stay open, because Python keeps a mapped file
        open. Raises DataError if the limit cannot be raised."""
        needed, limit = make_room_for_files(count)
        if needed > limit:
            raise DataError(
                f"{self.path}: expected a limit of open files of at least {needed:,}, for {count:,} files of examples "
                f"and labels. Received: {limit:,}; with a larger --partition-size, `crossbow data encode` writes fewer "
                "files, and so does `crossbow data rebatch` where the limit is higher"
            )

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        """The examples and labels from `start` to `stop`, copied."""
        examples, labels = self.empty(stop - start)
        self.read(np.arange(start, stop), examples, labels)
        return examples, labels

    def empty(self, count: int) -> tuple[Array, Array]:
        """Uninitialised arrays for the examples and labels of `count` indices."""
        meta = self.metadata
        return (
            np.empty((count, *meta.example_shape), TYPES[meta.example_type]),
            np.empty((count, *meta.label_shape), TYPES[meta.label_type]),
        )

    def read(self, indices: Indices, examples: Array, labels: Array) -> None:
        """Copy the examples with these indices (B,) into `examples` (B, …), and their labels into `labels` (B, …)."""
        self.read_examples(indices, examples)
        self._copy(self._labels, indices, labels)

    def read_examples(self, indices: Indices, examples: Array) -> None:
        """Copy the examples with these indices (B,) into `examples` (B, …), converted to its type."""
        self._copy(self._examples, indices, examples)

    def labels(self) -> Array:
        """All labels (N, …), copied."""
        labels = np.empty((len(self), *self.metadata.label_shape), TYPES[self.metadata.label_type])
        start = 0
        for part in self._labels:
            part.check()
            count = min(len(part) * self.metadata.batch_size, len(self) - start)
            labels[start : start + count] = part.batches.reshape(-1, *self.metadata.label_shape)[:count]
            start += count
        return labels

    def partition_numbers(self) -> Indices:
        """The number of the file of each example (N,), from 0."""
        sizes = np.diff(self._first_batches) * self.metadata.batch_size
        return np.repeat(np.arange(len(sizes)), sizes)[: len(self)]

    def _copy(self, parts: Sequence[_Part], indices: Indices, out: Array) -> None:
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"{self.path}: expected indices from 0 to {len(self) - 1}. Received: {indices}")
        batches, rows = np.divmod(indices, self.metadata.batch_size)
        numbers = np.searchsorted(self._first_batches, batches, side="right") - 1
        batches, of_parts = batches - self._first_batches[numbers], numbers.tolist()
        for number in set(of_parts):
            parts[number].check()
        places = zip(of_parts, batches.tolist(), rows.tolist(), strict=True)
        for position, (number, batch, row) in enumerate(places):
            out[position] = parts[number].batches[batch, row]

    def paths(self) -> list[tuple[Path, Path]]:
        """The files of examples and of labels, in order."""
        meta = self.metadata
        return [
            (find_partition(self.path, meta.examples, number), find_partition(self.path, meta.labels, number))
            for number in range(1, meta.partitions + 1)
        ]

    def remainders(self, number: int) -> tuple[Array, Array]:
        """The padding after each batch of file `number` (from 0), (batches, pad), of examples and of labels."""
        for part in (self._examples[number], self._labels[number]):
            part.check()
        return self._examples[number].pads, self._labels[number].pads

    def filling(self) -> tuple[Array, Array]:
        """The repeated examples and labels that fill the last batch."""
        count = self.metadata.batch_size - (self.metadata.fill or 0)
        for part in (self._examples[-1], self._labels[-1]):
            part.check()
        return self._examples[-1].batches[-1, count:], self._labels[-1].batches[-1, count:]


@dataclass(frozen=True, eq=False)
class _Part:
    """A mapped file: its batches (n, batch size, …), and the padding after each (n, pad)."""

    path: Path
    mapped: mmap.mmap
    batches: Array
    pads: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.batches)

    def check(self) -> None:
        """Raise DataError if the file has become shorter. The system kills a process that reads beyond its end."""
        if (size := self.mapped.size()) < len(self.mapped):
            raise DataError(
                f"{self.path}: expected a file that does not change while it is used, of {len(self.mapped):,} bytes. "
                f"Received: {size:,} bytes"
            )


def find_partition(metadata_path: Path, prefix: str, number: int) -> Path:
    """The path of file `number`, from 1, of a prefix: in the directory of the metadata file, or as the prefix says."""
    beside = metadata_path.parent / f"{Path(prefix).name}.{number}"
    if beside.is_file():
        return beside
    stated = Path(f"{prefix}.{number}")
    if stated.is_file():
        return stated
    raise DataError(f"{metadata_path}: expected the file {stated}, or {stated.name} beside it. Received: none")


def _map_files(paths: Sequence[Path], meta: Metadata, kind: str) -> list[_Part]:
    if kind == "examples":
        shape, element, pad = meta.example_shape, meta.example_type, meta.example_pad
    else:
        shape, element, pad = meta.label_shape, meta.label_type, meta.label_pad
    batch = meta.batch_size * tuple_bytes(shape, element)
    parts = []
    for path in paths:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0 or size % (batch + pad):
                    raise DataError(
                        f"{path}: expected a whole number of batches of {batch + pad:,} bytes, {meta.batch_size:,} "
                        f"× {element} {shape} and a pad of {pad:,} bytes. Received: {size:,} bytes"
                    )
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise file_error(error, path, "a readable file") from error
        parts.append(_view(path, mapped, meta.batch_size, shape, TYPES[element], pad))
    return parts


def _view(path: Path, mapped: mmap.mmap, batch_size: int, shape: Shape, dtype: np.dtype[Any], pad: int) -> _Part:
    strides = [math.prod(shape[axis:]) * dtype.itemsize for axis in range(len(shape) + 1)]
    batch = batch_size * strides[0]
    count = len(mapped) // (batch + pad)
    batches: Array = np.ndarray((count, batch_size, *shape), dtype, mapped, 0, (batch + pad, *strides))
    pads: NDArray[np.uint8] = np.ndarray((count, pad), np.uint8, mapped, batch if pad else 0, (batch + pad, 1))
    return _Part(path, mapped, batches, pads)
