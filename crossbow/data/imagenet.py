"""Conversion of ImageNet from TFRecord files, as TensorFlow's `build_imagenet_data.py` writes them, to record files.

The original does this with TensorFlow (`scripts/datasets/imagenet/parse-records.py`), in a random order. Here the files
are read in the order of their names, and the records keep their order within a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from crossbow.conf import shown
from crossbow.data.batch_metadata import (
    LARGEST,
    Metadata,
    check_prefix,
    metadata_of_records,
    read_metadata,
    write_metadata,
)
from crossbow.data.images import looks_like_an_image
from crossbow.data.progress import ProgressBars
from crossbow.data.records import RECORDS_PER_FILE, Record, RecordFile, check_fields, write_records
from crossbow.data.tfrecords import Feature, parse_example, read_frames
from crossbow.files import checked_path, file_error, make_directory, write_whole
from crossbow.types import DataError

METADATA = {"train": "imagenet-train.metadata", "validation": "imagenet-test.metadata"}
"""Names of the metadata files by subset, as in the original."""
CLASSES = 1000
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")

_VERSION = 1
"""Version of the state file of a conversion."""

Position = tuple[int, int]
"""Index of a TFRecord file, and of a record in it."""


def convert_imagenet(
    tfrecords: str | os.PathLike[str], output: str | os.PathLike[str], subset: str | None = None
) -> list[Path]:
    """Convert the files `train-00000-of-01024` … and `validation-…-of-…` of a directory, or of its folders `train` and
    `validation`. Returns the paths of the metadata files.

    Writes `crossbow-SUBSET.records.N`, N from 1, with 2,048 records each (the last may have fewer), and a metadata
    file. All checksums are checked. Labels 1 to 1,000 in TFRecord files become 0 to 999. Images are not decoded, only
    their first bytes are checked.

    After an interruption, the conversion continues after the last complete output file. The resulting files are the
    same. A finished subset is kept. If names, sizes or modification times of its TFRecord files have changed, a subset
    is converted anew. The metadata file is written last. `.crossbow-SUBSET.conversion.json` lists the TFRecord files of
    the conversion, and is kept.

    subset: "train" or "validation"; None: both, or the one that exists.

    Raises DataError with the name of the file and the record's number from 0.
    """
    source, target = checked_path("tfrecords", tfrecords), checked_path("output", output)
    if subset is not None and not (isinstance(subset, str) and subset in METADATA):
        raise DataError(f"subset: expected {' or '.join(METADATA)}. Received: {shown(subset)}")
    inputs = {name: _inputs(source, name) for name in ([subset] if subset else METADATA)}
    if not any(inputs.values()):
        names = " or ".join(f"{name}-00000-of-…" for name in inputs)
        raise DataError(f"{source}: expected TFRecord files named {names}. Received: none")
    conversions = [_Conversion(target, name, files) for name, files in inputs.items() if files]
    for conversion in conversions:
        check_prefix(str(conversion.prefix))
    make_directory(target)
    return [conversion.run() for conversion in conversions]


def _inputs(directory: Path, subset: str) -> list[Path]:
    """All TFRecord files of a subset, in order; empty if there are none. Raises DataError if some are missing."""
    pattern = re.compile(rf"{subset}-(\d{{5,}})-of-(\d{{5,}})")
    try:
        for folder in (directory, directory / subset):
            if folder != directory and not folder.is_dir():
                continue
            found = {path.name: path for path in folder.iterdir() if pattern.fullmatch(path.name) and path.is_file()}
            if found:
                total = next(iter(found)).rpartition("-")[2]
                # A name can state any total: one more name than there are files suffices to find a missing one.
                numbers = range(min(int(total), len(found) + 1))
                expected = [f"{subset}-{number:0{len(total)}}-of-{total}" for number in numbers]
                if sorted(found) != expected:
                    missing = sorted({*expected} ^ {*found})
                    raise DataError(
                        f"{folder}: expected {int(total):,} files {subset}-*-of-{total}. "
                        f"Received: {len(found):,}, where {missing[0]} is missing or of another set"
                    )
                return [found[name] for name in expected]
    except OSError as error:
        raise file_error(error, directory, "a directory of TFRecord files") from error
    return []


@dataclass(frozen=True)
class _Conversion:
    """The conversion of one subset."""

    directory: Path
    subset: str
    inputs: list[Path]

    @property
    def prefix(self) -> Path:
        return self.directory / f"crossbow-{self.subset}.records"

    @property
    def state_path(self) -> Path:
        return self.directory / f".crossbow-{self.subset}.conversion.json"

    @property
    def metadata_path(self) -> Path:
        return self.directory / METADATA[self.subset]

    @property
    def end(self) -> Position:
        """The position after the last record."""
        return len(self.inputs), 0

    def output(self, number: int) -> Path:
        """The path of output file `number`, from 0."""
        return Path(f"{self.prefix}.{number + 1}")

    def run(self) -> Path:
        identity = self._identity()
        starts = self._complete(self._load(identity))
        if starts[-1] != self.end:
            self._remove_others(len(starts) - 1)
            self._save(identity, starts)
            self._convert(identity, starts)
        metadata = self._metadata(len(starts) - 1)
        if not self._is_stated(metadata):
            write_metadata(self.metadata_path, metadata)
        return self.metadata_path

    def _convert(self, identity: list[tuple[str, int, int]], starts: list[Position]) -> None:
        """Write the output files from the last position of `starts` on, and append the position after each of them."""
        total = sum(size for _, size, _ in identity)
        before = np.cumsum([0, *(size for _, size, _ in identity)])
        with ProgressBars() as progress:
            show = progress.begin(f"{self.subset} images")
            stream = self._records(starts[-1], lambda file, end: show(int(before[file]) + end, total))
            first = next(stream, None)
            while first is not None:
                write_records(self.output(len(starts) - 1), _chunk(first[1], stream))
                first = next(stream, None)
                starts.append(first[0] if first is not None else self.end)
                self._save(identity, starts)

    def _identity(self) -> list[tuple[str, int, int]]:
        """Name, size and modification time of each input file."""
        try:
            status = [(path.name, path.stat()) for path in self.inputs]
        except OSError as error:
            raise file_error(error, self.inputs[0], "a readable TFRecord file") from error
        return [(name, one.st_size, one.st_mtime_ns) for name, one in status]

    def _complete(self, starts: list[Position]) -> list[Position]:
        """Positions of the first records of all complete output files, and of the next one."""
        finished = 0
        while finished < len(starts) - 1 and self._is_finished(finished, last=starts[finished + 1] == self.end):
            finished += 1
        return starts[: finished + 1]

    def _remove_others(self, finished: int) -> None:
        """Remove the metadata, and all output files except the finished ones."""
        try:
            self.metadata_path.unlink(missing_ok=True)
            for path in self.directory.glob(f"{self.prefix.name}.*"):
                number = path.name.rpartition(".")[2]
                if re.fullmatch("[1-9][0-9]*", number) and int(number) > finished:
                    path.unlink()
        except OSError as error:
            raise file_error(error, self.directory, "a directory to write to") from error

    def _is_finished(self, number: int, *, last: bool) -> bool:
        try:
            with RecordFile(self.output(number)) as file:
                return len(file) == RECORDS_PER_FILE or (last and 0 < len(file) < RECORDS_PER_FILE)
        except DataError:
            return False

    def _load(self, identity: list[tuple[str, int, int]]) -> list[Position]:
        """The positions that `_save` stored for the same input files; only the beginning if there are none."""
        try:
            state = json.loads(self.state_path.read_bytes())
            if [state["version"], state["inputs"]] == [_VERSION, [list(one) for one in identity]]:
                return [(int(file), int(record)) for file, record in state["starts"]] or [(0, 0)]
        except (OSError, ValueError, KeyError, TypeError):  # missing, damaged, or of another version
            pass
        return [(0, 0)]

    def _save(self, identity: list[tuple[str, int, int]], starts: list[Position]) -> None:
        state = {"version": _VERSION, "inputs": identity, "starts": starts}
        write_whole(self.state_path, json.dumps(state).encode())

    def _records(self, start: Position, show: Any) -> Iterator[tuple[Position, Record]]:
        """The records from `start` on, each with its position."""
        for file in range(start[0], len(self.inputs)):
            path = self.inputs[file]
            skipped = start[1] if file == start[0] else 0
            for number, (content, end) in enumerate(read_frames(path, skipped), start=skipped):
                where = f"{path}: record {number}"
                yield (file, number), record_of(parse_example(content, where), where)
                show(file, end)

    def _is_stated(self, metadata: Metadata) -> bool:
        try:
            return read_metadata(self.metadata_path) == metadata
        except DataError:
            return False

    def _metadata(self, partitions: int) -> Metadata:
        elements = 0
        for number in range(partitions):
            with RecordFile(self.output(number)) as file:
                elements += len(file)
        if not 1 <= elements <= LARGEST:
            raise DataError(f"{self.inputs[0].parent}: expected from 1 to {LARGEST:,} records. Received: {elements:,}")
        return metadata_of_records(self.prefix, partitions, elements)


def _chunk(first: Record, stream: Iterator[tuple[Position, Record]]) -> Iterator[Record]:
    yield first
    for _, record in islice(stream, RECORDS_PER_FILE - 1):
        yield record


def record_of(features: dict[str, Feature], where: str) -> Record:
    """Convert the features of an example to a record, which is checked. Raises DataError, which begins with `where`."""
    label, height, width = (
        _one(features, key, int, where) for key in ("image/class/label", "image/height", "image/width")
    )
    if not 1 <= label <= CLASSES:
        raise DataError(f"{where}: expected image/class/label from 1 to {CLASSES:,}. Received: {label}")
    sides = [features.get(f"image/object/bbox/{side}", []) for side in BOX_SIDES]
    counts = [len(side) for side in sides]
    if len(set(counts)) != 1 or not all(isinstance(value, float) for side in sides for value in side):
        raise DataError(
            f"{where}: expected as many numbers of image/object/bbox/xmin as of ymin, xmax and ymax. Received: {counts}"
        )
    boxes = np.array(sides, np.float32).T.reshape(-1, 4)
    check_fields(where, label - 1, boxes, height, width)
    image = _one(features, "image/encoded", bytes, where)
    if not looks_like_an_image(image[:16]):
        raise DataError(
            f"{where}: expected an image file as image/encoded. Received: {len(image):,} bytes beginning with "
            f"{image[:8].hex(' ') or 'none'}"
        )
    return Record(label - 1, boxes, height, width, image)


def _one(features: dict[str, Feature], key: str, kind: type, where: str) -> Any:
    values = features.get(key, [])
    if len(values) != 1 or not isinstance(values[0], kind):
        raise DataError(f"{where}: expected one {kind.__name__} of {key}. Received: {len(values)} values")
    return values[0]
