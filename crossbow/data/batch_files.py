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

import contextlib
import math
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

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
from crossbow.files import (
    checked_path,
    file_error,
    file_to_fill,
    make_directory,
    make_room_for_files,
    reason,
    write_whole,
)
from crossbow.types import Array, DataError, Shape, bytes_text

DEFAULT_PARTITION = 1 << 30
"""Default maximum size of a file in bytes, as in the original."""
MEAN = ".mean"
"""Suffix of the file with the mean image, beside the metadata: float32, as large as an example."""
BESIDE = (MEAN, CLASSES)
"""Suffixes of the other files of a data set, which it need not have."""
PIECE = 16 << 20
"""Bytes that are copied at a time, if an example is not larger."""

Indices = NDArray[np.intp]


class BatchFiles:
    """Random access to a data set in batch-aligned files: `len(files)`, `files[i]`, `files.read(…)`.

    The files are mapped into memory, and never read as a whole. Opening checks their lengths, and that the examples
    which fill the last batch begin with the first one, unless `check_fill` is False. These are not counted.

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
        """With a wrong number of examples that fill the last batch, the first of them is not that of the data set."""
        if fill := self.metadata.fill:
            first, filling = self.slice(0, 1)[0][0], self.filling()[0][0]
            if first.tobytes() != filling.tobytes():
                raise DataError(
                    f"{self.path}: expected the last {fill:,} (fill) of {self.metadata.elements:,} elements to repeat "
                    "the first ones. Received: another example than the first; `crossbow data verify` says more"
                )

    def _make_room(self, count: int) -> None:
        """Make the process able to open the files, all of which stay open: Python keeps a mapped file open."""
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


# Writing


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
    """Of a batch, without padding."""
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


def write_batch_files(
    directory: Path, name: str, source: Source, batch_size: int, partition_size: int = DEFAULT_PARTITION
) -> Path:
    """Write one data set, as `BatchFileWriter` does. Returns the path of its metadata. Raises DataError."""
    (path,) = BatchFileWriter(directory, {name: source}, batch_size, partition_size).write()
    return path


class BatchFileWriter:
    """Writes data sets that belong together, as those for training and for tests, into a directory.

    Creating it checks what can be known before, and makes the directory.

    sources         the examples to write, by the name of their data set
    also_replaced   names of older data sets that would not belong to the new ones
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
        """Write `NAME.examples.N`, `NAME.labels.N` and `NAME.metadata` of each data set, and the files `beside` them by
        their names. Returns the paths of the metadata.

        Existing files with these names are replaced. The metadata files of all data sets are removed first and written
        last, so an incomplete data set has none, and no new one stands beside an older one. If writing fails, all new
        files are removed.

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
        return  # there is none that could be used
    if older != shape:
        raise DataError(
            f"{path}: expected no data set, or one with examples {shape} to replace. Received: one with examples "
            f"{older}; write to another directory, or remove it"
        )
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
    """Write bytes. Two files are open: an OSError alone would not tell of which it is."""
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

    older: files in the directory that are removed before; their space counts as free.
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
    """Bytes that become free if the file is removed: of sparse files and links, fewer than they seem to have."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
