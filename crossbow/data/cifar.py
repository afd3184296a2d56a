"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images 32×32 in 10 or 100 classes (Krizhevsky, 2009)."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, shown
from crossbow.data import class_names
from crossbow.data.dataset import Dataset
from crossbow.data.download import download
from crossbow.data.jpeg import decode_images
from crossbow.data.pickles import read_pickle
from crossbow.data.reading import PIECE, Bounded, Readable, read_at_most
from crossbow.files import checked_path, file_error, kind_of_file, reason
from crossbow.types import Array, DataError, bytes_text

FILES = {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}
"""Name and sha256 of CIFAR-10's archive to download."""

FILES_100 = {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"}
"""Name and sha256 of CIFAR-100's archive to download."""

MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
"""The data sets' website."""

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
"""Number of images in each original file of CIFAR-10."""
CLASSES = 10
FINE_AND_COARSE = {"coarse": 20, "fine": 100}
"""Numbers of classes by labels of CIFAR-100, in the order of a record's bytes."""

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
       of each file, and the end) and `…_labels`, with up to 200,000 images. It requires simplejpeg or
       Pillow. Pixels differ slightly from the originals'.

    The argument may also be the path of an archive or an .npz. Without an argument, the binaries are downloaded once to
    the user's cache directory (170 MB), and their hash is checked.

    Classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    return _load("cifar10", "cifar-10", FILES, data_directory, CIFAR_10, class_names.CIFAR_10)


def cifar100(data_directory: str | os.PathLike[str] | None = None, labels: str = "fine") -> Dataset:
    """CIFAR-100: uint8 images (N, 3, 32, 32), pixels in [0, 1] when batched; 50,000 for training, 10,000 for checks.

    In a directory, the first of these that is present is read:

    1. the original binaries, `train.bin` and `test.bin`: in the directory itself, in its subdirectory
       `cifar-100-binary`, or in `cifar-100-binary.tar.gz`;
    2. the Python files, `train` and `test`: in the directory itself, in `cifar-100-python`, or in
       `cifar-100-python.tar.gz`. From a pickle, only arrays, lists and numbers are read; none of its code is run.

    The argument may also be the path of an archive. Without an argument, the binaries are downloaded once to the user's
    cache directory (169 MB), and their hash is checked.

    labels: "fine" for the 100 classes, "coarse" for the 20 superclasses.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    if not isinstance(labels, str) or labels not in FINE_AND_COARSE:
        raise DataError(f"labels: expected {' or '.join(FINE_AND_COARSE)}. Received: {shown(labels)}")
    names = class_names.CIFAR_100_FINE if labels == "fine" else class_names.CIFAR_100_COARSE
    return _load("cifar100", "cifar-100", FILES_100, data_directory, _cifar_100(labels), names)


def _load(
    function: str,
    folder: str,
    files: Mapping[str, str],
    data_directory: str | os.PathLike[str] | None,
    collection: _Collection,
    names: tuple[str, ...],
) -> Dataset:
    if data_directory is None:
        otherwise = (
            f"name a directory that holds {collection.title}'s files with --data-directory, or run a script "
            "with --dataset synthetic, for synthetic images"
        )
        (path,) = download(collection.title, folder, files, MIRRORS, otherwise)
    else:
        path = checked_path(function, data_directory)
    try:
        train, check = _read(path, collection)
    except OSError as error:
        raise file_error(error, path, "a readable file") from error
    data = Dataset(train, check, number_of_classes=len(names))
    data.class_names = names
    return data


def _read(path: Path, collection: _Collection) -> tuple[Part, Part]:
    """The training and check examples in a file or directory."""
    if path.is_file():
        is_npz = collection.npz and path.suffix == ".npz"
        return _read_npz(path) if is_npz else _read_archive(path, collection)
    if not path.is_dir():
        received = kind_of_file(path) or "no such directory"
        raise DataError(f"{path}: expected a directory with {collection.title}'s files. Received: {received}")
    for form in (collection.binary, collection.python):
        for folder in (path, path / form.folder):
            if any((folder / name).is_file() for name in form.files):
                return _assemble(folder, form, _in_folder(folder, form))
        if (path / form.archive).is_file():
            return _read_archive(path / form.archive, collection)
    if found := sorted(file for pattern in collection.npz for file in path.glob(pattern)):
        return _read_npz(found[0])
    expected = [form.first + " …" for form in (collection.binary, collection.python)]
    expected += [collection.binary.archive, collection.python.archive, *collection.npz[:1]]
    names = f"{', '.join(expected[:-1])} or {expected[-1]}"
    raise DataError(f"{path}: expected {collection.title}'s {names}. Received: none of them is there")


# The original files: some for training, the last for checks.


@dataclass(frozen=True)
class _Form:
    """One of the two formats in which a data set is distributed."""

    files: Mapping[str, int]
    """The names of the files, and the number of images in each, in multiples of IMAGES."""
    folder: str
    archive: str
    read: Callable[[bytes, str, int], Part]
    """Function from a file's content, its name in errors, and its number of images to its images and labels."""

    @property
    def first(self) -> str:
        return next(iter(self.files))


