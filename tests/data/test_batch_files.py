"""Batch-aligned files: written and read byte by byte, at any batch size, and every kind of damage."""

from __future__ import annotations

import os
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

from crossbow.data import BatchFiles, Dataset
from crossbow.data.batch_files import plan, write_batch_files
from crossbow.data.batch_metadata import Metadata, read_metadata
from crossbow.data.encoding import ENCODINGS, EncodedExamples, Encoding, encode, rebatch
from crossbow.data.inspection import inspect, verify
from crossbow.types import DataError

TEXT = """\
# Metadata file
#
examples     : {0}/train.examples
labels       : {0}/train.labels
partitions   : 2
elements     : 6
batch size   : 2
example shape: [1, 2]
label shape  : [1]
example type : float
label type   : int
example pad  : 4080
label pad    : 4088
fill         : 1
# EOF
"""
"""Five examples, two a batch, two batches a file: the last batch is filled with the first example."""


def float_batch(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers).ljust(4096, b"\0")


def label_batch(*labels: int) -> bytes:
    return struct.pack(f"<{len(labels)}i", *labels).ljust(4096, b"\0")


FILES = {
    "train.examples.1": float_batch(0, 0.5, 1, 1.5) + float_batch(2, 2.5, 3, 3.5),
    "train.examples.2": float_batch(4, 4.5, 0, 0.5),
    "train.labels.1": label_batch(10, 11) + label_batch(12, 13),
    "train.labels.2": label_batch(14, 10),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The metadata of a small data set, made by hand."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train.metadata").write_text(TEXT.format(tmp_path))
    return tmp_path / "train.metadata"


def small(count: int = 5) -> Dataset:
    numbers = np.arange(2 * count, dtype=np.float32).reshape(count, 2) / 2
    return Dataset((numbers, np.arange(10, 10 + count)))


class Source(EncodedExamples):
    """The examples made by hand, of shape (1, 2)."""

    def __init__(self, count: int = 5) -> None:
        super().__init__(small(count).train, Encoding("train"))
        self.example_shape = (1, 2)

    def slice(self, start: int, stop: int) -> Any:
        examples, labels = super().slice(start, stop)
        return examples.reshape(-1, 1, 2), labels


def test_files_of_known_bytes_are_read(path: Path) -> None:
    files = BatchFiles(path)
    assert len(files) == 5
    for n in range(5):
        example, label = files[n]
        assert example.tolist() == [[n, n + 0.5]]
        assert label.tolist() == [10 + n]
    assert files[-1][1].tolist() == [14]
    examples, labels = files.empty(3)
    files.read(np.array([4, 0, 3]), examples, labels)
    assert examples.tolist() == [[[4, 4.5]], [[0, 0.5]], [[3, 3.5]]]
    assert labels.tolist() == [[14], [10], [13]]
    assert list(verify(path)) == []
    for index in (5, -6):
        with pytest.raises(IndexError, match="expected an example from 0 to 4"):
            files[index]
    for outside in (5, -1):
        with pytest.raises(IndexError, match="expected indices from 0 to 4"):
            files.read(np.array([0, outside, 4]), *files.empty(3))


