"""Data sets in Crossbow's batch-aligned files, whose images are read when they are needed."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from crossbow.data.batch_files import BatchFiles
from crossbow.data.class_names import CLASSES, read_class_names
from crossbow.data.dataset import Dataset
from crossbow.data.examples import BadExample, Examples, Indices, Selection, looks_channels_last
from crossbow.data.mapped import EXACT
from crossbow.types import LARGEST_EXACT, Array, DataError, Shape

_OF_CHECK = re.compile(r"-(test|check|validation)\.(metadata$|(records|examples)\b)")
_OF_TRAINING = re.compile(r"-train\.(metadata$|(records|examples)\b)")
"""Patterns in the names that Crossbow's commands give to files for checks and for training."""


def batch_files(
    train: str | os.PathLike[str],
    check: str | os.PathLike[str] | None = None,
    *,
    number_of_classes: int | None = None,
    ignored_label: int | None = None,
    channels_last: bool = False,
) -> Dataset:
    """A data set in batch-aligned files, given by the paths of its metadata files (`crossbow data encode`).

    Images are float32 and used as they are, without scaling; int32 examples are converted. Examples (H, W) become
    (1, H, W), labels of shape [1] become (N,), and int32 labels are classes. Any batch size can be used. Labels are
    read when the data set is created. So are the names of the classes, from `NAME.classes` next to `train`, if it has
    at least as many names as there are classes. Images are mapped into memory and read when they are needed; only
    `crossbow data verify` checks that they are finite. An int32 example that float32 would round is a bad example
    (`SystemConf.on_bad_record`). Other arguments are those of `Dataset`.

    Raises DataError if a length, count, pad or key is wrong, a label is out of range, or the names of the files, or of
    those that the metadata states, say that `train` and `check` are swapped.
    """
    check_not_swapped(train, check)
    files = BatchFiles(train)
    files_of_check = None if check is None else BatchFiles(check)
    if files_of_check is not None:
        check_not_swapped(files.metadata.examples, files_of_check.metadata.examples)
    data = Dataset(
        BatchFileExamples(files, channels_last),
        None if files_of_check is None else BatchFileExamples(files_of_check, channels_last),
        number_of_classes=number_of_classes,
        ignored_label=ignored_label,
    )
    names = read_class_names(files.path.with_suffix(CLASSES))
    if names is not None and data.number_of_classes is not None and data.number_of_classes <= len(names):
        data.class_names = names[: data.number_of_classes]
    return data


def check_not_swapped(train: object, check: object) -> None:
    """Raise DataError if the names of the files indicate that `train` is for checks and `check` for training."""
    first, second = (Path(path).name if isinstance(path, str | PurePath) else "" for path in (train, check))
    if _OF_CHECK.search(first) and _OF_TRAINING.search(second):
        raise DataError(
            f"train: expected the file for training, and check: the one for checks. Received: {str(train)!r} and "
            f"{str(check)!r}, as if the two were swapped"
        )


class BatchFileExamples(Examples):
    """The examples of batch-aligned files."""

    def __init__(self, files: BatchFiles, channels_last: bool = False) -> None:
        shape = files.metadata.example_shape
        if len(shape) > 3:
            raise DataError(
                f"{files.path}: expected examples of shape [C, H, W], [H, W] or [features]. Received: {list(shape)}"
            )
        if looks_channels_last(shape, np.dtype(np.float32)) and not channels_last:
            raise DataError(
                f"{files.path}: expected examples of shape [C, H, W], or channels_last=True for a network that takes "
                f"channels-last images. Received: {list(shape)}"
            )
        self._files = files
        self._shape = (1, *shape) if len(shape) == 2 else shape
        labels = files.labels()
        self.labels = labels[:, 0] if files.metadata.label_shape == (1,) else labels

    @property
    def image_shape(self) -> Shape:
        return self._shape

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return np.dtype(np.float32)

    @property
    def groups(self) -> Indices:
        return self._files.partition_numbers()

    def source(self, index: int) -> str:
        return f"{self._files.path}: example {index}"

    def write_images(self, selection: Selection, images: Array) -> None:
        indices, meta = selection.indices, self._files.metadata
        images = images.reshape(-1, *meta.example_shape)
        self._files.read_examples(indices, images)
        if meta.example_type != "float" and max(images.max(), -images.min()) >= LARGEST_EXACT:
            self._check_exact(indices, images)

    def _check_exact(self, indices: Indices, images: Array) -> None:
        """Raise BadExample for the first example in which a number was rounded."""
        numbers: NDArray[np.int32] = np.empty(images.shape, np.int32)
        self._files.read_examples(indices, numbers)
        rounded = images != numbers
        if rounded.any():
            position = int(np.argmax(rounded.reshape(len(indices), -1).any(axis=1)))
            index, value = int(indices[position]), numbers[position][rounded[position]][0]
            raise BadExample(index, self.source(index), f"expected {EXACT}. Received: {value}")
