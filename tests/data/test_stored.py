"""Data sets in batch-aligned files, whose images are read when they are needed, train as arrays do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossbow import Dataset
from crossbow.data import batch_files
from crossbow.data.encoding import Encoding, encode
from crossbow.data.examples import BadExample, Selection
from crossbow.data.stored import check_not_swapped
from crossbow.types import DataError
from tests.data.small_sets import FLOATS, LABELS, assert_same, files


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 5, 16])
def test_batch_files_train_as_arrays_do(tmp_path: Path, batch_size: int) -> None:
    data = batch_files(*files(tmp_path, batch_size))
    assert (len(data.train), data.number_of_classes, data.image_shape, data.scale) == (37, 2, (1, 6, 6), 1.0)
    assert_same(data, Dataset((FLOATS, LABELS), (FLOATS[:9], LABELS[:9])))


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


def test_images_that_look_channels_last(tmp_path: Path) -> None:
    images = np.arange(150, dtype=np.float32).reshape(2, 3, 5, 5)
    encode(Dataset((images, np.array([0, 1]))), Encoding("images"), tmp_path, 2)
    path = tmp_path / "images-train.metadata"
    path.write_text(path.read_text().replace("[3, 5, 5]", "[5, 5, 3]"))
    with pytest.raises(DataError, match=r"\[C, H, W\], or channels_last=True for a network that takes"):
        batch_files(path)
    assert batch_files(path, channels_last=True).image_shape == (5, 5, 3)


def test_the_files_that_store_examples(tmp_path: Path) -> None:
    data = batch_files(files(tmp_path)[0])
    assert len(list(tmp_path.glob("small-train.examples.*"))) == 4  # of two batches of 5 examples, a page each
    np.testing.assert_array_equal(data.train.groups, np.arange(37) // 10)


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


def test_integers_that_float32_would_round_are_bad_examples(tmp_path: Path) -> None:
    encode(Dataset((np.zeros((3, 2)), np.ones(3, np.float32))), Encoding("ratings"), tmp_path, 3)
    path = tmp_path / "ratings-train.metadata"
    path.write_text(path.read_text().replace("example type : float", "example type : int"))
    numbers = np.array([[2**24, -(2**31)], [8, 2**24 + 1], [9, 3]], "<i4")
    (tmp_path / "ratings-train.examples.1").write_bytes(numbers.tobytes().ljust(4096, b"\0"))
    examples = batch_files(path).train
    images = np.empty((2, 2), np.float32)
    examples.write_images(Selection.of(np.array([2, 0])), images)
    assert images.tolist() == [[9, 3], [2**24, -(2**31)]]
    with pytest.raises(BadExample) as caught:
        examples.write_images(Selection.of(np.array([2, 1])), images)
    assert caught.value.index == 1
    assert str(caught.value) == (
        f"{path}: example 1: expected integers that float32 holds exactly (as all up to 2**24). Received: 16777217"
    )
    assert images[0].tolist() == [9, 3]


def test_wrong_labels_in_batch_files(tmp_path: Path) -> None:
    train_path, check_path = files(tmp_path)
    with pytest.raises(DataError, match=r"y_train: expected 0 ≤ label < 1\. Received: 1"):
        batch_files(train_path, check_path, number_of_classes=1)
    with pytest.raises(DataError, match=r"nowhere: expected a metadata file"):
        batch_files(train_path, tmp_path / "nowhere")
    Path(f"{train_path.parent}/small-train.labels.1").write_bytes(b"")
    with pytest.raises(DataError, match=r"small-train\.labels\.1: expected a whole number of batches"):
        batch_files(train_path, check_path)


def test_swapped_metadata_are_refused_by_what_they_state(tmp_path: Path) -> None:
    train_path, check_path = files(tmp_path)
    train, check = train_path.read_bytes(), check_path.read_bytes()
    train_path.write_bytes(check)
    check_path.write_bytes(train)
    with pytest.raises(DataError, match=r"^train: .*small-test\.examples' and .*small-train\.examples', as if the two"):
        batch_files(train_path, check_path)


def test_swapped_files_are_refused_by_their_names(tmp_path: Path) -> None:
    train_path, check_path = files(tmp_path)
    with pytest.raises(DataError) as caught:
        batch_files(check_path, str(train_path))
    assert str(caught.value) == (
        f"train: expected the file for training, and check: the one for checks. Received: '{check_path}' and "
        f"'{train_path}', as if the two were swapped"
    )
    assert len(batch_files(check_path).train) == 9
    assert len(batch_files(check_path, check_path).train) == 9
    for first in ("a-check.metadata", "a-validation.records.*", "a-validation.records"):
        for second in ("b-train.metadata", Path("c/b-train.records.1")):
            with pytest.raises(DataError, match=r"as if the two were swapped$"):
                check_not_swapped(first, second)
            check_not_swapped(second, first)
    for train, check in (("latest.metadata", "a-train.metadata"), ("a-test.metadata.old", "a-train.metadata")):
        check_not_swapped(train, check)
    check_not_swapped(["a-test.metadata"], "a-train.metadata")