@dataclass(frozen=True)
class _Collection:
    """A data set and its formats."""

    title: str
    binary: _Form
    python: _Form
    npz: Sequence[str] = ()
    """Patterns of the names of .npz files."""


def _assemble(where: Path, form: _Form, contents: Iterator[tuple[str, bytes]]) -> tuple[Part, Part]:
    """The images of the files, concatenated in the right order. `contents` may have the files in any order."""
    *_, last = form.files
    counts = np.array(list(form.files.values())) * IMAGES
    starts = dict(zip(form.files, np.cumsum(counts) - counts, strict=True))
    images, labels = np.empty((counts.sum(), *SHAPE), np.uint8), np.empty(counts.sum(), np.int32)
    missing = list(form.files)
    for name, content in contents:
        if name in missing:
            count = form.files[name] * IMAGES
            place = slice(starts[name], starts[name] + count)
            images[place], labels[place] = form.read(content, f"{where}/{name}", count)
            missing.remove(name)
    if missing:
        raise DataError(f"{where}: expected {form.first} … {last}. Received: all but {', '.join(missing)}")
    check = starts[last]
    return (images[:check], labels[:check]), (images[check:], labels[check:])


def _in_folder(folder: Path, form: _Form) -> Iterator[tuple[str, bytes]]:
    for name in form.files:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                yield name, _whole(file, folder / name, form.files[name])


def _in_archive(archive: tarfile.TarFile, path: Path, collection: _Collection) -> Iterator[tuple[str, bytes]]:
    """The files with original names, in the order of the archive: seeking back would decompress everything again."""
    wanted = {**collection.binary.files, **collection.python.files}
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            raise DataError(f"{path}: expected an archive of at most {MOST_MEMBERS:,} files. Received: more")
        name = PurePosixPath(member.name).name
        if member.isfile() and name in wanted:
            file = archive.extractfile(member)
            assert file is not None
            yield name, _whole(file, f"{path}/{name}", wanted[name])


def _whole(file: Readable, source: object, share: int) -> bytes:
    """The whole content of a file. Raises DataError if it is too large for `share` times IMAGES images."""
    content = read_at_most(file, share * LARGEST_FILE + 1)
    if len(content) > share * LARGEST_FILE:
        raise DataError(f"{source}: expected at most {bytes_text(share * LARGEST_FILE)}. Received: more than that")
    return content


def _read_archive(path: Path, collection: _Collection) -> tuple[Part, Part]:
    """The examples in a .tar.gz archive. The first file with an original name determines the format."""
    try:
        with gzip.open(path) as packed:
            file = Bounded(packed, LARGEST_ARCHIVE, str(path))
            with tarfile.open(fileobj=cast("IO[bytes]", file), mode="r|", bufsize=PIECE) as archive:
                return _read_contents(_in_archive(archive, path, collection), file, path, collection)
    except DataError:
        raise
    except Exception as error:  # damaged files: tarfile does not document the exceptions that they raise
        if isinstance(error, OSError) and error.errno is not None:
            raise  # not the file's content
        raise DataError(f"{path}: expected an intact .tar.gz. Received: {reason(error)}") from error


def _read_contents(
    contents: Iterator[tuple[str, bytes]], file: Bounded, path: Path, collection: _Collection
) -> tuple[Part, Part]:
    """The examples in the files of an archive. The rest of the archive is read, too, to verify its checksum."""
    first = next(contents, None)
    binary, python = collection.binary, collection.python
    if first is None:
        raise DataError(f"{path}: expected an archive with {binary.first} or {python.first}. Received: none")
    form = binary if first[0] in binary.files else python
    train, check = _assemble(path, form, itertools.chain([first], contents))
    while file.read():  # the checksum is at the end
        pass
    return train, check


