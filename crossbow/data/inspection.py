"""Summaries and complete checks of files in Crossbow's formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.batch_files import BatchFiles, find_partition
from crossbow.data.batch_metadata import Metadata, read_metadata
from crossbow.data.class_names import CLASSES, read_class_names
from crossbow.data.images import decode_pixels
from crossbow.data.mapped import EXACT
from crossbow.data.records import Record, RecordFile
from crossbow.files import check_readable, file_error
from crossbow.types import Array, DataError

AT_ONCE = 1 << 20
"""Numbers that are checked at a time, if an example does not have more."""

Show = Callable[[int, int], None]
"""Function that shows progress: (examples done, examples in total)."""


def is_metadata(path: Path) -> bool:
    """Whether a file contains metadata (text) rather than records, which begin with their number in four bytes."""
    check_readable(path, "a metadata file or a record file")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        raise file_error(error, path, "a metadata file or a record file") from error
    if not start:
        raise DataError(f"{path}: expected a metadata file or a record file. Received: an empty file")
    return 0 not in start


def open_record_files(path: Path, metadata: Metadata, *, keep_open: bool = True) -> Iterator[RecordFile]:
    """The record files of a metadata file in order. Raises DataError if the number of records is not as stated."""
    count = 0
    for number in range(1, metadata.partitions + 1):
        file = RecordFile(find_partition(path, metadata.examples, number), keep_open=keep_open)
        count += len(file)
        yield file
    if count != metadata.elements:
        raise DataError(
            f"{path}: expected {metadata.elements:,} records (elements) in {metadata.partitions:,} files. "
            f"Received: {count:,}"
        )


def inspect(path: Path) -> dict[str, Any]:
    """Summarise a record file, or a metadata file with its files, as names and values for printing.

    Raises DataError if a length, count or key is wrong.
    """
    if not is_metadata(path):
        return {"format": "records", **_summary([RecordFile(path)])}
    metadata = read_metadata(path)
    stated = {name.replace("_", " "): value for name, value in dataclasses.asdict(metadata).items()}
    if metadata.examples == metadata.labels:
        return {"format": "metadata of records", **stated, **_summary(open_record_files(path, metadata))}
    opened = BatchFiles(path)
    sizes = [tuple(file.stat().st_size for file in pair) for pair in opened.paths()]
    return {
        "format": "metadata of batch-aligned files",
        **stated,
        "examples without fill": len(opened),
        "batches": metadata.batches,
        "bytes of examples": sum(x for x, _ in sizes),
        "bytes of labels": sum(y for _, y in sizes),
    }


def _summary(files: Iterable[RecordFile]) -> dict[str, Any]:
    """Summarise record files one by one: each is closed before the next is opened."""
    size, headers = 0, list[tuple[Record, int]]()
    for file in files:
        with file:
            size += file.nbytes
            headers += map(file.header, range(len(file)))
    columns = {
        "label": [record.label for record, _ in headers],
        "boxes": [len(record.boxes) for record, _ in headers],
        "height": [record.height for record, _ in headers],
        "width": [record.width for record, _ in headers],
        "bytes of an image": [size for _, size in headers],
    }
    ranges = {name: {"least": min(values), "most": max(values)} for name, values in columns.items() if values}
    return {"bytes": size, "records": len(headers), "different labels": len(set(columns["label"])), **ranges}


def verify(
    path: Path, show: Show = lambda done, total: None, note: Callable[[str], None] = lambda text: None
) -> Iterator[str]:
    """Read and check all examples of a data set, and decode all images. Yields one sentence for each error.

    note: receives a sentence about labels in batch-aligned files that are not errors: a negative one, which
    `ignored_label` may make valid, and one without a name in `NAME.classes`.

    Raises DataError if a length, count or key is wrong, so that the examples cannot be located.
    """
    if not is_metadata(path):
        with RecordFile(path) as file:
            yield from _verify_records(file, show, 0, len(file))
        return
    metadata = read_metadata(path)
    if metadata.examples != metadata.labels:
        yield from _verify_batches(BatchFiles(path, check_fill=False), show, note)
        return
    done = 0
    for file in open_record_files(path, metadata):
        with file:
            yield from _verify_records(file, show, done, metadata.elements)
            done += len(file)


def _verify_records(file: RecordFile, show: Show, done: int, total: int) -> Iterator[str]:
    for number in range(len(file)):
        try:
            record = file[number]
        except DataError as error:
            yield str(error)
            continue
        try:
            height, width, _ = decode_pixels(record.jpeg).shape
            if (height, width) != (record.height, record.width):
                stated = f"{record.height} × {record.width}"
                raise DataError(f"expected an image of {stated} pixels. Received: {height} × {width}")
        except DataError as error:
            yield f"{file.path}: record {number}: {error}"
        show(done + number + 1, total)


def _verify_batches(files: BatchFiles, show: Show, note: Callable[[str], None]) -> Iterator[str]:
    meta = files.metadata
    pairs = files.paths()
    for part, paths in enumerate(pairs):
        for path, pads in zip(paths, files.remainders(part), strict=True):
            if pads.any():
                batch, byte = np.argwhere(pads)[0]
                value = pads[batch, byte]
                yield f"{path}: expected zeros after batch {batch}. Received: {value} as byte {byte}"
    step = max(1, AT_ONCE // max(1, int(np.prod(meta.example_shape))))
    ignored, largest = _IgnoredLabel(), -1
    for start in range(0, len(files), step):
        examples, labels = files.slice(start, min(start + step, len(files)))
        largest = max(largest, int(labels.max()) if meta.label_type == "int" else -1)
        for kind, values in (("example", examples), ("label", labels)):
            expected, wrong = _wrong_numbers(kind, values, ignored)
            for number in np.flatnonzero(_of_examples(wrong)):
                value = values[number][wrong[number]].ravel()[0]
                yield f"{files.path}: expected {expected} in {kind} {start + number}. Received: {value}"
        show(start + len(labels), len(files))
    if ignored.value is not None:
        note(
            f"{files.path}: {ignored.examples:,} of {len(files):,} examples have the label {ignored.value}, "
            f"which needs ignored_label={ignored.value} in batch_files"
        )
    try:
        names = read_class_names(files.path.with_suffix(CLASSES)) if meta.label_type == "int" else None
    except DataError as error:
        names = None
        yield str(error)
    if names is not None and largest >= len(names):
        note(
            f"{files.path}: the largest label is {largest:,}, but {files.path.with_suffix(CLASSES).name} has only "
            f"{len(names):,} names, which are therefore ignored"
        )
    yield from _verify_fill(files)


@dataclass
class _IgnoredLabel:
    """The first negative label, which a loss may ignore, and the number of examples that have it."""

    value: int | None = None
    examples: int = 0


def _wrong_numbers(kind: str, values: Array, ignored: _IgnoredLabel) -> tuple[str, NDArray[np.bool_]]:
    """A text with the expected numbers of examples or labels (B, …), and whether each number is unexpected (B, …)."""
    numbers: NDArray[Any] = values
    if numbers.dtype.kind == "f":
        return "finite numbers", ~np.isfinite(numbers)
    if kind == "example":
        return EXACT, numbers.astype(np.float32) != numbers
    negative = numbers < 0
    if ignored.value is None and negative.any():
        ignored.value = int(numbers[negative][0])
    if ignored.value is None:
        return "integers ≥ 0", negative
    others = negative & (numbers != ignored.value)
    ignored.examples += int(np.count_nonzero(_of_examples(numbers == ignored.value)))
    return f"integers ≥ 0 or {ignored.value}, as before,", others


def _of_examples(found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each example (B,), whether anything in it was found."""
    of_examples: NDArray[np.bool_] = np.any(found.reshape(len(found), -1), axis=1)
    return of_examples


def _verify_fill(files: BatchFiles) -> Iterator[str]:
    fill = files.metadata.fill or 0
    repeated = files.slice(0, min(fill, len(files)))
    for kind, first, filling in zip(("examples", "labels"), repeated, files.filling(), strict=True):
        if not _same(first, filling[: len(first)]):
            yield f"{files.path}: expected the last batch to be filled with the first {kind}. Received: others"


def _same(first: Array, second: Array) -> bool:
    return first.tobytes() == second.tobytes()
