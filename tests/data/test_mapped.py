"""Memory maps as examples: they are read when they are needed, and have the images of arrays."""

from __future__ import annotations

import doctest
import gc
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import DataError, Dataset
from crossbow.data import fingerprint as module
from crossbow.data import mapped
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.data.fingerprint import fingerprint
from crossbow.data.mapped import MappedExamples, memory_map_of
from tests.support import blobs, context

EXAMPLES = 3000


def saved(directory: Path, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    directory.mkdir(exist_ok=True)
    np.save(directory / "images.npy", array)
    found: np.ndarray[Any, Any] = np.load(directory / "images.npy", mmap_mode="r")
    return found


def resident() -> int:
    """Resident memory of this process in bytes, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Rss"))


def test_doctests() -> None:
    assert doctest.testmod(mapped).failed == 0


def test_what_is_a_memory_map(tmp_path: Path) -> None:
    images = saved(tmp_path, np.zeros((4, 2), np.float32))
    for view in (images, images[1:], np.asarray(images), images.reshape(2, 4), images.T):
        assert memory_map_of(view) is not None
    for array in (images + 1, np.array(images), np.ascontiguousarray(images.T), np.zeros(4)):
        assert memory_map_of(array) is None


def test_memory_without_a_file_is_an_array() -> None:
    """Anonymous memory, which processes share."""
    with mmap.mmap(-1, 4096) as memory:
        images = np.frombuffer(memory, np.float32).reshape(64, 16)
        data = Dataset((images, np.zeros(64, int)))
        assert type(data.train) is ArrayExamples
        assert not data.train[63][0].any()
        del images, data
        gc.collect()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is not known here")
@pytest.mark.parametrize("dtype", ["u1", "f2", "<f4", ">f4", "i2", "i8", "f8"])
@pytest.mark.parametrize("layout", ["contiguous", "unaligned", "transposed"])
def test_it_is_never_read_whole(dtype: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the data set is created or divided, nor for a fingerprint or a batch. The file is sparse."""
    kind = np.dtype(dtype)
    monkeypatch.setattr(module, "LARGEST", 50 * 4096 * kind.itemsize)  # otherwise, all of so small a file
    shape = (4096, EXAMPLES) if layout == "transposed" else (EXAMPLES, 4096)
    offset = 13 if layout == "unaligned" else 0
    images = np.memmap(tmp_path / "images", kind, "w+", offset, shape)
    if layout == "transposed":
        images = images.T
    labels = np.arange(EXAMPLES) % 10
    before = resident()
    data = Dataset((images, labels), (images, labels))
    parts = [data, data.shard(stride=(1, 2)), data.shard(offset=(1, 2)), data.shard(fraction=(0, 0.5)), data.split(0.2)]
    if layout != "transposed":  # each of its images is in all pages
        for part in parts:
            part.train[3]
        fingerprint(data)
    assert resident() - before < images.nbytes / 2
    assert [len(part.train) for part in parts] == [EXAMPLES, EXAMPLES // 2, EXAMPLES, EXAMPLES // 2, EXAMPLES * 4 // 5]


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
    assert isinstance(found, MappedExamples)
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


FINITE = "finite numbers that float32 can hold"
EXACT = r"integers that float32 holds exactly (as all up to 2**24)"


@pytest.mark.parametrize(
    ("dtype", "bad", "expected"),
    [
        ("f4", np.nan, FINITE),
        ("f4", np.inf, FINITE),
        (">f2", -np.inf, FINITE),
        ("f8", np.nan, FINITE),
        ("f8", 1e39, FINITE),
        ("f8", -1e39, FINITE),
        ("i4", 2**24 + 1, EXACT),
        ("u4", 2**32 - 1, EXACT),
        ("i8", -(2**24) - 1, EXACT),
    ],
)
def test_a_number_that_cannot_be_used_counts_as_a_bad_example(
    dtype: str, bad: float, expected: str, tmp_path: Path
) -> None:
    array = np.zeros((6, 3), dtype)
    array[4, 1], array[3] = bad, 2**15
    data = Dataset((saved(tmp_path, array), np.zeros(6, int)))
    assert (data.train[3][0] == 2**15).all()
    text = f"{tmp_path / 'images.npy'}: example 4: expected {expected}. Received: {bad}"
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


def test_a_fingerprint_has_its_images_also_of_parts(tmp_path: Path) -> None:
    array = np.arange(48, dtype=np.float32).reshape(12, 4)
    data = Dataset((saved(tmp_path, array), np.zeros(12, int)))
    other = Dataset((saved(tmp_path / "other", array + 1), np.zeros(12, int)))
    assert fingerprint(data) == fingerprint(Dataset((array, np.zeros(12, int))))
    assert fingerprint(data) != fingerprint(other)
    assert fingerprint(data.split(0.5)) != fingerprint(other.split(0.5))


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path) -> None:
    """The system would kill the process."""
    data = Dataset((saved(tmp_path, np.zeros((400, 100), np.float32)), np.zeros(400, int)))
    os.truncate(tmp_path / "images.npy", 8192)
    with pytest.raises(
        DataError, match=r"images\.npy: expected a file that does not change while it is used, of at least"
    ):
        data.train[399]


def test_shapes_are_checked_as_of_an_array(tmp_path: Path) -> None:
    images = saved(tmp_path, np.zeros((6, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"^x_train: expected \(N, C, H, W\); these look like channels-last images"):
        Dataset((images, np.zeros(6, int)))
