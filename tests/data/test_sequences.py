"""Data sets of Python sequences train as arrays do, and name what is not one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.data import sequence
from crossbow.data.examples import BadExample, Selection
from crossbow.types import DataError
from models.logistic_regression import logistic_regression
from tests.data.small_sets import GOOD, LABELS, PIXELS, Pairs, assert_same, read, train


def test_a_sequence_trains_as_arrays_do() -> None:
    pairs, check = Pairs(PIXELS, LABELS), list(zip(PIXELS[:9], LABELS[:9].tolist(), strict=True))
    data = sequence(pairs, check)
    assert pairs.read == list(range(37))
    assert (data.number_of_classes, data.image_shape, data.scale) == (2, (1, 6, 6), 1 / 255)
    assert_same(data, Dataset((PIXELS, LABELS), (PIXELS[:9], LABELS[:9])))
    assert len(pairs.read) >= 37 * 4
    assert any(name.startswith("crossbow") for name in pairs.threads)


def test_kinds_of_images_and_labels() -> None:
    """Grayscale, features, float16, nested lists, targets, and labels of pixels."""
    assert sequence([(np.zeros((8, 7), np.uint8), 0), (np.ones((8, 7), np.uint8), 1)]).image_shape == (1, 8, 7)
    assert sequence([([0.5, 1.5], np.int8(3)), ([1.0, 2.0], 4)]).train.image_dtype == np.float64
    data = sequence([(np.zeros(3, np.float16), 0.5), (np.ones(3, np.float16), 1.5)])
    assert data.number_of_classes is None
    assert data.train.image_dtype == np.float32
    images, labels = np.empty((1, 3), np.float32), np.empty(1, np.float64)
    data.train.write(Selection.of(np.array([1])), images, labels)
    assert (images.tolist(), labels.tolist()) == ([[1, 1, 1]], [1.5])
    data = sequence([(np.zeros((1, 6, 6), np.uint8), np.full((6, 6), n)) for n in range(3)], number_of_classes=5)
    assert (data.label_shape, data.number_of_classes) == ((6, 6), 5)
    channels_last = [(np.zeros((8, 8, 3), np.uint8), 0)]
    assert sequence(channels_last, channels_last=True).image_shape == (8, 8, 3)
    assert sequence([([1.0], 0), ([1.0], -1)], ignored_label=-1).number_of_classes == 1
    with pytest.raises(DataError, match=r"as label of example 1\. Received: 18446744073709551615$"):
        sequence([([1.0], 0), ([1.0], np.uint64(2**64 - 1))], ignored_label=-1)
    edges = [([1.0], 0), ([1.0], -(2**31)), ([1.0], 2**31 - 2)]
    assert sequence(edges, ignored_label=-(2**31)).number_of_classes == 2**31 - 1


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (5, "train: expected a sequence of (image, label). Received: int"),
        ([], "train: expected at least one example. Received: none"),
        ([GOOD, GOOD[0]], "train: expected a pair (image, label) as example 1. Received: ndarray"),
        ([GOOD, (*GOOD, 3)], "train: expected a pair (image, label) as example 1. Received: tuple of 3"),
        ([("text", 0)], "train: expected numbers as image of example 0. Received: str <U4"),
        ([([[1.0], [1.0, 2.0]], 0)], "train: expected an array as image of example 0. Received: list ("),
        ([(np.zeros((1, 6, 6), int), 0)], "train: expected uint8 or floating point in the image of example 0"),
        ([(np.zeros((1, 1, 6, 6)), 0)], "(C, H, W), (H, W) or (features,) as shape of the image of example 0"),
        ([(np.zeros((0, 6)), 0)], "as shape of the image of example 0. Received: (0, 6)"),
        ([(np.zeros((6, 6, 3)), 0)], "channels_last=True, for the image of example 0. Received: shape (6, 6, 3)"),
        (
            [GOOD, (np.zeros((1, 6, 7), np.uint8), 0)],
            "shape (1, 6, 6) and type uint8, as before, in the image of example 1",
        ),
        ([GOOD, (np.zeros((1, 6, 6)), 0)], "as before, in the image of example 1. Received: shape (1, 6, 6), float64"),
        ([([1.0], 0), ([np.nan], 0)], "train: expected finite numbers in the image of example 1"),
        ([GOOD, (GOOD[0], 0.5)], "as before, in the label of example 1. Received: shape (), float64"),
        ([GOOD, (GOOD[0], [0, 1])], "as before, in the label of example 1. Received: shape (2,), int64"),
        ([GOOD, (GOOD[0], "one")], "train: expected numbers as label of example 1. Received: str <U3"),
        ([GOOD, (GOOD[0], -1)], "y_train: expected 0 ≤ label. Received: -1 (example 1)"),
        (
            [GOOD, (GOOD[0], 2**64 - 1)],
            "train: expected an integer from -2147483648 to 2147483647 as label of example 1. "
            "Received: 18446744073709551615",
        ),
        (
            [(GOOD[0], [0, np.int64(-(2**31) - 1)])],
            "2147483647 as label of example 0. Received: -2147483649",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_sequence_of_examples(items: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        sequence(items)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_pillow() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    colour = image.fromarray(pixels)
    for given in (colour, colour.convert("RGBA")):
        data = sequence([(given, 0)])
        assert data.image_shape == (3, 4, 6)
        np.testing.assert_array_equal(read(data.train)[0], pixels.transpose(2, 0, 1))
    np.testing.assert_array_equal(
        read(sequence([(colour.convert("P"), 0)]).train)[0],
        np.asarray(colour.convert("P").convert("RGB")).transpose(2, 0, 1),
    )
    assert sequence([(colour, 0)], channels_last=True).image_shape == (4, 6, 3)
    for mode in ("L", "LA", "1"):
        assert sequence([(colour.convert(mode), 0)]).image_shape == (1, 4, 6)


def test_whole_numbers_of_several_types_are_classes() -> None:
    data = sequence([(np.zeros((1, 2, 2), np.uint8), label) for label in (np.uint64(1), np.int64(0), 2)])
    assert data.number_of_classes == 3


class Shorter:
    """It has one example, and says that it has three."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return [(np.zeros((1, 2, 2), np.uint8), 0)][index]


