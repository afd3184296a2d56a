"""Interface of the examples of one phase, in memory or in files: the loader only asks them to write a batch."""

from __future__ import annotations

import copy
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from crossbow.types import Array, DataError, Shape

PIECE = 64 << 20
"""Maximum size in bytes of the images that `predict_examples` reads at once, unless one image is larger."""

Indices = NDArray[np.intp]
Epochs = NDArray[np.int64]


class BadExample(DataError):  # noqa: N818 - it names the example
    """An example cannot be read or decoded.

    index    index of the example in the `Examples` object that was asked to write it
    source   file of the example, and number of the record from 0 if the file holds several
    reason   what was expected and what was received
    """

    def __init__(self, index: int, source: str, reason: str) -> None:
        super().__init__(index, source, reason)
        self.index, self.source, self.reason = index, source, reason

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Selection:
    """The examples of a batch. Random choices for an example depend on the seed, its epoch and its index alone."""

    indices: Indices
    """Indices of the examples (B,)."""
    epochs: Epochs
    """Epoch of each example (B,), from 0."""
    seed: int = 0

    @classmethod
    def of(cls, indices: Indices) -> Selection:
        """The examples with these indices in epoch 0, with seed 0."""
        return cls(indices, np.zeros(len(indices), np.int64))


def looks_channels_last(shape: Shape, dtype: np.dtype[np.generic]) -> bool:
    """Whether an image of this shape and type is probably (H, W, C): it is square, or it has pixels of 8 bits, with
    which channels-first images have 1, 3 or 4 channels.

    >>> pixels, numbers = np.dtype(np.uint8), np.dtype(np.float32)
    >>> [looks_channels_last((8, 12, 3), dtype) for dtype in (pixels, numbers)]
    [True, False]
    """
    if len(shape) != 3:
        return False
    height, width, channels = shape
    return (height == width > 4 and channels in (1, 3)) or (
        dtype == np.uint8 and channels in (3, 4) and height > 4 and width > 4
    )


class Examples(ABC):
    """N images of one shape and type, and their labels.

    `labels` is an array in memory: int32 classes (N, …) or floating-point targets (N, …). Images may be in memory or in
    files.
    """

    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: SupportsIndex) -> tuple[Array, Array]: ...

    @overload
    def __getitem__(self, index: slice) -> Examples: ...

    def __getitem__(self, index: SupportsIndex | slice) -> tuple[Array, Array] | Examples:
        """The image and the label of one example, as new arrays, or the examples of a slice.

        Random changes of the image, such as crops, are those of epoch 0 with seed 0.

        Raises IndexError if the index is out of range, and BadExample if the image cannot be decoded.
        """
        if isinstance(index, slice):
            return self.part(index)
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"expected an index from {-len(self)} to {len(self) - 1}. Received: {position}")
        label: Array = self.labels[position].copy()
        return self.read_images(np.array([position % len(self)]))[0], label

    @property
    @abstractmethod
    def image_shape(self) -> Shape:
        """Shape of one image: (C, H, W) or (features,)."""

    @property
    @abstractmethod
    def image_dtype(self) -> np.dtype[np.generic]:
        """Element type of images: uint8, float32 or float64."""

    @property
    def label_shape(self) -> Shape:
        """Shape of an example's label: () for one class, (H, W) for a class of every pixel."""
        return self.labels.shape[1:]

    @property
    def groups(self) -> Indices | None:
        """Number of the file that stores each example (N,), from 0; None if examples are not grouped in files."""
        return None

    def source(self, index: int) -> str:
        """The file of an example, and the example's position in it; "" if the example is in memory."""
        return ""

    def stored_images(self, indices: Indices) -> Array | None:
        """The images (B, …) with these indices as they are in memory or in a memory map; None if they are in files that
        have to be decoded."""
        return None

    def names_of_files(self) -> bytes:
        """The names of the files of the images, wherever these are, or their sizes, for a digest. Empty if there are no
        files, or the labels say as much."""
        return b""

    def read_images(self, indices: Indices) -> Array:
        """The images (B, …) with these indices, as a new array, with the random changes of epoch 0 and seed 0.

        Raises BadExample for the first image that cannot be decoded.
        """
        images: Array = np.empty((len(indices), *self.image_shape), self.image_dtype)
        if len(indices):
            self.write_images(Selection.of(indices), images)
        return images

    def write(self, selection: Selection, images: Array, labels: Array) -> None:
        """Write the images and labels of a batch to `images` (B, …) and `labels` (B, …).

        Several threads may call this at the same time, each with its own arrays.
        """
        self.write_images(selection, images)
        # mode="clip" writes directly to `out`, without the GIL; "raise" would use a temporary array.
        self.labels.take(selection.indices, axis=0, out=labels, mode="clip")

    @abstractmethod
    def write_images(self, selection: Selection, images: Array) -> None:
        """Write the images of a batch to `images` (B, …), in the order of the selection.

        Raises BadExample for the first image that cannot be decoded. The images before it are written.
        """

    def with_labels(self, labels: Array) -> Self:
        """The same images with other labels."""
        other = copy.copy(self)
        other.labels = labels
        return other

    def for_tests(self) -> Examples:
        """The same examples for tests: without random changes."""
        return self

    def part(self, selected: slice | Indices) -> Examples:
        """The examples with these indices, in this order."""
        return PartOfExamples(self, np.arange(len(self))[selected])


