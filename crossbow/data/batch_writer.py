"""Writing batch-aligned files; see `batch_files.py`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from crossbow.data.batch_metadata import (
    LARGEST,
    TYPES,
    Metadata,
    check_prefix,
    pad_to_page,
    read_metadata,
    tuple_bytes,
    write_metadata,
)
from crossbow.data.class_names import CLASSES, read_class_names
from crossbow.files import file_error, file_to_fill, make_directory, reason, write_whole
from crossbow.types import Array, DataError, Shape, bytes_text

DEFAULT_PARTITION = 1 << 30
"""Default maximum size of a file in bytes, as in the original."""
MEAN = ".mean"
"""Suffix of the file with the mean image, next to the metadata: float32, of the size of an example."""
BESIDE = (MEAN, CLASSES)
"""Suffixes of the optional files of a data set."""
PIECE = 16 << 20
"""Bytes that are copied at a time, if an example is not larger."""


class Source(Protocol):
    """Examples to write, in the types that files can store."""

    example_shape: Shape
    label_shape: Shape
    example_type: str
    label_type: str

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        """Examples and labels from `start` to `stop`."""


@dataclass(frozen=True)
class Plan:
    """The distribution of batches over files."""

    number_of_examples: int
    batch_size: int
    example_bytes: int
    """Size of the examples of a batch in bytes, without padding; `label_bytes` is that of the labels."""
    label_bytes: int
    batches_per_file: int

    @property
    def batches(self) -> int:
        return -(-self.number_of_examples // self.batch_size)

    @property
    def partitions(self) -> int:
        return -(-self.batches // self.batches_per_file)

    @property
    def fill(self) -> int:
        return self.batches * self.batch_size - self.number_of_examples

    @property
    def nbytes(self) -> int:
        """Size of all files except the metadata."""
        batch = self.example_bytes + pad_to_page(self.example_bytes) + self.label_bytes + pad_to_page(self.label_bytes)
        return self.batches * batch


def plan(source: Source, batch_size: int, partition_size: int = DEFAULT_PARTITION) -> Plan:
    """Distribute the examples over files of at most `partition_size` bytes. Raises DataError."""
    sizes = [
        batch_size * tuple_bytes(source.example_shape, source.example_type),
        batch_size * tuple_bytes(source.label_shape, source.label_type),
    ]
    largest = max(size + pad_to_page(size) for size in sizes)
    elements = -(-len(source) // batch_size) * batch_size
    if elements > LARGEST:
        raise DataError(f"expected at most {LARGEST:,} examples, as a metadata file can state. Received: {elements:,}")
    if partition_size < largest:
        raise DataError(
            f"expected a partition size of at least one batch, {largest:,} bytes with batch size {batch_size:,}. "
            f"Received: {partition_size:,}"
        )
    return Plan(len(source), batch_size, sizes[0], sizes[1], partition_size // largest)


class BatchFileWriter:
    """Writes data sets that belong together, such as those for training and for tests, to a directory.

    The constructor creates the directory, and detects all errors that can be detected before writing.

    sources         the examples to write, by the name of their data set
    also_replaced   names of older data sets to remove, because they do not belong to the new ones
    class_names     names of the classes, if they are known

    Raises DataError if the metadata cannot represent the path, if an existing data set has examples of another shape or
    other classes, or if the file system does not have enough space, with that of the existing files.
    """

    def __init__(
        self,
        directory: Path,
        sources: Mapping[str, Source],
        batch_size: int,
        partition_size: int = DEFAULT_PARTITION,
        *,
        also_replaced: Iterable[str] = (),
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        self._directory = directory
        self._sets: list[tuple[Source, Plan, Metadata]] = []
        for name, source in sources.items():
            planned = plan(source, batch_size, partition_size)
            self._sets.append((source, planned, _metadata(directory / name, source, planned)))
        self._paths = [directory / f"{name}.metadata" for name in sources]
        self._replaced = [*self._paths, *(directory / f"{name}.metadata" for name in also_replaced)]
        for _, _, metadata in self._sets:
            for prefix in (metadata.examples, metadata.labels):
                check_prefix(prefix)
        for path in self._replaced:
            check_replaceable(path, self._sets[0][0].example_shape, class_names)
        make_directory(directory)
        check_space(directory, sum(planned.nbytes for _, planned, _ in self._sets), self._older())

    def write(self, beside: Mapping[str, bytes] | None = None) -> list[Path]:
        """Write `NAME.examples.N`, `NAME.labels.N` and `NAME.metadata` of each data set. Returns the paths of the
        metadata.

        beside: contents of further files in the same directory, by their names.

        Existing files with these names are replaced. The metadata files of all data sets are removed first and written
        last, so an incomplete data set has none, and a new data set is never mixed with an older one. If writing fails,
        all new files are removed.

        Raises DataError if a file cannot be written.
        """
        _remove([*self._replaced, *self._older()])
        written: list[Path] = []
        try:
            for source, planned, metadata in self._sets:
                for number in range(planned.partitions):
                    _write_partition(metadata, planned, source, number, written)
            for name, content in (beside or {}).items():
                written.append(self._directory / name)
                write_whole(written[-1], content)
            for path, (_, _, metadata) in zip(self._paths, self._sets, strict=True):
                write_metadata(path, metadata)
        except BaseException:
            for file in (*self._paths, *written):
                file.unlink(missing_ok=True)
            raise
        return self._paths

    def _older(self) -> list[Path]:
        return [file for path in self._replaced for file in _older_files(path)]


def _metadata(prefix: Path, source: Source, planned: Plan) -> Metadata:
    return Metadata(
        examples=f"{prefix}.examples",
        labels=f"{prefix}.labels",
        partitions=planned.partitions,
        elements=planned.batches * planned.batch_size,
        batch_size=planned.batch_size,
        example_shape=source.example_shape,
        label_shape=source.label_shape,
        example_type=source.example_type,
        label_type=source.label_type,
        example_pad=pad_to_page(planned.example_bytes),
        label_pad=pad_to_page(planned.label_bytes),
        fill=planned.fill,
    )


def check_replaceable(path: Path, shape: Shape, class_names: tuple[str, ...] | None = None) -> None:
    """Raise DataError if the metadata file is that of a data set with examples of another shape, or of other classes.

    CIFAR-10 and CIFAR-100, for example, have the same file names.
    """
    try:
        older = read_metadata(path).example_shape
    except DataError:
        return  # no usable data set would be replaced
    if older != shape:
        raise DataError(
            f"{path}: expected no data set, or one with examples {shape} to replace. Received: one with examples "
            f"{older}; write to another directory, or remove it"
        )
    check_same_classes(path, class_names)


def check_same_classes(path: Path, class_names: tuple[str, ...] | None) -> None:
    """Raise DataError if the metadata file exists, and the data set's classes have other names."""
    if not path.exists():
        return
    names = None
    with contextlib.suppress(DataError):  # a damaged file has no names
        names = read_class_names(path.with_suffix(CLASSES))
    if names and class_names and names != class_names:
        raise DataError(
            f"{path}: expected no data set, or one with the same classes to replace. Received: one with {len(names):,} "
            f"other classes, {', '.join(names[:3])}, …; write to another directory, or remove it"
        )


