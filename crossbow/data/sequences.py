"""Data sets of Python sequences, whose images are read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossbow.data.dataset import Dataset
from crossbow.data.examples import BadExample, Examples, Selection, looks_channels_last
from crossbow.types import Array, DataError, Shape

UNREADABLE = (DataError, OSError, ValueError)
"""Errors that mean that an image cannot be read."""


def sequence(
    train: Sequence[tuple[Any, Any]],
    check: Sequence[tuple[Any, Any]] | None = None,
    *,
    number_of_classes: int | None = None,
    ignored_label: int | None = None,
    channels_last: bool = False,
) -> Dataset:
    """A data set of sequences of (image, label), such as lists or data sets of PyTorch: `len(train)` and `train[i]`.

    Images are arrays, or objects that NumPy converts to arrays, all of the same shape and type: (C, H, W), (H, W) or
    (features,), uint8 or floating point. Pillow's images become (H, W) if they are grey, otherwise RGB, (3, H, W).
    Labels are integers or arrays of integers (classes), or floating-point numbers (targets). Other arguments are those
    of `Dataset`.

    Every pair is read once when the data set is created, to collect the labels and to check the shapes. Images are read
    again, in another thread, whenever they are needed. They are not kept, so a sequence may be larger than memory, and
    may return another image each time, of the same shape and type.

    Raises DataError with the phase and the index of an example, what was expected and what was received, also if the
    sequence raises an exception, which is then the cause. Later, an image of another shape or type is a bad example
    (`SystemConf.on_bad_record`), and so is one for which the sequence raises OSError or ValueError, as Pillow does for
    a damaged file. Any other exception then reaches the caller.

    >>> data = sequence([(np.full((1, 8, 8), n, np.uint8), n % 3) for n in range(9)])
    >>> len(data.train), data.image_shape, data.number_of_classes
    (9, (1, 8, 8), 3)
    """
    return Dataset(
        SequenceExamples(train, "train", channels_last),
        None if check is None else SequenceExamples(check, "check", channels_last),
        number_of_classes=number_of_classes,
        ignored_label=ignored_label,
    )


class SequenceExamples(Examples):
    """The examples of a sequence of (image, label)."""

    def __init__(self, items: Sequence[tuple[Any, Any]], phase: str, channels_last: bool = False) -> None:
        self._items, self._phase, self._channels_last = items, phase, channels_last
        self._read_shape: Shape = ()
        self._shape: Shape = ()
        self._kind: np.dtype[Any] = np.dtype(np.uint8)
        """Type of the images."""
        self._dtype = self._kind
        labels: list[Array] = []
        for index in range(self._count()):
            try:
                image, label = self._item(index)
            except DataError:
                raise
            except Exception as error:  # the sequence's own, also if it is shorter than its len()
                raise self._error("a sequence with", index, f"{type(error).__name__}: {error}") from error
            if index == 0:
                self._set_kind(image)
            self._check_kind(index, image)
            labels.append(self._label(index, label, labels[0] if labels else None))
        self.labels = np.array(labels, np.int64 if labels[0].dtype.kind in "biu" else None)

    @property
    def image_shape(self) -> Shape:
        return self._shape

    @property
    def image_dtype(self) -> np.dtype[np.generic]:
        return self._dtype

    def write_images(self, selection: Selection, images: Array) -> None:
        for position, index in enumerate(selection.indices.tolist()):
            try:
                image, _ = self._item(index)
                self._check_kind(index, image)
            except UNREADABLE as error:
                own = isinstance(error, DataError)
                reason = str(error).removeprefix(f"{self._phase}: ") if own else f"{type(error).__name__}: {error}"
                raise BadExample(index, f"{self._phase}, example {index}", reason) from error
            images[position] = image.reshape(self._shape)

    def _count(self) -> int:
        kind = type(self._items)
        if not hasattr(kind, "__len__") or not hasattr(kind, "__getitem__"):
            # A DataLoader of PyTorch has its sequence as an attribute.
            hint = ", for example `loader.dataset`" if hasattr(self._items, "dataset") else ""
            raise DataError(f"{self._phase}: expected a sequence of (image, label){hint}. Received: {kind.__name__}")
        try:
            count = len(self._items)
        except Exception as error:
            received = f"{kind.__name__}, whose len() raises {type(error).__name__}: {error}"
            raise DataError(f"{self._phase}: expected a sequence of (image, label). Received: {received}") from error
        if count == 0:
            raise DataError(f"{self._phase}: expected at least one example. Received: none")
        return count

    def _item(self, index: int) -> tuple[Array, Any]:
        item = self._items[index]
        if not isinstance(item, tuple | list):
            raise self._error("a pair (image, label) as", index, type(item).__name__)
        if len(item) != 2:
            raise self._error("a pair (image, label) as", index, f"{type(item).__name__} of {len(item)}")
        return self._array("image", index, self._pixels(item[0])), item[1]

    def _pixels(self, image: Any) -> Any:
        """The pixels of an image of Pillow as an array, grey or RGB; any other object unchanged."""
        mode = getattr(image, "mode", None)
        if not isinstance(mode, str) or not hasattr(image, "getbands"):
            return image
        if mode not in ("L", "RGB", "I", "F") and not mode.startswith("I;"):  # a palette has no brightness, for example
            image = image.convert("L" if mode in ("1", "LA", "La") else "RGB")
        pixels = np.asarray(image)
        return pixels if pixels.ndim == 2 or self._channels_last else pixels.transpose(2, 0, 1)

    def _error(self, expected: str, index: int, received: str) -> DataError:
        return DataError(f"{self._phase}: expected {expected} example {index}. Received: {received}")

    def _array(self, what: str, index: int, value: object) -> Array:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of PyTorch with a gradient
            received = f"{type(value).__name__} ({error})"
            raise self._error(f"an array as {what} of", index, received) from error
        if array.dtype.kind not in "biuf":
            raise self._error(f"numbers as {what} of", index, f"{type(value).__name__} {array.dtype}")
        return array

    def _set_kind(self, image: Array) -> None:
        shape = image.shape
        if (image.dtype != np.uint8 and image.dtype.kind != "f") or image.dtype.itemsize > 8:
            raise self._error("uint8 or floating point in the image of", 0, str(image.dtype))
        if len(shape) not in (1, 2, 3) or 0 in shape:
            raise self._error("(C, H, W), (H, W) or (features,) as shape of the image of", 0, str(shape))
        if looks_channels_last(shape, image.dtype) and not self._channels_last:
            raise self._error("(C, H, W), or channels_last=True, for the image of", 0, f"shape {shape}")
        self._read_shape = shape
        self._shape = (1, *shape) if len(shape) == 2 else shape
        self._kind = image.dtype.newbyteorder("=")
        self._dtype = np.dtype(np.float32) if self._kind == np.float16 else self._kind

    def _check_kind(self, index: int, image: Array) -> None:
        if image.shape != self._read_shape or (image.dtype.newbyteorder("=") != self._kind):
            expected = f"shape {self._read_shape} and type {self._kind}, as before, in the image of"
            raise self._error(expected, index, f"shape {image.shape}, {image.dtype}")
        if image.dtype.kind == "f" and not np.isfinite(image.astype(self._dtype)).all():
            raise self._error("finite numbers in the image of", index, "one that is not")

    def _label(self, index: int, value: object, first: Array | None) -> Array:
        label = self._array("label", index, value)
        if first is not None and (label.shape != first.shape or (label.dtype.kind == "f") != (first.dtype.kind == "f")):
            expected = f"shape {first.shape} and type {first.dtype}, as before, in the label of"
            raise self._error(expected, index, f"shape {label.shape}, {label.dtype}")
        if label.dtype.kind in "iu" and label.size:
            for value in (int(label.min()), int(label.max())):
                if not -(2**31) <= value < 2**31:
                    raise self._error(f"an integer from {-(2**31)} to {2**31 - 1} as label of", index, str(value))
        return label
