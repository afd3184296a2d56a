"""Data sets whose images are read when they are needed train and test as arrays in memory do."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.data import BatchFiles, batch_files, sequence
from crossbow.data.encoding import Encoding, encode
from crossbow.data.examples import BadExample, Examples, Selection
from crossbow.types import DataError
from models.logistic_regression import logistic_regression

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (37, 1, 6, 6)).astype(np.uint8)
LABELS = (PIXELS.mean(axis=(1, 2, 3)) > 127).astype(np.int64)
FLOATS = PIXELS.astype(np.float32) / 256


class Pairs:
    """A sequence that counts what is read, and in which threads."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels
        self.read: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read.append(index)
        self.threads.add(threading.current_thread().name)
        return self.images[index], self.labels[index]


def files(directory: Path, batch_size: int = 5) -> tuple[Path, Path]:
    data = Dataset((PIXELS, LABELS), (PIXELS[:9], LABELS[:9]))
    train, check = encode(data, Encoding("small"), directory, batch_size, partition_size=8192)
    return train, check


def train(data: Dataset) -> tuple[dict[str, bytes], Any, np.ndarray]:
    """Weights, test result and predictions."""
    with ExecutionContext(
        [logistic_regression(number_of_outputs=2), None],
        data=data,
        model=ModelConf(batch_size=4),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(devices="cpu", learners_per_device=2, threads_per_learner=1),
    ) as context:
        context.train(3)
        weights = {name: values.tobytes() for name, values in context.variables.items()}
        return weights, context.test(), context.predict(FLOATS if data.scale == 1 else PIXELS)


def assert_same(first: Dataset, second: Dataset) -> None:
    (weights, result, prediction), (others, other, another) = train(first), train(second)
    assert weights == others
    assert (result.loss, result.accuracy, result.examples) == (other.loss, other.accuracy, other.examples)
    np.testing.assert_array_equal(prediction, another)


def test_a_sequence_trains_as_arrays_do() -> None:
    pairs, check = Pairs(PIXELS, LABELS), list(zip(PIXELS[:9], LABELS[:9].tolist(), strict=True))
    data = sequence(pairs, check)
    assert pairs.read == list(range(37))
    assert (data.number_of_classes, data.image_shape, data.scale) == (2, (1, 6, 6), 1 / 255)
    assert_same(data, Dataset((PIXELS, LABELS), (PIXELS[:9], LABELS[:9])))
    assert len(pairs.read) >= 37 * 4
    assert any(name.startswith("crossbow") for name in pairs.threads)


@pytest.mark.parametrize("batch_size", [1, 5, 16])
def test_batch_files_train_as_arrays_do(tmp_path: Path, batch_size: int) -> None:
    data = batch_files(*files(tmp_path, batch_size))
    assert (len(data.train), data.number_of_classes, data.image_shape, data.scale) == (37, 2, (1, 6, 6), 1.0)
    assert_same(data, Dataset((FLOATS, LABELS), (FLOATS[:9], LABELS[:9])))


@pytest.mark.parametrize("part", [{"stride": (1, 3)}, {"fraction": (0.2, 0.7)}, {"offset": (1, 2)}], ids=str)
def test_parts_are_read_when_they_are_needed(tmp_path: Path, part: dict[str, Any]) -> None:
    expected = Dataset((FLOATS, LABELS)).shard(**part).train
    pairs = Pairs(FLOATS, LABELS)
    for data in (batch_files(files(tmp_path)[0]), sequence(pairs)):
        pairs.read.clear()
        found = data.shard(**part).train
        assert pairs.read == []
        assert found.image_shape == (1, 6, 6)
        np.testing.assert_array_equal(found.labels, expected.labels)
        images, labels = np.empty((3, 1, 6, 6), np.float32), np.empty(3, np.int32)
        indices = np.array([0, len(found) - 1, 2])
        found.write(Selection.of(indices), images, labels)
        np.testing.assert_array_equal(images, expected.images[indices])  # type: ignore[attr-defined]
        np.testing.assert_array_equal(labels, expected.labels[indices])
    assert_same_after_sharding(tmp_path, part)


def assert_same_after_sharding(directory: Path, part: dict[str, Any]) -> None:
    data = Dataset((FLOATS, LABELS), (FLOATS[:9], LABELS[:9])).shard(**part)
    assert_same(batch_files(*files(directory)).shard(**part), data)


def test_stored_data_sets_can_be_encoded(tmp_path: Path) -> None:
    pairs = Pairs(PIXELS, LABELS)
    (path,) = encode(sequence(pairs), Encoding("again", mean=True), tmp_path / "again", 7)
    first, second = BatchFiles(files(tmp_path)[0]), BatchFiles(path)
    for n in (0, 17, 36):
        np.testing.assert_array_equal(first[n][0], second[n][0])
    mean = np.frombuffer((tmp_path / "again" / "again-train.mean").read_bytes(), "<f4")
    np.testing.assert_allclose(mean.reshape(1, 6, 6), PIXELS.mean(axis=0), rtol=1e-6)


# Sequences


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


