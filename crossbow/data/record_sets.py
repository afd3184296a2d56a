"""Data sets in record files, whose images are read, decoded and preprocessed when they are needed."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from crossbow.data.batch_metadata import read_metadata
from crossbow.data.class_names import CLASSES, read_class_names
from crossbow.data.dataset import Dataset
from crossbow.data.decoded import DecodedExamples
from crossbow.data.examples import Indices
from crossbow.data.images import Scratch
from crossbow.data.inspection import open_record_files
from crossbow.data.preprocessing import Boxes, Pixels, Preprocessing
from crossbow.data.records import RecordFile
from crossbow.data.stored import check_not_swapped
from crossbow.files import checked_path
from crossbow.types import DataError

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def records(
    train: Files,
    check: Files | None = None,
    *,
    image_size: int = 224,
    colour_distortion: bool = False,
    number_of_classes: int | None = None,
    ignored_label: int | None = None,
) -> Dataset:
    """A data set in record files (`RecordFile`), such as ImageNet: uint8 (3, S, S), S = `image_size`.

    train, check    a record file, a metadata file (`*.metadata`), a pattern such as `crossbow-train.records.*`, or
                    several of these. The files of a pattern are in the order of the numbers in their names.

    If `train` is a metadata file `NAME.metadata`, and `NAME.classes` has names of classes, one in a line, these are the
    classes; with fewer names than classes, the names are ignored.

    Opening checks the lengths of all records and reads their labels. Images are read, decoded and preprocessed when
    they are needed, like those of `image_folder`; the random areas for training contain at least 10 % of one of the
    bounding boxes of a record, if it has any. Other arguments are those of `Dataset`.

    Raises DataError if a file is missing or damaged, a pattern matches no file, a label is out of range, or the names
    of the files, or of those that the metadata states, say that `train` and `check` are swapped.
    """
    check_not_swapped(train, check)
    training = Preprocessing(image_size, training=True, colour_distortion=colour_distortion)
    testing = Preprocessing(image_size, training=False)
    files = record_files(train, "train")
    sets = [RecordExamples(files, training)]
    if check is not None:
        files_of_check = record_files(check, "check")
        check_not_swapped(files[0].path, files_of_check[0].path)
        sets.append(RecordExamples(files_of_check, testing))
    names = _class_names(train) or ()
    if number_of_classes is None and max(each.largest_label(ignored_label) for each in sets) < len(names):
        number_of_classes = len(names)
    data = Dataset(*sets, number_of_classes=number_of_classes, ignored_label=ignored_label)
    if data.number_of_classes is not None and data.number_of_classes <= len(names):
        data.class_names = names[: data.number_of_classes]
    return data


def _class_names(train: Files) -> tuple[str, ...] | None:
    """The names of the classes next to a metadata file; None if there are none."""
    if not isinstance(train, str | os.PathLike):
        return None
    path = checked_path("train", train)
    return read_class_names(path.with_suffix(CLASSES)) if path.suffix == ".metadata" else None


def record_files(files: Files, name: str) -> list[RecordFile]:
    """The record files. Raises DataError if they contain no records."""
    given = list(files) if isinstance(files, Iterable) and not isinstance(files, str | bytes) else [files]
    found = [file for item in given for file in _open(checked_path(name, item))]
    if not any(map(len, found)):
        raise DataError(f"{name}: expected at least one record. Received: none in {len(found)} files")
    return found


def _open(path: Path) -> Iterable[RecordFile]:
    """The record files. Their paths are absolute, because the files are opened again later, when the working directory
    may have changed."""
    paths = [path]
    if glob.has_magic(str(path)) and not path.exists():
        paths = [Path(match) for match in sorted(glob.glob(str(path)), key=_numbers)]
        if not paths:
            raise DataError(f"{path}: expected a pattern of paths of record files. Received: one that no file matches")
    elif path.suffix == ".metadata":
        metadata = read_metadata(path)
        if metadata.examples != metadata.labels:
            raise DataError(
                f"{path}: expected a metadata file of record files, with the same prefix for examples and labels. "
                f"Received: {metadata.examples} and {metadata.labels}, as of batch-aligned files"
            )
        return open_record_files(path.absolute(), metadata, keep_open=False)
    return (RecordFile(path.absolute(), keep_open=False) for path in paths)


def _numbers(path: str) -> list[tuple[int, str]]:
    """Sort key of paths that orders numbers by their value: file 10 comes after file 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", path)]


class RecordExamples(DecodedExamples):
    """The records of several files."""

    def __init__(self, files: list[RecordFile], preprocessing: Preprocessing) -> None:
        for file in files:
            negative = np.flatnonzero(file.labels < 0)
            if len(negative):
                number = negative[0]
                raise DataError(
                    f"{file.path}: expected a label ≥ 0 in record {number}. Received: {file.labels[number]}"
                )
        super().__init__(np.concatenate([file.labels for file in files]), preprocessing)
        self._files = files
        self._starts = np.cumsum([0, *map(len, files)])

    def largest_label(self, ignored: int | None) -> int:
        """The largest label that is not ignored; -1 if there is none."""
        labels = self.labels if ignored is None else self.labels[self.labels != ignored]
        return int(labels.max(initial=-1))

    @property
    def groups(self) -> Indices:
        return np.repeat(np.arange(len(self._files)), np.diff(self._starts))

    def source(self, index: int) -> str:
        file, number = self._place(index)
        return f"{file.path}: record {number}"

    def names_of_files(self) -> bytes:
        return " ".join(str(file.nbytes) for file in self._files).encode()

    def read(self, index: int, scratch: Scratch) -> tuple[Pixels, Boxes | None]:
        file, number = self._place(index)
        try:
            header, content = file.read(number, scratch)
        except DataError as error:  # its message lacks the file and the record, which `source` names
            raise DataError(str(error).removeprefix(f"{file.path}: ").removeprefix(f"record {number}: ")) from error
        return content, header.boxes

    def _place(self, index: int) -> tuple[RecordFile, int]:
        """The record file of an example, and the number of the record in this file."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._files[number], index - int(self._starts[number])
