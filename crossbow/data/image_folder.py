"""Data sets of image files in folders, one folder for each class."""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_number, plain
from crossbow.data.dataset import Dataset
from crossbow.data.decoded import DecodedExamples
from crossbow.data.images import FORMAT_NAMES, Scratch, looks_like_an_image
from crossbow.data.preprocessing import Boxes, Pixels, Preprocessing
from crossbow.data.reading import LARGEST_ARRAY
from crossbow.files import checked_path, file_error
from crossbow.types import DataError, bytes_text

CHECK_FOLDERS = ("val", "valid", "validation", "test")
"""Names of the folder of check examples next to `train`, the preferred one first."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
"""Suffixes of the names of images, in lower case."""


def image_folder(
    directory: str | os.PathLike[str],
    *,
    image_size: int = 224,
    colour_distortion: bool = False,
    check_fraction: float = 0.1,
) -> Dataset:
    """A data set of image files in `directory/CLASS/…`: uint8 (3, S, S), S = `image_size`.

    The classes are the sorted names of the folders (`class_names` of the data set). The images of a class are in its
    folder and below, sorted by path; links to folders are followed. The content of a file determines whether it is an
    image that `decode_image` reads. A file with another content but the name of an image, such as `1.jpg`, is a bad
    example (`SystemConf.on_bad_record`), unless it is hidden. Other files, files outside of the class folders, and
    hidden folders are ignored.

    If the directory contains `train` with folders of classes, these are the training examples, and the check examples
    are in the first existing folder of `val`, `valid`, `validation` and `test`. Otherwise the fraction `check_fraction`
    of each class, up to rounding and evenly spaced, are check examples, but never all images of a class; 0 means none.

    Images are decoded and preprocessed when they are needed. In training, a random area is resized, and mirrored at
    random (`crossbow.data.cropping.RandomWindows`); with `colour_distortion`, brightness, saturation, hue and contrast
    are changed at random (`crossbow.data.colours.ColourDistortion`). Check examples are the centres of images, as with
    torchvision's `Resize(256)` and `CenterCrop(224)` for 224 pixels. Resizing is bilinear with antialiasing.

    Raises DataError if there are no classes, a class has no images, or check examples have a class that `train` does
    not have.
    """
    check_fraction = plain(check_fraction)
    if not is_number(check_fraction) or not 0 <= check_fraction < 1:
        raise DataError(f"check_fraction: expected a number with 0 ≤ check_fraction < 1. Received: {check_fraction!r}")
    training = Preprocessing(image_size, training=True, colour_distortion=colour_distortion)
    testing = Preprocessing(image_size, training=False)
    train, check = _phases(checked_path("image_folder", directory).absolute(), check_fraction)
    data = Dataset(
        FolderExamples(train, training),
        None if check is None else FolderExamples(check, testing),
        number_of_classes=len(train.classes),
    )
    data.class_names = train.classes
    return data


@dataclass(frozen=True, eq=False)
class _Listing:
    """The image files of a phase."""

    root: Path
    classes: tuple[str, ...]
    paths: list[str]
    """Paths of the files, relative to the root."""
    labels: NDArray[np.int32]

    def part(self, selected: NDArray[np.bool_]) -> _Listing:
        paths = [self.paths[index] for index in np.flatnonzero(selected)]
        return replace(self, paths=paths, labels=self.labels[selected])


def _phases(root: Path, check_fraction: float) -> tuple[_Listing, _Listing | None]:
    """The training and check files of a directory."""
    folders = _folders(root)
    check = next((name for name in CHECK_FOLDERS if name in folders), None)
    if folders and set(folders) <= set(CHECK_FOLDERS):
        raise DataError(
            f"{root}: expected a folder for each class, or the folders train and {check}. "
            f"Received: only {' and '.join(folders)}"
        )
    # Next to other class folders, such as "car", "train" is a class.
    no_others = check is not None and {"train", *CHECK_FOLDERS}.issuperset(folders)
    if "train" in folders and (no_others or _folders(root / "train")):
        train = _list_classes(root / "train")
        if check is not None:
            return train, _list_classes(root / check, train.classes)
    else:
        train = _list_classes(root)
    if check_fraction == 0:
        return train, None
    checked = _checked(train, check_fraction)
    return train.part(~checked), train.part(checked)


def _checked(train: _Listing, check_fraction: float) -> NDArray[np.bool_]:
    """Whether each image (N,) is a check example: evenly spaced images, but never all of a class. Raises DataError if
    no image is."""
    checked: NDArray[np.bool_] = np.diff(np.floor(np.arange(len(train.paths) + 1) * check_fraction)) > 0
    if not checked.any():
        raise DataError(
            f"{train.root}: expected at least {math.ceil(1 / check_fraction):,} images, for a check example with "
            f"check_fraction={check_fraction}. Received: {len(train.paths):,}"
        )
    # The images are sorted by class, so each class has its fraction, up to rounding.
    _, firsts, sizes = np.unique(train.labels, return_index=True, return_counts=True)
    checked[firsts[np.add.reduceat(checked, firsts, dtype=np.intp) == sizes]] = False
    if not checked.any():  # each was the only image of its class
        largest = int(np.argmax(sizes))
        if sizes[largest] == 1:
            raise DataError(
                f"{train.root}: expected a class of at least two images, one of them for checks, or check_fraction=0. "
                f"Received: {len(sizes):,} classes of one image"
            )
        checked[firsts[largest] + sizes[largest] - 1] = True
    return checked


def _list_classes(root: Path, classes: tuple[str, ...] | None = None) -> _Listing:
    """The images in the folders of a directory. classes: names of the allowed folders; None allows all."""
    found = _folders(root)
    if not found:
        raise DataError(f"{root}: expected a folder with images for each class. Received: no folders")
    classes = tuple(found) if classes is None else classes
    paths: list[str] = []
    labels: list[int] = []
    for name in found:
        if name not in classes:
            raise DataError(f"{root}: expected the classes of the training set. Received: {name!r} too")
        images = sorted(images_below(root / name))
        if not images:
            raise DataError(
                f"{root / name}: expected at least one image file, {FORMAT_NAMES}, in the folder of a class. "
                f"Received: {_other_files(root / name)}"
            )
        paths += [os.path.join(name, image) for image in images]
        labels += [classes.index(name)] * len(images)
    return _Listing(root, classes, paths, np.array(labels, np.int32))


class FolderExamples(DecodedExamples):
    """The images of a listing."""

    def __init__(self, files: _Listing, preprocessing: Preprocessing) -> None:
        super().__init__(files.labels, preprocessing)
        self._root, self._paths = str(files.root), files.paths

    def source(self, index: int) -> str:
        return os.path.join(self._root, self._paths[index])

    def names_of_files(self) -> bytes:
        return os.fsencode("\0".join(self._paths)).replace(os.fsencode(os.sep), b"/")

    def read(self, index: int, scratch: Scratch) -> tuple[Pixels, Boxes | None]:
        path = self.source(index)
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > LARGEST_ARRAY:
                    raise DataError(f"expected a file of at most {bytes_text(LARGEST_ARRAY)}. Received: {size:,} bytes")
                content = scratch.array(size)
                return content[: _fill(file, content)], None
        except OSError as error:
            raise file_error(error, Path(path), "a readable image file") from error


def _fill(file: io.RawIOBase, content: Pixels) -> int:
    """Read until the array is full or the file ends. Returns the number of bytes."""
    count = 0
    while count < len(content) and (read := file.readinto(content.data[count:])):
        count += read
    return count


def _folders(directory: Path) -> list[str]:
    """The names of the folders in a directory, sorted, without hidden ones."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (OSError, ValueError) as error:  # ValueError: the path has a null character
        raise file_error(error, directory, "a directory with a folder for each class") from error


