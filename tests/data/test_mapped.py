from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import DataError, Dataset
from crossbow.data import mapped
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.data.mapped import MappedExamples, is_memory_map
from tests.support import blobs, context

PAGES = 3000
SHAPE = (PAGES, 4096)


def saved(directory: Path, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    directory.mkdir(exist_ok=True)
    np.save(directory / "images.npy", array)
    found: np.ndarray[Any, Any] = np.load(directory / "images.npy", mmap_mode="r")
    return found


def resident() -> int:
    """Resident memory of this process in bytes, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile")))


def test_doctests() -> None:
    assert doctest.testmod(mapped).failed == 0


def test_what_is_a_memory_map(tmp_path: Path) -> None:
    images = saved(tmp_path, np.zeros((4, 2), np.float32))
    for view in (images, images[1:], np.asarray(images), images.reshape(2, 4), images.T):
        assert is_memory_map(view)
    for array in (images + 1, np.array(images), np.ascontiguousarray(images.T), np.zeros(4)):
        assert not is_memory_map(array)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is not known here")
@pytest.mark.parametrize("dtype", ["u1", "f2", "<f4", ">f4", "i2", "f8"])
def test_it_is_never_read_whole(dtype: str, tmp_path: Path) -> None:
    """Neither when the data set is created, nor by shards and splits. The file is sparse."""
    images = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.dtype(dtype), SHAPE)
    labels = np.arange(PAGES) % 10
    before = resident()
    data = Dataset((images, labels), (images, labels))
    parts = [data, data.shard(stride=(1, 2)), data.shard(offset=(1, 2)), data.shard(fraction=(0, 0.5)), data.split(0.2)]
    for part in parts:
        part.train[3]
    assert resident() - before < images.nbytes / 4
    assert [len(part.train) for part in parts] == [PAGES, PAGES // 2, PAGES, PAGES // 2, PAGES * 4 // 5]


@pytest.mark.parametrize("dtype", ["u1", "f2", "<f4", ">f4", "i2", "u2", "?", "f8", "i4", "i8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_it_has_the_images_of_the_array(dtype: str, transposed: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    array = generator.integers(0, 100, (12, 2, 3, 5)).astype(dtype)
    if array.dtype.kind in "iub" and array.dtype != np.uint8:
        array = array.reshape(12, 30)  # images are uint8 or floating point
    images = saved(tmp_path, array)
    if transposed:
        array, images = array.swapaxes(0, 1), images.swapaxes(0, 1)
    labels = np.arange(len(array))
    expected, found = (Dataset((each, labels)).train for each in (array, images))
    assert isinstance(expected, ArrayExamples)
    assert isinstance(found, MappedExamples) == (dtype not in ("i4", "i8"))
    assert (found.image_dtype, found.image_shape) == (expected.image_dtype, expected.image_shape)
    for indices in (np.arange(len(labels)), np.array([1, 0, 1])):
        batches = []
        for examples in (expected, found):
            batch = np.empty((len(indices), *examples.image_shape), examples.image_dtype)
            numbers = np.empty(len(indices), np.int32)
            examples.write(Selection.of(indices), batch, numbers)
            batches.append((batch, numbers))
        np.testing.assert_array_equal(batches[0][0], batches[1][0])
        np.testing.assert_array_equal(batches[0][1], batches[1][1])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_makes_a_bad_example(dtype: str, bad: float, tmp_path: Path) -> None:
    array = np.zeros((6, 3), dtype)
    array[4, 1] = bad
    data = Dataset((saved(tmp_path, array), np.zeros(6, int)))
    assert not data.train[3][0].any()
    text = f"{tmp_path / 'images.npy'}: example 4: expected finite numbers. Received: {bad}"
    with pytest.raises(BadExample, match=f"^{re.escape(text)}$") as raised:
        data.shard(stride=(0, 2)).train[2]
    assert raised.value.index == 2


def test_training_on_it_has_the_results_of_the_array(tmp_path: Path) -> None:
    data = blobs(40)
    images, labels = data.train.images, data.train.labels  # type: ignore[attr-defined]
    weights = []
    for given in (images, saved(tmp_path, images), saved(tmp_path / "columns", np.asfortranarray(images))):
        with context(data=Dataset((given, labels), (given, labels))) as running:
            running.train(2)
            weights.append((running.variables, running.test()))
    for variables, tested in weights[1:]:
        assert tested == weights[0][1]
        for name, value in variables.items():
            np.testing.assert_array_equal(value, weights[0][0][name])


def test_shapes_are_checked_as_of_an_array(tmp_path: Path) -> None:
    images = saved(tmp_path, np.zeros((6, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"^x_train: expected \(N, C, H, W\); these look like channels-last images"):
        Dataset((images, np.zeros(6, int)))
