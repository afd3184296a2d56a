"""Images for a prediction: image files, folders of them, and .npy files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crossbow.data.image_folder import images_below
from crossbow.data.images import decode_image
from crossbow.data.preprocessing import Pixels, Preprocessing
from crossbow.files import checked_path, file_error, reason
from crossbow.types import Array, DataError, Shape

RED, GREEN, BLUE = 19595, 38470, 7471
"""Weights of a gray value, in 1/65536: 0.299, 0.587 and 0.114, as in ITU-R BT.601."""


class Picture(NamedTuple):
    """An image from a file."""

    source: str
    """The file and, in an .npy file of several images, the number of the image, for example "images.npy[3]"."""
    image: Array
    """The image, (C, H, W) or (features,)."""


def read_pictures(
    paths: Sequence[str | os.PathLike[str]],
    shape: Shape,
    dtype: np.dtype[np.generic],
    bad: Callable[[DataError], None] | None = None,
) -> Iterator[Picture]:
    """The images of files and folders, in this order, with the shape and type that a model takes.

    Image files become uint8 images (C, S, S) with C = 3 channels (RGB) or C = 1 (gray). An image of S×S pixels is used
    as it is; others are resized like the check examples of `image_folder`. A folder stands for all image files in it
    and its subfolders, sorted by path; a file that has only the name of an image is an error. An .npy file has one
    image of this shape, or several (N, …).

    Raises DataError if a path does not exist, or a file cannot be read or does not fit; with `bad`, this function is
    called with the error instead, and the file is left out.
    """
    reader = _Reader(shape, dtype)
    for path in (checked_path("images", path) for path in paths):
        try:
            files = _files(path)
        except DataError as error:
            if bad is None:
                raise
            bad(error)
            continue
        for file in files:
            try:
                yield from reader.pictures(file)
            except DataError as error:
                if bad is None:
                    raise
                bad(error)


def _files(path: Path) -> list[Path]:
    """The file, or the image files in a folder. Raises DataError if the folder has none."""
    if not path.is_dir():
        return [path]
    found = sorted(images_below(path))
    if not found:
        raise DataError(f"{path}: expected image files in the folder. Received: none")
    return [path / name for name in found]


class _Reader:
    def __init__(self, shape: Shape, dtype: np.dtype[np.generic]) -> None:
        self._shape, self._dtype = shape, dtype

    def pictures(self, path: Path) -> Iterator[Picture]:
        """The images of a file."""
        if path.suffix == ".npy":
            yield from self.arrays(path)
        else:
            yield Picture(str(path), self.image(path))

    def image(self, path: Path) -> Array:
        """The image of a file, in the model's shape."""
        self._check_takes_files(path)
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise file_error(error, path, "a readable image file") from error
        try:
            pixels = decode_image(content)
            if pixels.shape[1:] != self._shape[1:]:
                pixels = self._resized(content, pixels)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        return pixels if self._shape[0] == 3 else _gray(pixels)

    def _check_takes_files(self, path: Path) -> None:
        if self._dtype != np.uint8 or len(self._shape) != 3 or self._shape[0] not in (1, 3):
            expected = f"expected an .npy file, because the model takes {self._dtype} arrays of shape {self._shape}"
            raise DataError(f"{path}: {expected}. Received: another file")

    def _resized(self, content: bytes, pixels: Pixels) -> Pixels:
        from crossbow.data.preprocessor import Preprocessor  # this imports numba, which takes time

        _, height, width = self._shape
        if height != width:
            received = f"{pixels.shape[1]}×{pixels.shape[2]}"
            raise DataError(f"expected an image of {height}×{width} pixels, like the model's. Received: {received}")
        out = np.empty((3, height, width), np.uint8)
        Preprocessor(Preprocessing(height, training=False)).write(
            np.frombuffer(content, np.uint8), None, (0, 0, 0), out
        )
        return out

    def arrays(self, path: Path) -> Iterator[Picture]:
        """The images of an .npy file."""
        wanted = f"expected an array (N, {', '.join(map(str, self._shape))}) of {self._dtype}"
        try:
            array = np.load(path, allow_pickle=False, mmap_mode="r")
        except OSError as error:
            raise file_error(error, path, "a readable .npy file") from error
        except Exception as error:  # damaged files: NumPy does not document the exceptions that they raise
            raise DataError(f"{path}: {wanted}, in an .npy file. Received: {reason(error)}") from error
        fits = array.dtype == self._dtype or (array.dtype.kind == "f" and self._dtype.kind == "f")
        if fits and array.shape == self._shape:
            yield Picture(str(path), array)
        elif fits and array.shape[1:] == self._shape and array.ndim:
            for number, image in enumerate(array):
                yield Picture(f"{path}[{number}]", image)
        else:
            raise DataError(f"{path}: {wanted}. Received: {array.shape} of {array.dtype}")


def _gray(pixels: Pixels) -> Pixels:
    """Gray values (1, H, W) of colours (3, H, W), equal to those of Pillow's `convert("L")`."""
    red, green, blue = pixels.astype(np.uint32)
    gray: Pixels = ((RED * red + GREEN * green + BLUE * blue + 0x8000) >> 16).astype(np.uint8)
    return gray[None]