def test_the_written_bytes_are_known(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "written"
    assert write_batch_files(target, "train", Source(), batch_size=2, partition_size=8192) == target / "train.metadata"
    assert sorted(os.listdir(target)) == sorted([*FILES, "train.metadata"])
    for name, content in FILES.items():
        assert (target / name).read_bytes() == content, name
    assert (target / "train.metadata").read_text() == TEXT.format(target)


def test_fewer_examples_than_a_batch_has_places(tmp_path: Path) -> None:
    """The original repeats the bytes that are there, of which those after the examples are zeros."""
    write_batch_files(tmp_path, "train", Source(3), batch_size=8)
    assert (tmp_path / "train.labels.1").read_bytes() == label_batch(10, 11, 12, 10, 11, 12, 0, 0)
    assert read_metadata(tmp_path / "train.metadata").fill == 5
    assert len(BatchFiles(tmp_path / "train.metadata")) == 3
    assert list(verify(tmp_path / "train.metadata")) == []


def test_whole_batches_have_no_fill(tmp_path: Path) -> None:
    write_batch_files(tmp_path, "train", Source(4), batch_size=2)
    assert "fill         : 0\n" in (tmp_path / "train.metadata").read_text()
    assert (tmp_path / "train.labels.1").read_bytes() == FILES["train.labels.1"]


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


def test_files_are_looked_for_beside_the_metadata_and_where_it_says(path: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "train.metadata").write_text(TEXT.format(tmp_path))
    assert BatchFiles(moved / "train.metadata")[4][1] == 14
    for name, content in FILES.items():
        (moved / name).write_bytes(content.replace(struct.pack("<i", 14), struct.pack("<i", 15)))
    assert BatchFiles(moved / "train.metadata")[4][1] == 15


def test_a_file_of_more_than_2_gib(tmp_path: Path) -> None:
    """Of zeros that take no space, but for the last example."""
    batch, count = 4096, 600_000
    text = (
        TEXT.format(tmp_path)
        .replace("partitions   : 2", "partitions   : 1")
        .replace("elements     : 6", f"elements     : {count}")
    )
    text = text.replace("batch size   : 2", "batch size   : 1").replace("fill         : 1", "fill         : 0")
    text = text.replace("example pad  : 4080", "example pad  : 4088").replace(
        "label pad    : 4088", "label pad    : 4092"
    )
    (tmp_path / "train.metadata").write_text(text)
    for kind, last in (("examples", struct.pack("<2f", 1.5, 2.5)), ("labels", struct.pack("<i", 42))):
        with (tmp_path / f"train.{kind}.1").open("wb") as file:
            file.truncate(batch * count)
            file.seek(batch * (count - 1))
            file.write(last)
    files = BatchFiles(tmp_path / "train.metadata")
    assert (tmp_path / "train.examples.1").stat().st_size > 2**31
    assert files[count - 1][0].tolist() == [[1.5, 2.5]]
    assert files[count - 1][1].tolist() == [42]
    assert files[0][1].tolist() == [0]


# Metadata


def test_metadata_of_the_original(tmp_path: Path) -> None:
    """Comments, empty lines, any case, no fill, no pads."""
    text = "# a comment\n\n EXAMPLES: /a/x.examples\nLabels :/a/x.labels\npartitions: 1\nelements:4\nBatch Size: 2\n"
    text += "example shape: [3,4, 5]\nlabel shape: [1]\nexample type: int\nlabel type: float"
    (tmp_path / "metadata").write_bytes(text.replace("\n", "\r\n").encode())
    metadata = read_metadata(tmp_path / "metadata")
    expected = Metadata("/a/x.examples", "/a/x.labels", 1, 4, 2, (3, 4, 5), (1,), "int", "float")
    assert metadata == expected
    assert metadata.number_of_examples == 4


BAD_METADATA = {
    "an unknown key": ("fill   ", "filling", ["line 14", "'filling'"]),
    "a key twice": ("label pad", "example pad", ["'example pad' once", "line 13"]),
    "a missing key": ("partitions   : 2\n", "", ["the keys", "none of partitions"]),
    "no colon": ("partitions   :", "partitions", ["line 5", "'partitions 2'"]),
    "two colons": ("partitions   : 2", "partitions : 2:3", ["line 5"]),
    "no value": ("partitions   : 2", "partitions :", ["line 5"]),
    "no partitions": ("partitions   : 2", "partitions : 0", ["partitions to be an integer from 1", "'0'"]),
    "too many partitions": ("partitions   : 2", "partitions : 7", ["partitions to be at most 6", "Received: 7"]),
    "no integer": ("elements     : 6", "elements : six", ["elements to be an integer from 1", "'six'"]),
    "a huge integer": ("elements     : 6", "elements : 2147483648", ["elements", "'2147483648'"]),
    "an endless integer": ("elements     : 6", "elements : " + "9" * 5000, ["elements to be an integer"]),
    "half a batch": ("elements     : 6", "elements : 5", ["elements to be a multiple of batch size, 2", "Received: 5"]),
    "a negative batch size": ("batch size   : 2", "batch size : -2", ["batch size to be an integer from 1", "'-2'"]),
    "another batch size": ("batch size   : 2", "batch size : 3", ["whole number of batches", "4,104 bytes"]),
    "a negative pad": ("label pad    : 4088", "label pad : -8", ["label pad to be an integer from 0", "'-8'"]),
    "another pad": ("label pad    : 4088", "label pad : 4080", ["train.labels.1", "a pad of 4,080", "8,192 bytes"]),
    "a batch as fill": ("fill         : 1", "fill : 2", ["fill to be less than batch size, 2", "Received: 2"]),
    "a shape without brackets": ("[1, 2]", "1, 2", ["example shape to be sizes", "'1, 2'"]),
    "an empty shape": ("[1, 2]", "[]", ["example shape"]),
    "a shape with a zero": ("[1, 2]", "[1, 0]", ["example shape"]),
    "another shape": ("[1, 2]", "[1, 3]", ["train.examples.1", "whole number of batches", "float (1, 3)"]),
    "an unknown type": (": float", ": double", ["example type to be int or float", "'double'"]),
    "more elements": ("elements     : 6", "elements : 8", ["expected 4 batches", "in 2 files", "Received: 3"]),
    "more partitions": ("partitions   : 2", "partitions : 3", ["the file", "train.examples.3"]),
    "fewer partitions": ("partitions   : 2", "partitions : 1", ["expected 3 batches", "Received: 2"]),
    "labels for examples": ("examples     : {0}/train.examples", "examples : {0}/train.labels", ["for both"]),
}


@pytest.mark.parametrize(("old", "new", "parts"), BAD_METADATA.values(), ids=BAD_METADATA)
def test_wrong_metadata_are_named(path: Path, tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    assert old in TEXT
    path.write_text(TEXT.replace(old, new).format(tmp_path))
    refused(path, *parts)


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        BatchFiles(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 6000
    for part in (str(path.parent), "expected", "Received: ", *parts):
        assert part in message, message


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"", "the keys"), (b"\xff\xfe", "UTF-8"), (bytes(100), "line 1"), (b"#" * (2 << 20), "at most 1.0 MB")],
)
def test_what_is_no_metadata_file(path: Path, content: bytes, part: str) -> None:
    path.write_bytes(content)
    refused(path, part)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "null\0"):
        with pytest.raises(DataError, match="expected a metadata file"):
            BatchFiles(path)


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_refused_at_every_length(path: Path, name: str) -> None:
    content = FILES[name]
    for length in [*range(0, len(content), 509), len(content) - 1]:
        (path.parent / name).write_bytes(content[:length])
        refused(path, name if length else "")
    (path.parent / name).unlink()
    refused(path, name)