def _older_files(path: Path) -> list[Path]:
    """The files that belong to the name of a metadata file: examples, labels, and those in `BESIDE`."""
    beside = "|".join(map(re.escape, BESIDE))
    own = re.compile(re.escape(path.stem) + rf"(\.(examples|labels)\.[1-9][0-9]*|{beside})")
    try:
        return [file for file in path.parent.iterdir() if own.fullmatch(file.name)]
    except OSError as error:
        raise file_error(error, path.parent, "a directory to write to") from error


def _remove(files: Sequence[Path]) -> None:
    """Remove files in this order."""
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise file_error(error, file, "to replace this file") from error


def _write_partition(metadata: Metadata, planned: Plan, source: Source, number: int, written: list[Path]) -> None:
    first = number * planned.batches_per_file
    last = min(first + planned.batches_per_file, planned.batches)
    paths = [Path(f"{prefix}.{number + 1}") for prefix in (metadata.examples, metadata.labels)]
    with file_to_fill(paths[0]) as examples, file_to_fill(paths[1]) as labels:
        for batch in range(first, last):
            start = batch * planned.batch_size
            stop = min(start + planned.batch_size, len(source))
            spans = [(start, stop)]
            if missing := start + planned.batch_size - stop:
                spans.append((0, min(missing, len(source))))
            for x, y in _pieces(source, spans):
                _write(examples, paths[0], x)
                _write(labels, paths[1], y)
            sizes = (planned.example_bytes, planned.label_bytes)
            for file, path, bytes_of_batch in zip((examples, labels), paths, sizes, strict=True):
                # With fewer examples than a batch holds, the original leaves zeros after them.
                end = (batch - first + 1) * (bytes_of_batch + pad_to_page(bytes_of_batch))
                _write(file, path, bytes(end - file.tell()))
        written += paths


def _write(file: BinaryIO, path: Path, content: Any) -> None:
    """Write bytes to the file of this path. Two files are open, and an OSError alone does not tell which one failed."""
    try:
        file.write(content)
    except OSError as error:
        raise DataError(f"{path}: expected to write this file. Received: {reason(error)}") from error


def _pieces(source: Source, spans: Sequence[tuple[int, int]]) -> Any:
    """The bytes of examples and labels in these ranges, in pieces."""
    step = max(1, PIECE // tuple_bytes(source.example_shape, source.example_type))
    for start, stop in spans:
        for at in range(start, stop, step):
            examples, labels = source.slice(at, min(at + step, stop))
            yield (
                np.ascontiguousarray(examples, TYPES[source.example_type]).data,
                np.ascontiguousarray(labels, TYPES[source.label_type]).data,
            )


def check_space(directory: Path, nbytes: int, older: Sequence[Path] = ()) -> None:
    """Raise DataError if the directory's file system has less than `nbytes` of free space.

    older: files in the directory that will be removed before writing; their space counts as free.
    """
    status = os.statvfs(directory) if hasattr(os, "statvfs") else None
    if status is None:  # Windows
        return
    free = status.f_bavail * status.f_frsize
    freed = sum(map(_space, older))
    if free + freed < nbytes:
        also = f" and {bytes_text(freed)} in files to replace" if freed else ""
        raise DataError(f"{directory}: expected {bytes_text(nbytes)} of free space. Received: {bytes_text(free)}{also}")


def _space(path: Path) -> int:
    """Bytes that become free if the file is removed: for sparse files and links, fewer than their size."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
