"""CIFAR-10: 50,000 + 10,000 colour images 32×32 in ten classes (Krizhevsky, 2009)."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer
from crossbow.data.dataset import Dataset
from crossbow.data.download import download
from crossbow.data.jpeg import decode_images
from crossbow.data.pickles import read_pickle
from crossbow.data.reading import PIECE, Bounded, Readable, read_at_most
from crossbow.files import checked_path, file_error, reason
from crossbow.types import Array, DataError, bytes_text

FILES = {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
"""Name and sha256 of the archive to download."""

MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
"""The data set's website."""

SHAPE = (3, 32, 32)
LARGEST_FILE = 64 << 20
"""Maximum size in bytes of a file of 10,000 images; the originals have 31 million."""
LARGEST_ARCHIVE = 512 << 20
"""Maximum size in bytes of an unpacked archive; the originals have 185 million."""
MOST_MEMBERS = 1000
"""Maximum number of files in an archive; the originals have 8."""
MOST_IMAGES = 200_000
"""Maximum number of training or test images in an .npz."""
IMAGES = 10_000
"""Number of images in each original file."""
CLASSES = 10

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, Array]
"""Images (N, 3, 32, 32) and labels (N,)."""


def cifar10(data_directory: str | os.PathLike[str] | None = None) -> Dataset:
    """CIFAR-10: uint8 images (N, 3, 32, 32), pixels in [0, 1] when batched; 50,000 for training, 10,000 for checks.

    In a directory, the first of these that is present is read:

    1. the original binaries, `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin`: in the directory itself, in
       its subdirectory `cifar-10-batches-bin`, or in `cifar-10-binary.tar.gz`;
    2. the Python files, `data_batch_1` … `test_batch`: in the directory itself, in `cifar-10-batches-py`, or in
       `cifar-10-python.tar.gz`. From a pickle, only arrays, lists and numbers are read; none of its code is run;
    3. an .npz of JPEG files whose name begins with `cifar10` or `cifar-10`, the first by name. For each of `train` and
       `test`, it has the arrays `…_jpeg` (uint8: all files, concatenated), `…_offsets` (n + 1 integers: the beginning
       of each file, and the end) and `…_labels`, with up to 200,000 images. It requires simplejpeg. Pixels differ
       slightly from the originals'.

    The argument may also be the path of an archive or an .npz. Without an argument, the binaries are downloaded once to
    the user's cache directory (170 MB), and their hash is checked.

    Classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    if data_directory is None:
        otherwise = (
            "train on synthetic images with --dataset synthetic, or name a directory that holds CIFAR-10's files with "
            "--data-directory"
        )
        (path,) = download("CIFAR-10", "cifar-10", FILES, MIRRORS, otherwise)
    else:
        path = checked_path("cifar10", data_directory)
    try:
        train, check = _read(path)
    except OSError as error:
        raise file_error(error, path, "a readable file") from error
    return Dataset(train, check, number_of_classes=CLASSES)


def _read(path: Path) -> tuple[Part, Part]:
    """The training and check examples in a file or directory."""
    if path.is_file():
        return _read_npz(path) if path.suffix == ".npz" else _read_archive(path)
    if not path.is_dir():
        raise DataError(f"{path}: expected a directory with CIFAR-10's files. Received: no such directory")
    for form in (BINARY, PYTHON):
        for folder in (path, path / form.folder):
            if any((folder / name).is_file() for name in form.files):
                return _assemble(folder, form, _in_folder(folder, form))
        if (path / form.archive).is_file():
            return _read_archive(path / form.archive)
    if found := sorted([*path.glob("cifar10*.npz"), *path.glob("cifar-10*.npz")]):
        return _read_npz(found[0])
    expected = f"{BINARY.files[0]} …, {PYTHON.files[0]} …, {BINARY.archive}, {PYTHON.archive} or cifar10*.npz"
    raise DataError(f"{path}: expected CIFAR-10's {expected}. Received: none of them is there")


# The original files: five for training, one for checks.


@dataclass(frozen=True)
class _Form:
    """One of the two formats in which the data set is distributed."""

    files: Sequence[str]
    folder: str
    archive: str
    read: Callable[[bytes, str], Part]
    """Function from a file's content, and its name in errors, to its images and labels."""


