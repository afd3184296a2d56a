"""Data sets: examples that are checked once, so that training needs no further checks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, plain, shown
from crossbow.data.examples import ArrayExamples, Examples, looks_channels_last
from crossbow.data.mapped import MappedExamples, memory_map_of
from crossbow.data.shards import RankShare, shard_of
from crossbow.data.splitting import split_indices
from crossbow.files import reason
from crossbow.types import LARGEST_EXACT, Array, DataError, Phase, Shape

LARGEST_NUMBER_OF_CLASSES = 2**31 - 1
"""Maximum number of classes, because labels are stored as int32."""


class Dataset:
    """Training examples and, optionally, check examples, each with its label.

    train, check: a pair of NumPy arrays, examples and labels; or `Examples` (`crossbow.data.examples`), which read
    their images when they are needed, like those of `image_folder`, `sequence`, `records` and `batch_files`.

    Images are (N, C, H, W). Other examples are (N, features), sequences (N, C, L), volumes (N, C, D, H, W), or of any
    other shape (N, …). uint8 stays uint8, and is multiplied by `scale` = 1/255 when it is batched, so that the model
    sees [0, 1]. Floating-point numbers are used as they are (`scale` = 1). Other integers, which images must not be,
    become float32 with the same values, or float64 if they are larger than 2²⁴.

    The type of the labels determines the task. Integers are classes and become int32: (N,) for one class per example,
    or (N, …) for several, such as (N, H, W) for a class of every pixel. Floating-point numbers (N, …) are targets of a
    regression. One-hot labels (an integer matrix whose rows are zeros and a single one) are rejected. Arrays that
    already have the right type and are contiguous are not copied, and must not change while they are in use.

    Examples in a memory map, such as `np.load(path, mmap_mode="r")`, are never read whole, but when they are needed;
    labels are read into memory. uint8 and float64 keep their type, and other numbers become float32. An example counts
    as bad if a number of it is not finite, or if float32 cannot hold it (`SystemConf.on_bad_record`).

    `number_of_classes`: labels are 0 ≤ label < number_of_classes; None is the largest label + 1.
    `ignored_label`: an additional valid label, such as −1 or 255, for examples that a loss ignores.
    `sequences`: whether arrays of three dimensions are sequences (N, C, L) in any case. Otherwise those that may be
    grayscale images (N, H, W), because they are uint8 or square, are rejected; these need a channel, x[:, None].
    `channels_last`: whether images may be (N, H, W, C). They are used as they are, for a network that begins with a
    Transpose, as networks from Keras do. Otherwise images that look channels-last are rejected, because no operator
    would detect the mistake.

    Raises DataError with the array's name, what was expected and what was received.

    >>> x = np.zeros((4, 1, 28, 28), np.uint8)
    >>> data = Dataset((x, np.array([0, 1, 2, 1])))
    >>> len(data.train), data.image_shape, data.number_of_classes
    (4, (1, 28, 28), 3)
    """

    train: Examples
    check: Examples | None
    number_of_classes: int | None
    """Number of classes; None for a regression."""
    scale: float
    """Factor by which images are multiplied when they are batched."""
    _class_names: tuple[str, ...] | None = None
    share: RankShare | None = None
    """The division of the examples among ranks, if the training examples are only this rank's (`share_of_rank`)."""

    def __init__(
        self,
        train: tuple[Array, Array] | Examples,
        check: tuple[Array, Array] | Examples | None = None,
        *,
        number_of_classes: int | None = None,
        ignored_label: int | None = None,
        channels_last: bool = False,
        sequences: bool = False,
    ) -> None:
        number_of_classes, ignored_label = plain((number_of_classes, ignored_label))
        _check_integer("number_of_classes", number_of_classes, 1, LARGEST_NUMBER_OF_CLASSES)
        _check_integer("ignored_label", ignored_label, -(2**31), 2**31 - 1)
        given = {"train": _examples("train", train, channels_last, sequences)}
        if check is not None:
            given["check"] = _examples("check", check, channels_last, sequences)
            _check_agreement(given["train"], given["check"])
        self.number_of_classes = _check_classes(given, number_of_classes, ignored_label)
        if self.number_of_classes is not None:
            given = {
                phase: examples.with_labels(np.ascontiguousarray(examples.labels, dtype=np.int32))
                for phase, examples in given.items()
            }
        self.train = given["train"]
        self.check = given.get("check")
        self.scale = 1 / 255 if self.train.image_dtype == np.uint8 else 1.0

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of their labels, if they are known. Can be set to a sequence of str, one
        for each class, or to None; other values raise DataError."""
        return self._class_names

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        if names is None:
            self._class_names = None
            return
        if self.number_of_classes is None:
            raise DataError(f"class_names: expected None, because the labels are targets. Received: {shown(names)}")
        listed = isinstance(names, Sequence | np.ndarray) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names):
            raise DataError(f"class_names: expected a sequence of str, one for each class. Received: {shown(names)}")
        if len(names) != self.number_of_classes:
            raise DataError(
                f"class_names: expected {self.number_of_classes} names, one for each class. Received: {len(names)}"
            )
        self._class_names = tuple(map(str, names))

    @property
    def image_shape(self) -> Shape:
        """Shape of one example, for example (C, H, W) or (features,)."""
        return self.train.image_shape

    @property
    def label_shape(self) -> Shape:
        """Shape of one label; () for one class or one number per example."""
        return self.train.label_shape

    def examples(self, phase: Phase) -> Examples:
        """The examples of a phase. Raises DataError if the data set has no check examples."""
        if phase is Phase.TRAIN:
            return self.train
        if self.check is None:
            raise DataError("expected check examples: Dataset((x_train, y_train), (x_check, y_check)). Received: none")
        return self.check

    def shard(
        self,
        *,
        stride: tuple[int, int] | None = None,
        fraction: tuple[float, float] | None = None,
        offset: tuple[int, int] | None = None,
    ) -> Dataset:
        """The data set of one of several workers: a part of the training examples, or all in another order. The check
        examples and the number of classes stay the same.

        Exactly one argument must be given; N is the number of training examples:

        stride      (r, k): examples r, r + k, r + 2 k, …, as in Theano-MPI
        fraction    (a, b): examples from round(a · N) to round(b · N), as in MXNet-G
        offset      (i, k): all examples, beginning with example ⌊i · N / k⌋, as in SpeeDO

        The strides (0, k) … (k − 1, k) are disjoint and together contain all examples, and so are adjoining fractions
        from 0 to 1. If the examples are arrays in memory, a fraction shares the memory of this data set; a stride or an
        offset copies the examples. Other examples, such as those in memory maps, are not read.

        Raises DataError if an argument is out of range, or the part is empty.

        >>> data = Dataset((np.arange(10, dtype=np.float32)[:, None], np.arange(10)))
        >>> [part.train.labels.tolist() for part in (data.shard(stride=(1, 4)), data.shard(fraction=(0.5, 0.75)))]
        [[1, 5, 9], [5, 6, 7]]
        """
        part = copy.copy(self)
        part.train = self.train.part(shard_of(len(self.train), stride, fraction, offset))
        return part

    def split(self, check_fraction: float, *, stratified: bool = True, seed: int = 0) -> Dataset:
        """A data set whose check examples are a random part of this data set's training examples, and whose training
        examples are the others. The check examples of this data set are not used. Images that are changed at random in
        training, like those of `image_folder`, are not changed in the check examples.

        stratified: whether each class has the same fraction of check examples, up to rounding; it has no effect on
        targets of a regression and on labels with several classes. seed: seed of the random choice. Arrays in memory
        are copied.

        Raises DataError if an argument is out of range, or a part is empty.

        >>> data = Dataset((np.arange(10, dtype=np.float32)[:, None], np.repeat([0, 1], [8, 2])))
        >>> parts = data.split(0.5)
        >>> parts.train.labels.tolist(), parts.check.labels.tolist()
        ([0, 0, 0, 0, 1], [0, 0, 0, 0, 1])
        """
        classes = self.number_of_classes is not None
        train, check = split_indices(
            self.train.labels, check_fraction, stratified=stratified, seed=seed, classes=classes
        )
        parts = copy.copy(self)
        parts.train, parts.check = self.train.part(train), self.train.part(check).for_tests()
        return parts

    def __repr__(self) -> str:
        check = "no" if self.check is None else f"{len(self.check):,}"
        kind = f"targets {self.label_shape}" if self.number_of_classes is None else f"{self.number_of_classes} classes"
        return (
            f"Dataset({len(self.train):,} training and {check} check examples, "
            f"images {self.image_shape} {self.train.image_dtype}, {kind})"
        )


def _check_integer(name: str, value: object, minimum: int, maximum: int) -> None:
    if value is None:
        return
    if not is_integer(value) or not minimum <= int(value) <= maximum:  # type: ignore[call-overload]
        raise DataError(f"{name}: expected an integer from {minimum} to {maximum}, or None. Received: {value!r}")


def _describe(array: Array) -> str:
    return f"shape {array.shape}, {array.dtype}"


def _array(name: str, value: object) -> Array:
    _check_unmasked(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"{name}: expected a NumPy array. Received: {type(value).__name__} ({error})") from error
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        raise DataError(f"{name}: expected an array of numbers. Received: {_describe(array)}")
    if array.ndim == 0:
        raise DataError(f"{name}: expected an array whose first dimension counts the examples. Received: a scalar")
    if array.size == 0:
        raise DataError(f"{name}: expected at least one example, and no empty ones. Received: {_describe(array)}")
    return array


def _check_unmasked(name: str, value: object) -> None:
    """Raise DataError for a masked array with masked values, because these would be used like all others."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            f"{name}: expected an array without masked values; replace them with .filled(value). "
            f"Received: {np.count_nonzero(np.ma.getmaskarray(value)):,} masked of {value.size:,}"
        )


