"""Data sets are encoded as by the original, and copied with another batch size."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.data import BatchFiles, Dataset, sequence
from crossbow.data.batch_files import write_batch_files
from crossbow.data.batch_metadata import read_metadata
from crossbow.data.encoding import ENCODINGS, Encoding, encode, rebatch
from crossbow.data.inspection import verify
from crossbow.types import DataError
from tests.data.hand_made_files import Source, label_batch, write_files
from tests.data.small_sets import LABELS, PIXELS, Pairs, files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_files(tmp_path)


@settings(max_examples=8)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 17), st.integers(1, 4))
def test_the_batch_size_can_be_changed_to_any_other(
    tmp_path_factory: pytest.TempPathFactory, count: int, first: int, second: int, pages: int
) -> None:
    folder = tmp_path_factory.mktemp("rebatch")
    one = write_batch_files(folder / "one", "train", Source(count), first, 4096 * pages)
    two = rebatch(one, folder / "two", second, 4096)
    back = rebatch(two, folder / "back", first, 4096 * pages)
    for other in (one, two, back):
        examples, labels = BatchFiles(other).slice(0, count)
        assert labels.ravel().tolist() == list(range(10, 10 + count))
        assert examples[:, 0, 0].tolist() == list(range(count))
        assert list(verify(other)) == []
    for name in os.listdir(one.parent):
        if not name.endswith("metadata"):
            assert (one.parent / name).read_bytes() == (back.parent / name).read_bytes()


def test_rebatching_into_the_same_directory_is_refused(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    for directory in (tmp_path, link):
        with pytest.raises(DataError, match="expected another directory"):
            rebatch(path, directory, 3)
    assert BatchFiles(path)[4][1] == 14


def test_a_directory_that_metadata_cannot_name_is_refused_before_anything_is_written(
    path: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    data = Dataset((np.ones((4, 2), np.float32), np.arange(4)), (np.ones((2, 2), np.float32), np.arange(2)))
    for name in ("a:b", "a\udcff"):
        for write in (
            lambda target: encode(data, Encoding("some", mean=True), target, 2),
            lambda target: rebatch(path, target, 3),
        ):
            with pytest.raises(DataError, match=r"^output: expected a path without colons"):
                write(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_mnist_is_encoded_as_by_the_original(tmp_path: Path) -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(49).reshape(16, 1, 28, 28)
    labels = np.arange(16) % 10
    data = Dataset((pixels, labels), (pixels[:3], labels[:3]))
    paths = encode(data, ENCODINGS["mnist"], tmp_path, batch_size=8)
    assert [path.name for path in paths] == ["mnist-train.metadata", "mnist-test.metadata"]
    expected = struct.pack(f"<{8 * 784}f", *(float(pixel) * 0.00390625 for pixel in pixels[:8].ravel()))
    written = (tmp_path / "mnist-train.examples.1").read_bytes()
    assert written[: len(expected)] == expected
    assert len(written) == 2 * 28672
    assert (tmp_path / "mnist-test.labels.1").read_bytes() == label_batch(0, 1, 2, 0, 1, 2, 0, 0)


@pytest.mark.parametrize(("name", "border"), [("cifar10", 4), ("cifar100", 0)])
def test_cifar_is_encoded_as_by_the_original(tmp_path: Path, name: str, border: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)
    data = Dataset((pixels, np.arange(5)), (pixels[:2], np.arange(2)))
    encode(data, ENCODINGS[name], tmp_path, batch_size=5)
    size = 32 + 2 * border
    image, mean = np.zeros((3, size, size), np.float32), np.zeros((3, size, size), np.float32)
    for c in range(3):
        for y in range(32):
            for x in range(32):
                value = np.float32(pixels[1, c, y, x])
                image[c, y + border, x + border] = value / np.float32(127.5) - np.float32(1)
                total = np.float32(sum(int(pixel) for pixel in pixels[:, c, y, x]))
                mean[c, y + border, x + border] = total / np.float32(5)
    files = BatchFiles(tmp_path / "cifar-train.metadata")
    assert files.metadata.example_shape == (3, size, size)
    assert files[1][0].tobytes() == image.tobytes()
    assert (tmp_path / "cifar-train.mean").read_bytes() == mean.tobytes()
    assert (tmp_path / "cifar-test.mean").stat().st_size == mean.nbytes


def test_cifar_100_does_not_replace_cifar_10(tmp_path: Path) -> None:
    """They have the same file names. Nothing is written, although only the test set is in the way."""
    pixels = np.zeros((4, 3, 32, 32), np.uint8)
    data = Dataset((pixels, np.arange(4)), (pixels[:2], np.arange(2)))
    encode(data, ENCODINGS["cifar10"], tmp_path, batch_size=2)
    for file in tmp_path.glob("cifar-train*"):
        file.unlink()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(
        DataError, match=r"cifar-test\.metadata: expected no data set, or one with examples \(3, 32, 32\)"
    ):
        encode(data, ENCODINGS["cifar100"], tmp_path, batch_size=2)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_targets_and_labels_of_pixels(tmp_path: Path) -> None:
    x = np.ones((4, 2), np.float64)
    encode(Dataset((x, np.arange(8, dtype=np.float32).reshape(4, 2))), Encoding("targets"), tmp_path, 3)
    meta = read_metadata(tmp_path / "targets-train.metadata")
    assert (meta.label_type, meta.label_shape, meta.example_type) == ("float", (2,), "float")
    assert BatchFiles(tmp_path / "targets-train.metadata")[3][1].tolist() == [6, 7]
    assert replace(meta, fill=None).number_of_examples == meta.elements == 6


def test_stored_data_sets_can_be_encoded(tmp_path: Path) -> None:
    pairs = Pairs(PIXELS, LABELS)
    (path,) = encode(sequence(pairs), Encoding("again", mean=True), tmp_path / "again", 7)
    first, second = BatchFiles(files(tmp_path)[0]), BatchFiles(path)
    for n in (0, 17, 36):
        np.testing.assert_array_equal(first[n][0], second[n][0])
    mean = np.frombuffer((tmp_path / "again" / "again-train.mean").read_bytes(), "<f4")
    np.testing.assert_allclose(mean.reshape(1, 6, 6), PIXELS.mean(axis=0), rtol=1e-6)
