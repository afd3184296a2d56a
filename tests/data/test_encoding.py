"""Data sets are encoded as by the original, and copied with another batch size."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.data import BatchFiles, Dataset, batch_files, batch_writer, sequence, write_batch_files
from crossbow.data.batch_metadata import read_metadata
from crossbow.data.class_names import CIFAR_10, CIFAR_100_FINE
from crossbow.data.encoding import ENCODINGS, EncodedExamples, Encoding, encode, rebatch
from crossbow.data.inspection import verify
from crossbow.types import DataError
from models.images import PADDED
from tests.data.hand_made_files import Source, label_batch, write_files, write_source
from tests.data.small_sets import LABELS, PIXELS, Pairs, files
from tests.support import context, perceptron, same_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_files(tmp_path)


@settings(max_examples=8)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 17), st.integers(1, 4))
def test_the_batch_size_can_be_changed_to_any_other(
    tmp_path_factory: pytest.TempPathFactory, count: int, first: int, second: int, pages: int
) -> None:
    folder = tmp_path_factory.mktemp("rebatch")
    one = write_source(folder / "one", "train", Source(count), first, 4096 * pages)
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


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar100_coarse"])
def test_cifar_is_encoded_as_by_the_original(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)
    data = Dataset((pixels, np.arange(5)), (pixels[:2], np.arange(2)))
    encode(data, ENCODINGS[name], tmp_path, batch_size=5)
    border, size = 4, 40
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
    again = rebatch(tmp_path / "cifar-train.metadata", tmp_path / "again", 2)
    assert BatchFiles(again)[1][0].tobytes() == image.tobytes()
    assert (tmp_path / "again" / "cifar-train.mean").read_bytes() == mean.tobytes()
    assert list(verify(again)) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cifar100_coarse"])
def test_scripts_crop_and_mirror_the_images_of_cifar(tmp_path: Path, name: str) -> None:
    train, check = encode(cifar(10), ENCODINGS[name], tmp_path, 2)
    assert batch_files(train, check).image_shape == PADDED


def test_cifar_100_without_a_border_can_be_used(tmp_path: Path) -> None:
    """It was encoded so before. It is not mixed with one that has a border."""
    train, check = encode(cifar(100), replace(ENCODINGS["cifar100"], border=0), tmp_path, 2)
    assert batch_files(train, check).image_shape == (3, 32, 32)
    with pytest.raises(
        DataError, match=r"cifar-train\.metadata: expected no data set, or one with examples \(3, 40, 40"
    ):
        encode(cifar(100), ENCODINGS["cifar100"], tmp_path, 2)
    assert batch_files(train, check).image_shape == (3, 32, 32)


def cifar(classes: int, value: int = 0) -> Dataset:
    """Four training and two check images, all pixels of one value."""
    pixels = np.full((4, 3, 32, 32), value, np.uint8)
    data = Dataset((pixels, np.arange(4)), (pixels[:2], np.arange(2)), number_of_classes=classes)
    data.class_names = CIFAR_10 if classes == 10 else CIFAR_100_FINE
    return data


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_cifar_100_does_not_replace_cifar_10(tmp_path: Path) -> None:
    """They have the same file names. Nothing is written, although only the test set is in the way."""
    encode(cifar(10), ENCODINGS["cifar10"], tmp_path, batch_size=2)
    for file in tmp_path.glob("cifar-train*"):
        file.unlink()
    before = contents(tmp_path)
    with pytest.raises(DataError) as caught:
        encode(cifar(100), ENCODINGS["cifar100"], tmp_path, batch_size=2)
    assert str(caught.value) == (
        f"{tmp_path}/cifar-test.metadata: expected no data set, or one with the same classes to replace. Received: one "
        "with 10 other classes, airplane, automobile, bird, …; write to another directory, or remove it"
    )
    assert contents(tmp_path) == before
    (tmp_path / "cifar-test.classes").write_bytes(b"\xff")
    encode(cifar(100), ENCODINGS["cifar100"], tmp_path, batch_size=2)


# Interruptions


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("where", ["the mean", "the second mean", "the test images", "the second metadata"])
def test_a_failure_leaves_no_mixture_of_an_older_and_a_new_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, failure: Any
) -> None:
    paths = encode(cifar(10, 1), ENCODINGS["cifar10"], tmp_path, 2)
    module, calls = batch_writer, 0

    def fail(self: Any, start: int, stop: int) -> Any:
        if len(self) == 2:
            raise failure
        return original(self, start, stop)

    def fail_the_second_time(path: Path, *given: Any) -> None:
        nonlocal calls
        calls += where == "the second metadata" or path.suffix == ".mean"
        if calls == (1 if where == "the mean" else 2):
            raise failure
        original(path, *given)

    kind, name = {
        "the mean": (module, "write_whole"),
        "the second mean": (module, "write_whole"),
        "the test images": (EncodedExamples, "slice"),
        "the second metadata": (module, "write_metadata"),
    }[where]
    original = getattr(kind, name)
    monkeypatch.setattr(kind, name, fail if name == "slice" else fail_the_second_time)
    with pytest.raises((KeyboardInterrupt, OSError, DataError)):
        encode(cifar(10, 2), ENCODINGS["cifar10"], tmp_path, 2)
    assert os.listdir(tmp_path) == []
    with pytest.raises(DataError, match="No such file"):
        batch_files(*paths)


def test_a_failure_before_anything_is_written_leaves_the_older_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an image cannot be read for the mean."""

    def fail(self: Any) -> Any:
        raise KeyboardInterrupt

    encode(cifar(10, 1), ENCODINGS["cifar10"], tmp_path, 2)
    before = contents(tmp_path)
    monkeypatch.setattr(EncodedExamples, "mean", fail)
    with pytest.raises(KeyboardInterrupt):
        encode(cifar(10, 2), ENCODINGS["cifar10"], tmp_path, 2)
    assert contents(tmp_path) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from crossbow.data.encoding import ENCODINGS, EncodedExamples, encode