@dataclass(frozen=True, eq=False)
class ArrayExamples(Examples):
    """Examples in memory: images (N, C, H, W) or (N, features) and labels (N, …), both contiguous."""

    images: Array
    labels: Array

    @property
    def image_shape(self) -> Shape:
        return self.images.shape[1:]

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return self.images.dtype

    def stored_images(self, indices: Indices) -> Array:
        found: Array = self.images[indices]
        return found

    def write_images(self, selection: Selection, images: Array) -> None:
        self.images.take(selection.indices, axis=0, out=images, mode="clip")  # see `write`

    def with_labels(self, labels: Array) -> Self:
        return replace(self, labels=labels)

    def part(self, selected: slice | Indices) -> ArrayExamples:
        """The examples with these indices: a view if they are adjoining, else a copy."""
        return ArrayExamples(np.ascontiguousarray(self.images[selected]), np.ascontiguousarray(self.labels[selected]))


class PartOfExamples(Examples):
    """A selection of other examples, which are read when they are needed."""

    def __init__(self, whole: Examples, indices: Indices) -> None:
        self._whole, self._indices = whole, indices
        self.labels = np.ascontiguousarray(whole.labels[indices])

    @property
    def image_shape(self) -> Shape:
        return self._whole.image_shape

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return self._whole.image_dtype

    @property
    def groups(self) -> Indices | None:
        groups = self._whole.groups
        return None if groups is None else groups[self._indices]

    def source(self, index: int) -> str:
        return self._whole.source(int(self._indices[index]))

    def stored_images(self, indices: Indices) -> Array | None:
        return self._whole.stored_images(self._indices[indices])

    def names_of_files(self) -> bytes:
        whole = self._whole.names_of_files()
        return whole and whole + self._indices.tobytes()

    def write_images(self, selection: Selection, images: Array) -> None:
        indices = self._indices[selection.indices]
        try:
            self._whole.write_images(replace(selection, indices=indices), images)
        except BadExample as error:
            index = int(selection.indices[indices == error.index][0])
            raise BadExample(index, error.source, error.reason) from error

    def for_tests(self) -> Examples:
        part = copy.copy(self)
        part._whole = self._whole.for_tests()
        return part


def predict_examples(images: Array | Examples, predict: Callable[[Array], Array]) -> Array:
    """The outputs of a function of images (N, …). It gets those of examples in pieces of at most `PIECE`, without
    random changes. Raises BadExample if an image cannot be decoded."""
    if not isinstance(images, Examples):
        return predict(images)
    examples = images.for_tests()
    step = max(1, PIECE // max(1, math.prod(examples.image_shape) * examples.image_dtype.itemsize))
    starts = range(0, max(1, len(examples)), step)
    return np.concatenate(
        [predict(examples.read_images(np.arange(len(examples))[start : start + step])) for start in starts]
    )