def _assemble(where: Path, form: _Form, contents: Iterator[tuple[str, bytes]]) -> tuple[Part, Part]:
    """The images of the files, concatenated in the right order, whatever order they arrive in."""
    *_, last = form.files
    images, labels = (
        np.empty((len(form.files), IMAGES, *SHAPE), np.uint8),
        np.empty((len(form.files), IMAGES), np.int32),
    )
    missing = list(form.files)
    for name, content in contents:
        if name in missing:
            number = form.files.index(name)
            images[number], labels[number] = form.read(content, f"{where}/{name}")
            missing.remove(name)
    if missing:
        raise DataError(f"{where}: expected {form.files[0]} … {last}. Received: all but {', '.join(missing)}")
    return (images[:-1].reshape(-1, *SHAPE), labels[:-1].reshape(-1)), (images[-1], labels[-1])


def _in_folder(folder: Path, form: _Form) -> Iterator[tuple[str, bytes]]:
    for name in form.files:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                yield name, _whole(file, folder / name)


def _in_archive(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, bytes]]:
    """The files with original names, in archive order, because going back would decompress everything again."""
    wanted = {*BINARY.files, *PYTHON.files}
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            raise DataError(f"{path}: expected an archive of at most {MOST_MEMBERS:,} files. Received: more")
        name = PurePosixPath(member.name).name
        if member.isfile() and name in wanted:
            file = archive.extractfile(member)
            assert file is not None
            yield name, _whole(file, f"{path}/{name}")


def _whole(file: Readable, source: object) -> bytes:
    """The whole content of a file. Raises DataError if it is too large for this data set."""
    content = read_at_most(file, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise DataError(f"{source}: expected at most {bytes_text(LARGEST_FILE)}. Received: more than that")
    return content


def _read_archive(path: Path) -> tuple[Part, Part]:
    """A .tar.gz. The first file with an original name determines the format."""
    try:
        with gzip.open(path) as packed:
            file = Bounded(packed, LARGEST_ARCHIVE, str(path))
            with tarfile.open(fileobj=cast("IO[bytes]", file), mode="r|", bufsize=PIECE) as archive:
                return _read_contents(_in_archive(archive, path), file, path)
    except DataError:
        raise
    except Exception as error:  # damaged files: tarfile does not document the exceptions that they raise
        if isinstance(error, OSError) and error.errno is not None:
            raise  # not the file's content
        raise DataError(f"{path}: expected an intact .tar.gz. Received: {reason(error)}") from error


def _read_contents(contents: Iterator[tuple[str, bytes]], file: Bounded, path: Path) -> tuple[Part, Part]:
    """The examples in the files of an archive. The rest of the archive is read, too."""
    first = next(contents, None)
    if first is None:
        raise DataError(f"{path}: expected an archive with {BINARY.files[0]} or {PYTHON.files[0]}. Received: none")
    form = BINARY if first[0] in BINARY.files else PYTHON
    train, check = _assemble(path, form, itertools.chain([first], contents))
    while file.read():  # the checksum is at the end
        pass
    return train, check


def _read_binary(content: bytes, source: str) -> Part:
    """For each image, one byte for its label, and its pixels: red, green, blue, each row by row."""
    record = 1 + int(np.prod(SHAPE))
    if len(content) != IMAGES * record:
        raise DataError(
            f"{source}: expected {IMAGES * record:,} bytes, {record:,} for each of {IMAGES:,} images. "
            f"Received: {len(content):,}"
        )
    records = np.frombuffer(content, np.uint8).reshape(IMAGES, record)
    return records[:, 1:].reshape(IMAGES, *SHAPE), _labels(records[:, 0], IMAGES, source)


def _read_python(content: bytes, source: str) -> Part:
    """A pickled dictionary with `data` (N, 3072) and `labels`."""
    held = read_pickle(content, source)
    found = {_text(key): value for key, value in held.items()} if isinstance(held, dict) else {}
    data, shape = found.get("data"), (IMAGES, int(np.prod(SHAPE)))
    if not isinstance(data, np.ndarray) or data.shape != shape or data.dtype != np.uint8:
        received = f"shape {data.shape}, {data.dtype}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{source}: expected `data` of shape {shape}, uint8. Received: {received}")
    return data.reshape(IMAGES, *SHAPE), _labels(found.get("labels"), IMAGES, source)