class Loader:
    """As a DataLoader of PyTorch, which has no [index]."""

    dataset = (GOOD,)

    def __len__(self) -> int:
        return 1


class Sizeless(Shorter):
    def __len__(self) -> int:
        raise OSError("no disk")


class Refusing:
    """As a tensor of PyTorch whose gradient is recorded."""

    def __array__(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            {"a", "b"},
            r"train: expected a sequence of \(image, label\)\. Received: set$",
        ),
        (
            Loader(),
            r"train: expected a sequence of \(image, label\), for example `loader\.dataset`\. Received: Loader$",
        ),
        (Sizeless(), r"sequence of \(image, label\)\. Received: Sizeless, whose len\(\) raises OSError: no disk$"),
        (Shorter(), "train: expected a sequence with example 1. Received: IndexError: list index out of range"),
        ([(Refusing(), 0)], r"train: expected an array as image of example 0. Received: Refusing \(call detach"),
    ],
)
def test_what_fails_names_the_example(items: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sequence(items)


@pytest.mark.parametrize("error", [OSError("disk gone"), ZeroDivisionError("of the sequence")], ids=repr)
def test_an_exception_while_the_labels_are_read_names_the_example(error: Exception) -> None:
    class Failing(Pairs):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if index == 3:
                raise error
            return super().__getitem__(index)

    with pytest.raises(DataError) as caught:
        sequence(Failing(PIXELS, LABELS))
    received = f"{type(error).__name__}: {error}"
    assert str(caught.value) == f"train: expected a sequence with example 3. Received: {received}"
    assert caught.value.__cause__ is error


def test_labels_out_of_range_and_phases_that_differ() -> None:
    with pytest.raises(DataError, match=r"y_check: expected 0 ≤ label < 1\. Received: 3 \(example 1\)"):
        sequence([GOOD], [GOOD, (GOOD[0], 3)], number_of_classes=1)
    with pytest.raises(DataError, match=r"x_check: expected images of shape \(1, 6, 6\), as in x_train"):
        sequence([GOOD], [(np.zeros((1, 6, 5), np.uint8), 0)])
    with pytest.raises(DataError, match=r"^check: expected a pair"):
        sequence([GOOD], [5])  # type: ignore[list-item]


def test_an_image_that_changes_its_shape_is_named_while_training() -> None:
    class Changing(Pairs):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            image, label = super().__getitem__(index)
            return (image[:, :5] if len(self.read) > 50 else image), label

    with pytest.raises(DataError, match=r"example \d+: expected shape \(1, 6, 6\) and type uint8, as before, in the"):
        train(sequence(Changing(PIXELS, LABELS), [GOOD]))


def test_an_exception_of_a_sequence_reaches_the_caller() -> None:
    class Failing(Pairs):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if len(self.read) > 50:
                raise ZeroDivisionError("of the sequence")
            return super().__getitem__(index)

    with pytest.raises(ZeroDivisionError, match="of the sequence"):
        train(sequence(Failing(PIXELS, LABELS), [GOOD]))


class DamagedLater(Pairs):
    """A sequence of which some images cannot be read a second time; None: their shape changes."""

    def __init__(self, errors: dict[int, Exception | None]) -> None:
        super().__init__(PIXELS, LABELS)
        self.errors = errors

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        later = len(self.read) >= len(self) and index in self.errors
        if later and (error := self.errors[index]) is not None:
            raise error
        image, label = super().__getitem__(index)
        return (image[:, :5] if later else image), label


@pytest.mark.parametrize("threads", [1, 2])
def test_bad_images_of_a_sequence_are_skipped(threads: int) -> None:
    errors = {3: OSError("image file is truncated"), 11: ValueError("no image"), 20: None}
    data = sequence(DamagedLater(errors), [GOOD])
    with ExecutionContext(
        [logistic_regression(number_of_outputs=2), None],
        data=data,
        model=ModelConf(batch_size=4),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(devices="cpu", learners_per_device=1, on_bad_record="skip", loader_threads=threads),
    ) as context:
        context.train(2)
        found = {example.index: str(example) for example in context.bad_examples()}
    assert found == {
        3: "train, example 3: OSError: image file is truncated",
        11: "train, example 11: ValueError: no image",
        20: "train, example 20: expected shape (1, 6, 6) and type uint8, as before, in the image of example 20. "
        "Received: shape (1, 5, 6), uint8",
    }


def test_a_bad_image_of_a_sequence_is_an_error() -> None:
    with pytest.raises(BadExample, match=r"^train, example 3: OSError: no file") as raised:
        train(sequence(DamagedLater({3: OSError("no file")}), [GOOD]))
    assert isinstance(raised.value.__cause__, OSError)


def test_other_labels() -> None:
    examples = sequence([GOOD, GOOD]).train
    changed = examples.with_labels(np.array([5, 6]))
    assert (changed.labels.tolist(), examples.labels.tolist()) == ([5, 6], [GOOD[1]] * 2)