def test_batches_that_do_not_belong_together(path: Path) -> None:
    (path.parent / "train.labels.2").write_bytes(FILES["train.labels.1"])
    refused(path, "as many batches of labels as of examples in partition 2, 1", "Received: 2")


def test_verify_finds_what_opening_does_not(path: Path) -> None:
    def spoil(name: str, offset: int, content: bytes) -> None:
        data = bytearray((path.parent / name).read_bytes())
        data[offset : offset + len(content)] = content
        (path.parent / name).write_bytes(data)

    spoil("train.examples.1", 4096 + 4000, b"\x07")
    spoil("train.examples.2", 4, struct.pack("<f", np.nan))
    spoil("train.labels.1", 4, struct.pack("<i", -3))
    spoil("train.labels.2", 4, struct.pack("<i", 11))
    found = list(verify(path))
    assert [problem.removeprefix(str(path.parent) + "/") for problem in found] == [
        "train.examples.1: expected zeros after batch 1. Received: 7 as byte 3984",
        "train.metadata: expected finite numbers in example 4. Received: nan",
        "train.metadata: expected integers ≥ 0 in label 1. Received: -3",
        "train.metadata: expected the last batch to be filled with the first labels. Received: others",
    ]


def test_inspect(path: Path) -> None:
    summary = inspect(path)
    assert summary["format"] == "metadata of batch-aligned files"
    assert (summary["batch size"], summary["elements"], summary["examples without fill"]) == (2, 6, 5)
    assert (summary["bytes of examples"], summary["bytes of labels"]) == (3 * 4096, 3 * 4096)


