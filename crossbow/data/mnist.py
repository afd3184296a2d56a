"""MNIST: 60,000 + 10,000 handwritten digits, 28×28 (LeCun, Cortes, Burges), and Fashion-MNIST (Xiao et al., 2017)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crossbow.data import class_names
from crossbow.data.dataset import Dataset
from crossbow.data.download import download
from crossbow.data.idx import read_idx
from crossbow.files import checked_path, file_error, kind_of_file
from crossbow.types import Array, DataError

NUMBER_OF_CLASSES = 10

FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""Names and sha256 of MNIST's original files."""

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Locations of MNIST's files, tried in order."""

FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
"""Names and sha256 of Fashion-MNIST's files."""

FASHION_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
"""Locations of Fashion-MNIST's files, tried in order."""


def mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """MNIST: uint8 images (N, 1, 28, 28), pixels in [0, 1] when batched; 60,000 for training, 10,000 for checks.

    From a directory, the four IDX files are read (`train-images-idx3-ubyte`, gzipped or not, with or without `.gz`;
    `train-images.idx3-ubyte` is also accepted). Without one, they are downloaded once to the user's cache directory,
    and their hashes are checked.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    data = _load("mnist", "MNIST", "mnist", FILES, MIRRORS, directory)
    data.class_names = class_names.DIGITS
    return data


def fashion_mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """Fashion-MNIST: images of clothes in the format of MNIST, with the same numbers of images and classes.

    From a directory, the four IDX files are read, which have the same names as MNIST's. Without one, they are
    downloaded once to the user's cache directory, and their hashes are checked.

    Classes: T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    data = _load("fashion_mnist", "Fashion-MNIST", "fashion-mnist", FASHION_FILES, FASHION_MIRRORS, directory)
    data.class_names = class_names.FASHION_MNIST
    return data


def _load(
    function: str,
    title: str,
    cache: str,
    files: Mapping[str, str],
    mirrors: Sequence[str],
    directory: str | os.PathLike[str] | None,
) -> Dataset:
    if directory is None:
        otherwise = (
            f"train on the bundled digits with --dataset digits, or name a directory that holds {title}'s four files "
            "with --data-directory"
        )
        paths = download(title, cache, files, mirrors, otherwise)
    else:
        folder = checked_path(function, directory)
        try:
            paths = [_find(folder, name, title) for name in files]
        except OSError as error:
            raise file_error(error, folder, "a readable directory") from error
    x_train, y_train, x_check, y_check = (_read(path, images="images" in path.name) for path in paths)
    for images, labels, path in ((x_train, y_train, paths[1]), (x_check, y_check, paths[3])):
        if len(images) != len(labels):
            raise DataError(f"{path}: expected {len(images)} labels, one for each image. Received: {len(labels)}")
        if (largest := int(labels.max())) >= NUMBER_OF_CLASSES:
            image = int(np.argmax(labels))
            raise DataError(f"{path}: expected 0 ≤ label < {NUMBER_OF_CLASSES}. Received: {largest} for image {image}")
    if len(x_train) < len(x_check):
        raise DataError(
            f"{paths[0]}: expected at least as many training images as check images, {len(x_check):,}. "
            f"Received: {len(x_train):,}, as if the files named train and t10k were swapped"
        )
    return Dataset((x_train[:, None], y_train), (x_check[:, None], y_check), number_of_classes=NUMBER_OF_CLASSES)


def _read(path: Path, *, images: bool) -> Array:
    array = read_idx(path)
    dimensions = 3 if images else 1
    if array.dtype != np.uint8 or array.ndim != dimensions or array.size == 0:
        kind = "images (N, 28, 28)" if images else "labels (N,)"
        raise DataError(f"{path}: expected {kind}, uint8. Received: shape {array.shape}, {array.dtype}")
    return array


def _find(directory: Path, name: str, title: str) -> Path:
    """The path of a file in the directory, under any of its usual names. Raises DataError if it is missing."""
    plain = name.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")
    spellings = (plain, name, dotted, dotted + ".gz")
    for spelling in spellings:
        if (directory / spelling).is_file():
            return directory / spelling
    if not directory.is_dir():
        received = kind_of_file(directory) or "no such directory"
        raise DataError(f"{directory}: expected a directory with {title}'s four IDX files. Received: {received}")
    raise DataError(f"{directory}: expected {title}'s file {' or '.join(spellings)}. Received: none of them is there")
