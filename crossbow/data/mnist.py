"""MNIST: 60,000 + 10,000 handwritten digits, 28×28 (LeCun, Cortes, Burges)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from crossbow.data.dataset import Dataset
from crossbow.data.download import download
from crossbow.data.idx import read_idx
from crossbow.files import checked_path, file_error
from crossbow.types import Array, DataError

FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""Names and sha256 of the original files."""

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Locations of the files, tried in order."""


def mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """MNIST: uint8 images (N, 1, 28, 28), pixels in [0, 1] when batched; 60,000 for training, 10,000 for checks.

    From a directory, the four IDX files are read (`train-images-idx3-ubyte`, gzipped or not, with or without `.gz`;
    `train-images.idx3-ubyte` is also accepted). Without one, they are downloaded once to the user's cache directory,
    and their hashes are checked.

    Raises DataError if a file is missing or damaged, or cannot be downloaded.
    """
    if directory is None:
        otherwise = (
            "train on the bundled digits with --dataset digits, or name a directory that holds MNIST's four files with "
            "--data-directory"
        )
        paths = download("MNIST", "mnist", FILES, MIRRORS, otherwise)
    else:
        folder = checked_path("mnist", directory)
        try:
            paths = [_find(folder, name) for name in FILES]
        except OSError as error:
            raise file_error(error, folder, "a readable directory") from error
    x_train, y_train, x_check, y_check = (_read(path, images="images" in path.name) for path in paths)
    for images, labels, path in ((x_train, y_train, paths[1]), (x_check, y_check, paths[3])):
        if len(images) != len(labels):
            raise DataError(f"{path}: expected {len(images)} labels, one for each image. Received: {len(labels)}")
    return Dataset((x_train[:, None], y_train), (x_check[:, None], y_check), number_of_classes=10)


def _read(path: Path, *, images: bool) -> Array:
    array = read_idx(path)
    dimensions = 3 if images else 1
    if array.dtype != np.uint8 or array.ndim != dimensions or array.size == 0:
        kind = "images (N, 28, 28)" if images else "labels (N,)"
        raise DataError(f"{path}: expected {kind}, uint8. Received: shape {array.shape}, {array.dtype}")
    return array


def _find(directory: Path, name: str) -> Path:
    """The file in the directory, with any of its usual spellings."""
    plain = name.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")
    spellings = (plain, name, dotted, dotted + ".gz")
    for spelling in spellings:
        if (directory / spelling).is_file():
            return directory / spelling
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory with MNIST's four IDX files. Received: no such directory")
    raise DataError(f"{directory}: expected MNIST's file {' or '.join(spellings)}. Received: none of them is there")
