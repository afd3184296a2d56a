"""Conversion of image folders to record files: few large files in place of many small ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from crossbow.data.batch_metadata import check_prefix, metadata_of_records, write_metadata
from crossbow.data.batch_writer import check_same_classes
from crossbow.data.class_names import CLASSES, class_lines
from crossbow.data.decoded import DecodedExamples
from crossbow.data.image_folder import image_folder
from crossbow.data.images import Scratch, decode_pixels
from crossbow.data.progress import ProgressBars
from crossbow.data.records import RECORDS_PER_FILE, Record, write_records
from crossbow.files import checked_path, file_error, make_directory, reason, write_whole
from crossbow.types import DataError

SEED = 0
"""Seed of the order of the training images."""
STAGING = ".images.unfinished"
"""Name of the hidden directory, in that of the output, with the files that are not complete."""
_FILES = re.compile(r"images-(train|test)\.(metadata|classes|records\.[1-9][0-9]*)")
"""Names of the files of a conversion."""


def convert_image_folder(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    check_fraction: float = 0.1,
    on_bad_image: Callable[[DataError], None] | None = None,
) -> list[Path]:
    """Write the images of `image_folder(directory, check_fraction=check_fraction)` as record files. Returns the paths
    of the metadata files: that of the training set, and that of the check set if there is one.

    Writes `images-train.records.N`, N from 1, with 2,048 records each (the last may have fewer), `images-train.classes`
    with the names of the classes, and `images-train.metadata`; and the same for `images-test`. A record has the bytes
    of the image file and no boxes. The training images are in a random order, which is the same in each conversion, so
    that a record file has images of many classes.

    The files are written to the hidden directory `.images.unfinished` in `output`. Only when all are complete do they
    replace older files; the metadata files come last. So an older data set stays as it was if an image cannot be
    decoded, the disk is full, or the process is interrupted before. Until then, both need space.

    on_bad_image: called with the error of each image that cannot be decoded, which is left out; None raises the error.
    It must not raise exceptions.

    Raises DataError as `image_folder` does, for an image that cannot be decoded, and if `output` is in `directory` or
    has a data set of other classes, or a file cannot be written.
    """
    source, target = checked_path("directory", directory), checked_path("output", output)
    data = image_folder(source, check_fraction=check_fraction)
    if _is_in(target, source):  # the next conversion would take it for a class
        raise DataError(f"output: expected a directory outside of {source}. Received: {target}")
    order = np.random.default_rng(SEED).permutation(len(data.train)).tolist()
    sets = [_Conversion(target, "images-train", data.train, order, on_bad_image)]
    if data.check is not None:
        sets.append(_Conversion(target, "images-test", data.check, range(len(data.check)), on_bad_image))
    for one in sets:
        check_prefix(str(one.prefix))
    check_same_classes(sets[0].metadata_path, data.class_names)
    staging = _new_staging(target)
    try:
        with ProgressBars("images") as progress:
            counts = [one.write(staging, progress) for one in sets]
        names = class_lines(data.class_names)
        for one, count in zip(sets, counts, strict=True):
            if names is not None:
                write_whole(staging / f"{one.name}{CLASSES}", names)
            metadata = metadata_of_records(one.prefix, -(-count // RECORDS_PER_FILE), count)
            write_metadata(staging / one.metadata_path.name, metadata)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _replace(target, staging)
    return [one.metadata_path for one in sets]


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a path, which need not exist, is the folder or lies in it. Links are followed."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except (OSError, ValueError) as error:  # ValueError: the path has a null character
        raise file_error(error, path, "a directory to write to") from error


def _new_staging(directory: Path) -> Path:
    """A new, empty, hidden directory in this one, for files until all of them are complete."""
    staging = directory / STAGING
    make_directory(directory)
    try:
        if staging.exists():  # a killed process has left it
            shutil.rmtree(staging)
        staging.mkdir()
    except OSError as error:
        raise file_error(error, staging, "a directory to write to") from error
    return staging


def _replace(directory: Path, staging: Path) -> None:
    """Replace the files of an older conversion by those in the staging directory, which is removed. The metadata files
    are removed first and come last."""
    try:
        older = [path for path in directory.iterdir() if _FILES.fullmatch(path.name)]
        new = sorted(staging.iterdir(), key=_is_metadata)
        replaced = {path.name for path in new if not _is_metadata(path)}
        for path in sorted(older, key=_is_metadata, reverse=True):
            if path.name not in replaced:
                path.unlink()
        for path in new:
            path.replace(directory / path.name)
        staging.rmdir()
    except OSError as error:
        raise DataError(
            f"{directory}: expected to replace its files by those in {staging}. Received: {reason(error)}"
        ) from error


def _is_metadata(path: Path) -> bool:
    return path.suffix == ".metadata"


class _Conversion:
    """The conversion of one phase."""

    def __init__(
        self,
        directory: Path,
        name: str,
        examples: object,
        order: Sequence[int],
        on_bad_image: Callable[[DataError], None] | None,
    ) -> None:
        assert isinstance(examples, DecodedExamples)
        self._examples, self._order, self._on_bad_image = examples, order, on_bad_image
        self.name = name
        self.prefix = directory / f"{name}.records"
        self.metadata_path = directory / f"{name}.metadata"
        self._count = 0

    def write(self, directory: Path, progress: ProgressBars) -> int:
        """Write the record files to a directory. Returns the number of records."""
        stream = self._records(progress.begin(self.name))
        for number, first in enumerate(stream, start=1):
            write_records(
                directory / f"{self.prefix.name}.{number}", chain([first], islice(stream, RECORDS_PER_FILE - 1))
            )
        if not self._count:
            raise DataError(f"{self.prefix}: expected at least one image that can be decoded. Received: none")
        return self._count

    def _records(self, show: Callable[[int, int], None]) -> Iterator[Record]:
        scratch = Scratch()
        for done, index in enumerate(self._order, start=1):
            source = self._examples.source(index)
            try:
                content, _ = self._examples.read(index, scratch)
                height, width, _ = decode_pixels(content).shape
            except DataError as error:
                bad = DataError(f"{source}: {str(error).removeprefix(f'{source}: ')}")
                if self._on_bad_image is None:
                    raise bad from error
                self._on_bad_image(bad)
                continue
            finally:
                show(done, len(self._order))
            self._count += 1
            label = int(self._examples.labels[index])
            yield Record(label, np.empty((0, 4), np.float32), height, width, content.tobytes())