def _text(key: object) -> object:
    return key.decode("latin1") if isinstance(key, bytes) else key


BINARY = _Form(
    (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    _read_binary,
)
PYTHON = _Form(
    (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    _read_python,
)


# JPEG files in an .npz.


def _read_npz(path: Path) -> tuple[Part, Part]:
    arrays: dict[str, Array] = {}
    names = [f"{phase}_{what}" for phase in ("train", "test") for what in ("jpeg", "offsets", "labels")]
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as held:
            there = {member.filename: member for member in held.infolist()}
            for name in names:
                room = LARGEST_ARCHIVE - sum(array.nbytes for array in arrays.values())
                if member := there.get(f"{name}.npy"):
                    with held.open(member) as packed:
                        arrays[name] = _read_array(packed, min(member.file_size, room))
    except DataError:
        raise
    except Exception as error:  # damaged files: NumPy and zipfile do not document the exceptions that they raise
        if isinstance(error, OSError) and error.errno is not None:
            raise  # not the file's content
        raise DataError(f"{path}: expected an intact .npz of arrays. Received: {reason(error)}") from error
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path}: expected the arrays {', '.join(names)}. Received: all but {', '.join(missing)}")
    train, check = (_decode(path, phase, arrays) for phase in ("train", "test"))
    return train, check


def _read_array(file: IO[bytes], size: int) -> Array:
    """An array of an .npz. `size`: its maximum size in bytes, or its size by the archive. Raises ValueError."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran, dtype = read_header[version](file)
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or nbytes > size:
        raise ValueError(f"one of shape {shape}, {dtype}, in {bytes_text(size)}")
    content = read_at_most(file, nbytes)
    if len(content) < nbytes or read_at_most(file, 1):  # the checksum is at the end
        raise ValueError(f"one of {nbytes:,} bytes, and other content")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _decode(path: Path, phase: str, arrays: dict[str, Array]) -> Part:
    content, offsets = arrays[f"{phase}_jpeg"], arrays[f"{phase}_offsets"]
    if content.dtype != np.uint8 or content.ndim != 1:
        raise DataError(
            f"{path}: expected {phase}_jpeg, all files concatenated, uint8. "
            f"Received: shape {content.shape}, {content.dtype}"
        )
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise DataError(
            f"{path}: expected {phase}_offsets, with one integer more than there are images. "
            f"Received: shape {offsets.shape}, {offsets.dtype}"
        )
    places = offsets.astype(np.int64)
    if places[0] != 0 or places[-1] != len(content) or (np.diff(places) < 0).any():
        raise DataError(
            f"{path}: expected {phase}_offsets to rise from 0 to {len(content)}, the length of {phase}_jpeg. "
            f"Received: from {places[0]} to {places[-1]}"
        )
    if len(places) > MOST_IMAGES + 1:
        raise DataError(
            f"{path}: expected at most {MOST_IMAGES:,} images. Received: {len(places) - 1:,} in {phase}_jpeg"
        )
    labels = _labels(arrays[f"{phase}_labels"], len(places) - 1, f"{path}: {phase}_labels")
    return decode_images(content.view(np.uint8), places, SHAPE, f"{path}: {phase}_jpeg"), labels


def _labels(given: object, count: int, source: str) -> Array:
    """The labels as an array. Raises DataError unless each is a class."""
    if isinstance(given, list) and all(is_integer(label) for label in given):
        given = np.array(given)
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu" or given.shape != (count,):
        received = f"shape {given.shape}, {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise DataError(f"{source}: expected {count:,} labels, one for each image, integers. Received: {received}")
    wrong = (given < 0) | (given >= CLASSES)
    if wrong.any():
        image = int(np.argmax(wrong))
        raise DataError(f"{source}: expected labels from 0 to {CLASSES - 1}. Received: {given[image]} (image {image})")
    return given