# Writing


def test_a_batch_larger_than_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least one batch, 8,192 bytes with batch size 1,000\. Received: 8,191"):
        write_batch_files(tmp_path, "train", Source(), batch_size=1000, partition_size=8191)
    assert os.listdir(tmp_path) == []
    assert plan(Source(), 1000, 8192).batches_per_file == 1


def test_more_examples_than_metadata_can_state() -> None:
    class Endless(Source):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(DataError, match=r"at most 2,147,483,647 examples"):
        plan(Endless(), 1)


@pytest.mark.parametrize("name", ["a:b", "a\nb", " a"])
def test_a_directory_that_metadata_cannot_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"a path without colons, line breaks or surrounding spaces"):
        write_batch_files(Path(name), "train", Source(), batch_size=2)
    assert os.listdir(name) == []


def test_older_files_are_replaced_all_of_them(path: Path, tmp_path: Path) -> None:
    (tmp_path / "train.examples.other").write_bytes(b"")
    (tmp_path / "test.examples.1").write_bytes(b"")
    write_batch_files(tmp_path, "train", Source(), batch_size=5)
    expected = ["test.examples.1", "train.examples.1", "train.examples.other", "train.labels.1", "train.metadata"]
    assert sorted(os.listdir(tmp_path)) == expected


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failure_leaves_nothing(path: Path, failure: Any) -> None:
    class Failing(Source):
        def slice(self, start: int, stop: int) -> Any:
            if start == 4:
                raise failure
            return super().slice(start, stop)

    with pytest.raises((KeyboardInterrupt, DataError), match=r"^$|train\.examples\.2|train\.labels\.2"):
        write_batch_files(path.parent, "train", Failing(), batch_size=2, partition_size=8192)
    assert os.listdir(path.parent) == []


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from tests.data.test_batch_files import Source, write_batch_files
directory, how = Path(sys.argv[1]), sys.argv[2]

class Stopped(Source):
    def slice(self, start, stop):
        if how == "killed" and start == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().slice(start, stop)

if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
write_batch_files(directory, "train", Stopped(), 2, 8192)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits are those of POSIX")
@pytest.mark.parametrize("how", ["killed", "full"])
def test_a_writer_that_is_killed_or_has_no_space_leaves_no_data_set(path: Path, tmp_path: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), how], capture_output=True, text=True)
    assert done.returncode != 0
    if how == "full":
        assert "train.examples.1: expected to write this file. Received: File too large" in done.stderr
        assert os.listdir(tmp_path) == []
    with pytest.raises(DataError, match="No such file"):
        BatchFiles(path)
    write_batch_files(tmp_path, "train", Source(), batch_size=2, partition_size=8192)
    assert sorted(os.listdir(tmp_path)) == sorted([*FILES, "train.metadata"])
    for name, content in FILES.items():
        assert (tmp_path / name).read_bytes() == content, name


def test_too_little_space_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs(tmp_path)
    values = list(status)
    values[4] = 1
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    with pytest.raises(DataError, match=r"of free space\. Received: "):
        write_batch_files(tmp_path, "train", Source(300), batch_size=1)
    assert os.listdir(tmp_path) == []


def test_rebatching_into_the_same_directory_is_refused(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    for directory in (tmp_path, link):
        with pytest.raises(DataError, match="expected another directory"):
            rebatch(path, directory, 3)
    assert BatchFiles(path)[4][1] == 14


# Encoding as the original does


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


def test_targets_and_labels_of_pixels(tmp_path: Path) -> None:
    x = np.ones((4, 2), np.float64)
    encode(Dataset((x, np.arange(8, dtype=np.float32).reshape(4, 2))), Encoding("targets"), tmp_path, 3)
    meta = read_metadata(tmp_path / "targets-train.metadata")
    assert (meta.label_type, meta.label_shape, meta.example_type) == ("float", (2,), "float")
    assert BatchFiles(tmp_path / "targets-train.metadata")[3][1].tolist() == [6, 7]
    assert replace(meta, fill=None).number_of_examples == meta.elements == 6