from tests.data.test_encoding import cifar

def slice(self, start, stop):
    if len(self) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, start, stop)

original, EncodedExamples.slice = EncodedExamples.slice, slice
encode(cifar(10, 2), ENCODINGS["cifar10"], Path(sys.argv[1]), 2)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_a_killed_encoder_leaves_no_mixture(tmp_path: Path) -> None:
    paths = encode(cifar(10, 1), ENCODINGS["cifar10"], tmp_path, 2)
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == -signal.SIGKILL
    assert "cifar-train.examples.1" in os.listdir(tmp_path)
    for path in paths:
        with pytest.raises(DataError, match="No such file"):
            batch_files(path)
    encode(cifar(10, 2), ENCODINGS["cifar10"], tmp_path, 2)
    assert len(batch_files(*paths).train) == 4


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="the space is not checked on Windows")
def test_the_space_for_both_phases_is_checked_before_the_first_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = list(os.statvfs(tmp_path))
    train, check = (2 * -(-2 * 4 * 3 * 40 * 40 // 4096) * 4096 // parts + 2 * 4096 // parts for parts in (1, 2))
    for free, fits in ((train + check - 1, False), (train + check, True)):
        values[1], values[4] = 1, free
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
        if fits:
            encode(cifar(10), ENCODINGS["cifar10"], tmp_path, 2)
        else:
            with pytest.raises(DataError, match=r"of free space\. Received: "):
                encode(cifar(10), ENCODINGS["cifar10"], tmp_path, 2)
            assert os.listdir(tmp_path) == []


def test_no_older_check_examples_stay_beside_new_training_examples(tmp_path: Path) -> None:
    encode(cifar(10, 1), ENCODINGS["cifar10"], tmp_path, 2)
    data = cifar(10, 2)
    data.check = None
    encode(data, replace(ENCODINGS["cifar10"], mean=False), tmp_path, 4)
    names = ("classes", "examples.1", "labels.1", "metadata")
    assert sorted(os.listdir(tmp_path)) == [f"cifar-train.{name}" for name in names]


# Names of classes


def test_names_of_classes_are_stored_beside_the_metadata(tmp_path: Path) -> None:
    train, check = encode(cifar(10), Encoding("some"), tmp_path, 2)
    assert train.with_suffix(".classes").read_text() == "\n".join([*CIFAR_10, ""])
    assert batch_files(train, check, number_of_classes=10).class_names == CIFAR_10
    assert batch_files(check).class_names == CIFAR_10[:2]
    assert batch_files(train, number_of_classes=11).class_names is None
    again = rebatch(train, tmp_path / "again", 3)
    assert batch_files(again).class_names == CIFAR_10[:4]
    train.with_suffix(".classes").write_text("one\n\nthree\n")
    with pytest.raises(
        DataError, match=r"some-train\.classes: expected a text with the name of a class in each line\."
    ):
        batch_files(train)
    train.with_suffix(".classes").unlink()
    assert batch_files(train).class_names is None


def test_names_that_are_no_lines_are_not_stored(tmp_path: Path) -> None:
    data = cifar(10)
    data.class_names = ("a", "b\nc", *CIFAR_10[2:])
    train, _ = encode(data, Encoding("some"), tmp_path, 2)
    assert not train.with_suffix(".classes").exists()
    assert batch_files(train).class_names is None


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


def batches(data: Dataset) -> list[tuple[Any, ...]]:
    """Images, as they are batched, and labels of all examples."""
    scale = data.scale if data.scale == 1 else np.float32(data.scale)
    return [(np.float32(image) * scale, label) for each in (data.train, data.check) for image, label in each or ()]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (PIXELS, LABELS),
        (PIXELS.astype(np.float64) / 7, LABELS),
        (PIXELS.reshape(len(PIXELS), -1)[:, :5].astype(np.int64), LABELS.astype(np.float64) / 3),
        (PIXELS, np.random.default_rng(1).random((len(PIXELS), 2))),
    ],
    ids=["pixels", "numbers", "features", "targets"],
)
def test_files_of_one_s_own_data_have_the_same_batches(tmp_path: Path, images: Any, labels: Any) -> None:
    data = Dataset((images[5:], labels[5:]), (images[:5], labels[:5]))
    paths = write_batch_files(data, tmp_path / "new", 4, name="mine", partition_size=4096 * 3)
    assert [path.name for path in paths] == ["mine-train.metadata", "mine-test.metadata"]
    assert [list(verify(path)) for path in paths] == [[], []]
    found = batches(batch_files(*paths))
    assert len(found) == len(images)
    for (image, label), (other, expected) in zip(found, batches(data), strict=True):
        np.testing.assert_array_equal(image, other)
        np.testing.assert_array_equal(label, np.asarray(expected, label.dtype))


def test_files_of_one_s_own_data_train_to_the_same_weights(tmp_path: Path) -> None:
    data = Dataset((PIXELS, LABELS))
    trained = []
    for each in (data, batch_files(*write_batch_files(data, tmp_path, 5))):
        with context(perceptron(classes=int(LABELS.max()) + 1), data=each, batch_size=4) as running:
            running.train(2)
            trained.append(running.variables)
    assert same_weights(*trained)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": (PIXELS, LABELS)}, "data: expected a Dataset. Received: tuple"),
        ({"batch_size": 0}, "batch_size: expected an integer from 1 to 2,147,483,647. Received: 0"),
        ({"partition_size": 1.5}, "partition_size: expected an integer ≥ 1. Received: 1.5"),
        ({"name": "a/b"}, "name: expected the beginning of a file name, without a directory. Received: 'a/b'"),
        ({"name": ""}, "name: expected the beginning of a file name, without a directory. Received: ''"),
    ],
    ids=str,
)
def test_wrong_arguments_write_nothing(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        write_batch_files(
            **({"data": Dataset((PIXELS, LABELS)), "directory": tmp_path / "new", "batch_size": 4} | arguments)
        )
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())