def _finite(name: str, array: Array) -> Array:
    """The floating-point array as contiguous native float32 or float64; copied only if necessary."""
    dtype = np.dtype(np.float32 if array.dtype.itemsize < 4 else array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array, dtype=dtype)
    check_finite(name, array)
    return array


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Raises DataError, which names the example, if a floating-point array (N, …) has a non-finite number."""
    # Minimum and maximum reveal NaN and infinity without a temporary array of the data's size.
    if array.size and not (-np.inf < np.minimum.reduce(array, None) and np.maximum.reduce(array, None) < np.inf):
        example = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))
        values = array[example].ravel()
        bad = values[~np.isfinite(values)][0]
        raise DataError(f"{name}: expected finite numbers. Received: {bad} in example {example}")


def checked_like(value: object, shape: Shape, dtype: np.dtype[Any], computed: np.dtype[Any]) -> Array:
    """Images (N, *shape) for a prediction. They must have the type of the training images or, if that is a
    floating-point type, any floating-point type. computed: the type of the computation, which must be able to represent
    them. Raises DataError."""
    _check_unmasked("predict", value)
    try:
        images = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"predict: expected an array of images. Received: {reason(error)}") from error
    if images.shape[1:] != shape:
        raise DataError(
            f"predict: expected images of shape (N, {', '.join(map(str, shape))}). Received: {images.shape}"
        )
    if images.dtype.kind in "biu" and images.dtype != np.uint8 and dtype.kind == "f" and len(shape) != 3:
        images = _as_floats("predict", images) if images.size else images.astype(dtype)
    if images.dtype != dtype and not (images.dtype.kind == "f" and dtype.kind == "f"):
        raise DataError(f"predict: expected images of type {dtype}. Received: {images.dtype}")
    if images.dtype.kind == "f":
        check_finite("predict", images)
        _check_fits("predict", images, computed)
    return images


def check_data_fits(data: Dataset, dtype: np.dtype[Any]) -> None:
    """Raise DataError if an example in memory, or a target, becomes infinite in the type of the computation."""
    for phase, examples in (("train", data.train), ("check", data.check)):
        if isinstance(examples, ArrayExamples):
            _check_fits(f"x_{phase}", examples.images, dtype)
        if examples is not None:
            _check_fits(f"y_{phase}", examples.labels, dtype)


def _check_fits(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise DataError if a finite number becomes infinite in the type of the computation."""
    if array.dtype.kind == "f" and array.dtype.itemsize > dtype.itemsize and array.size:
        # As in `check_finite`, without a temporary array of the data's size.
        largest = max(-np.minimum.reduce(array, None), np.maximum.reduce(array, None))
        with np.errstate(over="ignore"):
            fits = np.isfinite(largest.astype(dtype))
        if not fits:
            raise DataError(f"{name}: expected numbers that {dtype} can hold. Received: {largest:g}")