GOOD = (np.zeros((1, 6, 6), np.uint8), 0)


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
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_sequence_of_examples(items: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        sequence(items)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


# Batch files


def test_shapes_and_labels_of_batch_files(tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    encode(Dataset((rows, np.array([0.5, 1.5, 2.5, 3.5], np.float32))), Encoding("targets"), tmp_path, 3)
    data = batch_files(tmp_path / "targets-train.metadata")
    assert (data.image_shape, data.label_shape, data.number_of_classes, data.check) == ((2,), (), None, None)
    assert data.train.labels.tolist() == [0.5, 1.5, 2.5, 3.5]
    text = (tmp_path / "targets-train.metadata").read_text()
    for shape, expected in (("[2, 1]", (1, 2, 1)), ("[1, 1, 2]", (1, 1, 2))):
        (tmp_path / "targets-train.metadata").write_text(text.replace("[2]", shape))
        assert batch_files(tmp_path / "targets-train.metadata").image_shape == expected
    (tmp_path / "targets-train.metadata").write_text(text.replace("[2]", "[1, 1, 2, 1]"))
    with pytest.raises(DataError, match=r"expected examples of shape \[C, H, W\], \[H, W\] or \[features\]"):
        batch_files(tmp_path / "targets-train.metadata")


def test_ratings_are_int32(tmp_path: Path) -> None:
    """As the original's ratings: examples of two int32, float labels."""
    encode(Dataset((np.zeros((3, 2)), np.ones(3, np.float32))), Encoding("ratings"), tmp_path, 3)
    path = tmp_path / "ratings-train.metadata"
    path.write_text(path.read_text().replace("example type : float", "example type : int"))
    (tmp_path / "ratings-train.examples.1").write_bytes(
        np.array([7, 1, 8, 2, 9, 3], "<i4").tobytes().ljust(4096, b"\0")
    )
    data = batch_files(path)
    images = np.empty((3, 2), np.float32)
    data.train.write_images(Selection.of(np.arange(3)), images)
    assert images.tolist() == [[7, 1], [8, 2], [9, 3]]


def test_wrong_labels_in_batch_files(tmp_path: Path) -> None:
    train_path, check_path = files(tmp_path)
    with pytest.raises(DataError, match=r"y_train: expected 0 ≤ label < 1\. Received: 1"):
        batch_files(train_path, check_path, number_of_classes=1)
    with pytest.raises(DataError, match=r"nowhere: expected a metadata file"):
        batch_files(train_path, tmp_path / "nowhere")
    Path(f"{train_path.parent}/small-train.labels.1").write_bytes(b"")
    with pytest.raises(DataError, match=r"small-train\.labels\.1: expected a whole number of batches"):
        batch_files(train_path, check_path)


# Examples of the user's own


class Computed(Examples):
    """Images that are computed from their index."""

    def __init__(self, count: int, shape: tuple[int, ...] = (1, 6, 6), dtype: type = np.float32) -> None:
        self.labels = np.arange(count) % 2
        self.shape, self.dtype = shape, np.dtype(dtype)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def image_dtype(self) -> np.dtype[Any]:
        return self.dtype

    def write_images(self, selection: Selection, images: np.ndarray) -> None:
        images[:] = (selection.indices % 7 / 7).reshape(-1, *[1] * len(self.shape))

    def with_labels(self, labels: np.ndarray) -> Computed:
        other = copy.copy(self)
        other.labels = labels
        return other


def test_computed_images_train_as_arrays_do() -> None:
    images = np.empty((37, 1, 6, 6), np.float32)
    Computed(37).write_images(Selection.of(np.arange(37)), images)
    arrays = Dataset((images, np.arange(37) % 2), (images[:9], np.arange(9) % 2))
    assert_same(Dataset(Computed(37), Computed(9)), arrays)
    assert_same(Dataset(Computed(37), Computed(9)).shard(offset=(1, 3)), arrays.shard(offset=(1, 3)))


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (Computed(3, (6, 6)), r"x_train: expected images \(C, H, W\) or \(features,\), .*Received: \(6, 6\), float32"),
        (Computed(3, dtype=np.int64), r"x_train: expected .*uint8, float32 or float64\. Received: \(1, 6, 6\), int64"),
        (Computed(0), r"y_train: expected at least one example"),
    ],
    ids=["shape", "type", "none"],
)
def test_examples_that_no_network_takes(examples: Computed, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset(examples)


# Bad examples and files


class Damaged(Computed):
    """Every fifth image is bad."""

    def write_images(self, selection: Selection, images: np.ndarray) -> None:
        for position, index in enumerate(selection.indices.tolist()):
            if index % 5 == 4:
                raise BadExample(index, f"file {index}", "expected an image. Received: none")
            images[position] = index


def test_a_bad_example_of_a_part_has_the_index_in_the_part() -> None:
    part = Dataset(Damaged(30)).shard(stride=(1, 3)).shard(fraction=(0.2, 1)).train  # examples 7, 10, 13, 16, 19, …
    images = np.full((4, 1, 6, 6), -1, np.float32)
    with pytest.raises(BadExample, match=r"^file 19: expected an image\. Received: none$") as caught:
        part.write_images(Selection.of(np.array([1, 0, 4, 2])), images)
    assert (caught.value.index, caught.value.source) == (4, "file 19")
    assert images[:, 0, 0, 0].tolist() == [10, 7, -1, -1]  # the images before it are written
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.index) == (str(caught.value), 4)


def test_the_files_that_store_examples(tmp_path: Path) -> None:
    data = batch_files(files(tmp_path)[0])
    paths = sorted(tmp_path.glob("small-train.examples.*"), key=lambda path: int(path.suffix[1:]))
    assert len(paths) == 4  # of two batches of 5 examples, a page each; the last batch is filled
    expected = np.arange(37) // 10
    np.testing.assert_array_equal(data.train.groups, expected)
    np.testing.assert_array_equal(data.shard(stride=(2, 5)).train.groups, expected[2::5])
    assert sequence([GOOD]).train.groups is None
    assert sequence([GOOD, GOOD]).shard(stride=(0, 2)).train.groups is None
