"""Examples of any kind, and parts of them, train and test as arrays in memory do."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.data import batch_files, sequence
from crossbow.data.examples import ArrayExamples, BadExample, Examples, Selection, looks_channels_last
from crossbow.types import DataError
from tests.data.small_sets import FLOATS, GOOD, LABELS, Pairs, assert_same, files


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


@pytest.mark.parametrize(
    ("shape", "pixels", "numbers"),
    [
        ((5, 5, 3), True, True),
        ((5, 5, 1), True, True),
        ((4, 4, 3), False, False),
        ((5, 6, 3), True, False),
        ((6, 5, 4), True, False),
        ((4, 6, 3), False, False),
        ((6, 4, 3), False, False),
        ((5, 6, 1), False, False),
        ((5, 5, 2), False, False),
        ((5, 5, 4), True, False),
        ((3, 5, 5), False, False),
        ((5, 5), False, False),
        ((5, 5, 3, 3), False, False),
    ],
)
def test_what_looks_like_channels_last(shape: tuple[int, ...], pixels: bool, numbers: bool) -> None:
    """Pixels of 8 bits, or other numbers."""
    assert [looks_channels_last(shape, np.dtype(dtype)) for dtype in (np.uint8, np.float32)] == [pixels, numbers]


def test_single_examples_and_slices(tmp_path: Path) -> None:
    for data in (Dataset((FLOATS, LABELS)), batch_files(files(tmp_path)[0]), sequence(Pairs(FLOATS, LABELS))):
        for index in (0, len(LABELS) - 1, -1, np.int64(3)):
            image, label = data.train[index]
            np.testing.assert_array_equal(image, FLOATS[index])
            assert label == LABELS[index]
        image, label = data.train[0]
        image[...] = 9
        np.testing.assert_array_equal(data.train[0][0], FLOATS[0])
        np.testing.assert_array_equal([image for image, _ in data.train[2:8:3]], FLOATS[2:8:3])
        assert [int(label) for _, label in data.train] == list(LABELS)
        for index in (len(LABELS), -len(LABELS) - 1):
            with pytest.raises(IndexError, match=f"expected an index from -.* to .*Received: {index}"):
                data.train[index]


def test_a_selection_of_the_first_epoch() -> None:
    selection = Selection.of(np.array([3, 1]))
    assert (selection.epochs.tolist(), selection.seed) == ([0, 0], 0)


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
        (Computed(3, ()), r"x_train: expected examples \(C, H, W\), .*Received: \(\), float32"),
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
    part = Dataset(Damaged(30)).shard(stride=(1, 3)).shard(fraction=(0.2, 1)).train  # examples 7, 10, 13, 16, 19, 22, …
    images = np.full((5, 1, 6, 6), -1, np.float32)
    with pytest.raises(BadExample, match=r"^file 19: expected an image\. Received: none$") as caught:
        part.write_images(Selection.of(np.array([1, 0, 5, 4, 2])), images)
    assert (caught.value.index, caught.value.source) == (4, "file 19")
    assert images[:, 0, 0, 0].tolist() == [10, 7, 22, -1, -1]  # the images before it are written
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.index) == (str(caught.value), 4)


def test_the_files_that_store_examples_of_a_part(tmp_path: Path) -> None:
    data = batch_files(files(tmp_path)[0])
    np.testing.assert_array_equal(data.shard(stride=(2, 5)).train.groups, np.arange(37)[2::5] // 10)
    assert sequence([GOOD]).train.groups is None
    assert sequence([GOOD, GOOD]).shard(stride=(0, 2)).train.groups is None


def test_a_part_with_other_labels() -> None:
    part = sequence([GOOD] * 6).shard(stride=(1, 3)).train
    changed = part.with_labels(np.array([8, 9]))
    assert (changed.labels.tolist(), part.labels.tolist()) == ([8, 9], [GOOD[1]] * 2)
    images, labels = np.empty((1, *part.image_shape), part.image_dtype), np.empty(1, int)
    changed.write(Selection.of(np.array([1])), images, labels)
    np.testing.assert_array_equal(images[0], GOOD[0])
    assert labels.tolist() == [9]


def test_a_label_for_each_pixel() -> None:
    maps = np.arange(24).reshape(3, 2, 4)
    examples = ArrayExamples(np.zeros((3, 1, 2, 4), np.float32), maps)
    images, labels = np.empty((2, 1, 2, 4), np.float32), np.empty((2, 2, 4), int)
    examples.write(Selection.of(np.array([2, 0])), images, labels)
    np.testing.assert_array_equal(labels, maps[[2, 0]])