def checked_images(name: str, value: object, *, channels_last: bool = False, sequences: bool = False) -> NDArray[Any]:
    """The examples in the form that training and prediction use. Raises DataError."""
    return _converted(name, _checked_shape(name, value, channels_last=channels_last, sequences=sequences))


def _checked_shape(name: str, value: object, *, channels_last: bool, sequences: bool) -> NDArray[Any]:
    """The examples as an array whose shape and type are known to be right. Raises DataError."""
    array = _array(name, value)
    if array.ndim < 2:
        raise DataError(
            f"{name}: expected examples of one dimension or more, as (N, C, H, W) or (N, features); for one feature, "
            f"{name}[:, None]. Received: {_describe(array)}"
        )
    if array.ndim == 4 and array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(
            f"{name}: expected images that are uint8 (pixels, scaled to [0, 1]) or floating point (used as they are); "
            f"convert with .astype(). Received: {_describe(array)}"
        )
    if array.ndim == 3 and not sequences and (array.dtype == np.uint8 or array.shape[1] == array.shape[2] > 1):
        raise DataError(
            f"{name}: expected (N, C, H, W), or sequences (N, C, L); these may be grayscale images, so add the "
            f"channel, {name}[:, None], or pass sequences=True. Received: {_describe(array)}"
        )
    if looks_channels_last(array.shape[1:], array.dtype) and not channels_last:
        raise DataError(
            f"{name}: expected (N, C, H, W); these look like channels-last images: use {name}.transpose(0, 3, 1, 2), "
            f"or channels_last=True for a channels-last network. Received: {_describe(array)}"
        )
    return array