def _read_binary(content: bytes, source: str, count: int, label_bytes: Mapping[str, int], labels: str) -> Part:
    """The images and labels in a binary file. It has for each image the labels, one byte each, and the pixels: red,
    green, blue, each row by row.

    label_bytes: the names of the labels in order, and their numbers of classes; `labels` is the one to return.
    """
    record = len(label_bytes) + int(np.prod(SHAPE))
    if len(content) != count * record:
        raise DataError(
            f"{source}: expected {count * record:,} bytes, {record:,} for each of {count:,} images. "
            f"Received: {len(content):,}"
        )
    records = np.frombuffer(content, np.uint8).reshape(count, record)
    columns = {
        name: _labels(records[:, column], count, source, classes)
        for column, (name, classes) in enumerate(label_bytes.items())
    }
    return records[:, len(label_bytes) :].reshape(count, *SHAPE), columns[labels]


def _read_python(content: bytes, source: str, count: int, key: str, number_of_classes: int) -> Part:
    """The images and labels in a pickled dictionary that has `data` (N, 3072) and, under `key`, the labels."""
    held = read_pickle(content, source)
    found = {_text(key): value for key, value in held.items()} if isinstance(held, dict) else {}
    data, shape = found.get("data"), (count, int(np.prod(SHAPE)))
    if not isinstance(data, np.ndarray) or data.shape != shape or data.dtype != np.uint8:
        received = f"shape {data.shape}, {data.dtype}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{source}: expected `data` of shape {shape}, uint8. Received: {received}")
    return data.reshape(count, *SHAPE), _labels(found.get(key), count, source, number_of_classes)


def _text(key: object) -> object:
    return key.decode("latin1") if isinstance(key, bytes) else key


CIFAR_10 = _Collection(
    "CIFAR-10",
    _Form(
        {**{f"data_batch_{number}.bin": 1 for number in range(1, 6)}, "test_batch.bin": 1},
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        partial(_read_binary, label_bytes={"labels": CLASSES}, labels="labels"),
    ),
    _Form(
        {**{f"data_batch_{number}": 1 for number in range(1, 6)}, "test_batch": 1},
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        partial(_read_python, key="labels", number_of_classes=CLASSES),
    ),
    ("cifar10*.npz", "cifar-10*.npz"),
)


def _cifar_100(labels: str) -> _Collection:
    """CIFAR-100 with its fine or its coarse labels. Each image in the binaries has both, the coarse one first."""
    return _Collection(
        "CIFAR-100",
        _Form(
            {"train.bin": 5, "test.bin": 1},
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            partial(_read_binary, label_bytes=FINE_AND_COARSE, labels=labels),
        ),
        _Form(
            {"train": 5, "test": 1},
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            partial(_read_python, key=f"{labels}_labels", number_of_classes=FINE_AND_COARSE[labels]),
        ),
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
    """An array of an .npz. size: size of the array's file in bytes, according to the archive, or an upper bound. Raises
    ValueError."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[version](file)
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or nbytes > size:
        raise ValueError(f"one of shape {shape}, {dtype}, in {bytes_text(size)}")
    content = read_at_most(file, nbytes)
    if len(content) < nbytes or read_at_most(file, 1):  # the checksum is at the end
        raise ValueError(f"one of {nbytes:,} bytes, and other content")
    return np.frombuffer(content, dtype).reshape(shape)  # arrays of more than one dimension are rejected later


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
    labels = _labels(arrays[f"{phase}_labels"], len(places) - 1, f"{path}: {phase}_labels", CLASSES)
    return decode_images(content.view(np.uint8), places, SHAPE, f"{path}: {phase}_jpeg"), labels


def _labels(given: object, count: int, source: str, number_of_classes: int) -> Array:
    """The labels as an array. Raises DataError unless each is a class."""
    if isinstance(given, list) and all(is_integer(label) for label in given):
        given = np.array(given)
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu" or given.shape != (count,):
        received = f"shape {given.shape}, {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise DataError(f"{source}: expected {count:,} labels, one for each image, integers. Received: {received}")
    wrong = (given < 0) | (given >= number_of_classes)
    if wrong.any():
        image = int(np.argmax(wrong))
        raise DataError(
            f"{source}: expected labels from 0 to {number_of_classes - 1}. Received: {given[image]} (image {image})"
        )
    return given