def images_below(folder: Path) -> Iterator[str]:
    """The paths of the image files in a folder and its subfolders, relative to the folder. Links to folders are
    followed, except links to a folder that contains them."""

    def fail(error: OSError) -> None:
        raise file_error(error, folder, "a readable folder of images") from error

    # The real paths of a folder and of the folders that lead to it, because a link may lead anywhere.
    ways: dict[str, tuple[str, ...]] = {os.fspath(folder): (os.path.realpath(folder),)}
    for where, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        way = ways.pop(where)
        targets = {name: os.path.realpath(os.path.join(where, name)) for name in folders if not name.startswith(".")}
        folders[:] = [name for name, target in targets.items() if not any(_is_in(passed, target) for passed in way)]
        ways.update((os.path.join(where, name), (*way, targets[name])) for name in folders)
        for name in names:
            path = os.path.join(where, name)
            if _is_image(path):
                yield path[len(os.path.join(folder, "")) :]


def _other_files(folder: Path) -> str:
    """The number of files without an image in a folder and below, by the suffix of their names, except hidden ones;
    for example "2 files .tif, 1 file .txt"."""
    suffixes: Counter[str] = Counter()
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        suffixes.update(os.path.splitext(name)[1].lower() for name in names if not name.startswith("."))
    kinds = suffixes.most_common(3)
    counts = [f"{count:,} file{'s' * (count != 1)} {suffix or 'without a suffix'}" for suffix, count in kinds]
    if others := suffixes.total() - sum(count for _, count in kinds):
        counts.append(f"{others:,} more")
    return ", ".join(counts) or "none"


def _is_in(path: str, folder: str) -> bool:
    """Whether a real path is the folder, or lies in it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


def _is_image(path: str) -> bool:
    """Whether a file is an image by its content or by its name. The name counts so that damaged images are reported."""
    name = os.path.basename(path)
    named = name.lower().endswith(SUFFIXES) and not name.startswith(".")
    # Only regular files are opened, because a pipe would block.
    try:
        if not os.path.isfile(path):
            return named and not os.path.exists(path)  # a link that leads nowhere
        with open(path, "rb", buffering=0) as file:
            return named or looks_like_an_image(file.read(16) or b"")
    except OSError as error:
        raise file_error(error, Path(path), "a readable file") from error