def _converted(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Contiguous uint8 or finite floating-point numbers with the same values. Raises DataError."""
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    return _finite(name, array if array.dtype.kind == "f" else _as_floats(name, array))


def _as_floats(name: str, array: NDArray[Any]) -> NDArray[np.floating]:
    """Integers as floating-point numbers of the same values. Raises DataError if they are too large."""
    largest = max(int(array.max()), -int(array.min()))
    if largest > 2**53:
        raise DataError(f"{name}: expected integers up to 2**53. Received: {largest}")
    return array.astype(np.float32 if largest <= LARGEST_EXACT else np.float64)


def _labels(name: str, value: object, number_of_images: int, images_name: str) -> Array:
    array = _array(name, value)
    if len(array) != number_of_images:
        raise DataError(
            f"{name}: expected {number_of_images} labels, one for each example of {images_name}. "
            f"Received: {len(array)} ({_describe(array)})"
        )
    if array.dtype.kind == "f":
        return _finite(name, array)
    if array.ndim == 2 and _is_one_hot(array):
        raise DataError(
            f"{name}: expected integer classes (N, …) or floating-point targets (N, …); "
            f"for one-hot classes use .argmax(axis=1). Received: {_describe(array)}"
        )
    return array


def _is_one_hot(array: NDArray[Any]) -> bool:
    """Whether every row is zeros and a single one."""
    first = array[0]  # the first row usually decides, even among a million rows
    if array.shape[1] < 2 or np.count_nonzero(first) != 1:
        return False
    return bool(array.min() == 0 and array.max() == 1 and (np.count_nonzero(array, axis=1) == 1).all())


def _examples(phase: str, pair: object, channels_last: bool, sequences: bool) -> Examples:
    x, y = f"x_{phase}", f"y_{phase}"
    if isinstance(pair, Examples):
        shape, dtype = pair.image_shape, pair.image_dtype
        if not shape or dtype not in (np.uint8, np.float32, np.float64):
            raise DataError(
                f"{x}: expected examples (C, H, W), (features,) or of another shape, uint8, float32 or float64. "
                f"Received: {shape}, {dtype}"
            )
        return pair.with_labels(_labels(y, pair.labels, len(pair), x))
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        received = f"{type(pair).__name__} of {len(pair)}" if isinstance(pair, tuple | list) else type(pair).__name__
        raise DataError(f"{phase}: expected a pair ({x}, {y}). Received: {received}")
    images = _checked_shape(x, pair[0], channels_last=channels_last, sequences=sequences)
    labels = _labels(y, pair[1], len(images), x)
    if memory_map_of(images) is not None:
        return MappedExamples(images, labels)
    return ArrayExamples(_converted(x, images), labels)


def _check_agreement(train: Examples, check: Examples) -> None:
    """Raises DataError unless both phases have the same kind of examples, because one model reads both."""
    if check.image_shape != train.image_shape:
        raise DataError(
            f"x_check: expected images of shape {train.image_shape}, as in x_train. Received: {check.image_shape}"
        )
    if check.image_dtype != train.image_dtype:
        raise DataError(f"x_check: expected {train.image_dtype}, as x_train. Received: {check.image_dtype}")
    if check.labels.dtype != train.labels.dtype:
        raise DataError(f"y_check: expected {train.labels.dtype}, as y_train. Received: {check.labels.dtype}")
    if check.label_shape != train.label_shape:
        raise DataError(
            f"y_check: expected labels of shape {train.label_shape}, as in y_train. Received: {check.label_shape}"
        )


def _check_classes(given: dict[str, Examples], number_of_classes: int | None, ignored_label: int | None) -> int | None:
    """The number of classes, or None for a regression. Raises DataError unless labels are classes or ignored."""
    if given["train"].labels.dtype.kind == "f":
        for name, value in (("number_of_classes", number_of_classes), ("ignored_label", ignored_label)):
            if value is not None:
                dtype = given["train"].labels.dtype
                raise DataError(f"y_train: expected integer labels with {name}={value}. Received: {dtype}")
        return None
    largest = -1
    also = "" if ignored_label is None else f" or ignored_label={ignored_label}"
    for phase, examples in given.items():
        labels = examples.labels
        counted = labels if ignored_label is None else labels[labels != ignored_label]
        if not counted.size:
            continue
        least, most = int(counted.min()), int(counted.max())
        limit = LARGEST_NUMBER_OF_CLASSES if number_of_classes is None else int(number_of_classes)
        if least < 0 or most >= limit:
            bad = least if least < 0 else most
            example = int(np.argmax((labels == bad).reshape(len(labels), -1).any(axis=1)))
            upper = "" if number_of_classes is None and most < limit else f" < {limit}"
            hint = (
                f". For labels to ignore: Dataset(…, ignored_label={bad})"
                if least < 0 and ignored_label is None
                else ""
            )
            where = examples.source(example) or f"example {example}"
            raise DataError(f"y_{phase}: expected 0 ≤ label{upper}{also}. Received: {bad} ({where}){hint}")
        largest = max(largest, most)
    if number_of_classes is not None:
        return int(number_of_classes)
    if largest < 0:
        raise DataError(f"y_train: expected a label other than ignored_label={ignored_label}. Received: none")
    return largest + 1
