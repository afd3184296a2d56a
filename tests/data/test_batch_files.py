"""Batch-aligned files: read byte by byte, and every kind of damage."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crossbow.data import BatchFiles
from crossbow.data.inspection import verify
from crossbow.types import DataError
from tests.data.hand_made_files import FILES, TEXT, Source, write_files, write_source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The metadata of a small data set, made by hand."""
    return write_files(tmp_path)


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


# Damage


WRONG_METADATA = {
    "another batch size": ("batch size   : 2", "batch size : 3", ["whole number of batches", "4,104 bytes"]),
    "another pad": ("label pad    : 4088", "label pad : 4080", ["train.labels.1", "a pad of 4,080", "8,192 bytes"]),
    "another shape": ("[1, 2]", "[1, 3]", ["train.examples.1", "whole number of batches", "float (1, 3)"]),
    "more elements": ("elements     : 6", "elements : 8", ["expected 4 batches", "in 2 files", "Received: 3"]),
    "more partitions": ("partitions   : 2", "partitions : 3", ["the file", "train.examples.3"]),
    "fewer partitions": ("partitions   : 2", "partitions : 1", ["expected 3 batches", "Received: 2"]),
    "labels for examples": ("examples     : {0}/train.examples", "examples : {0}/train.labels", ["for both"]),
}


@pytest.mark.parametrize(("old", "new", "parts"), WRONG_METADATA.values(), ids=WRONG_METADATA)
def test_metadata_that_does_not_fit_the_files(path: Path, tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
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


@pytest.mark.parametrize(("count", "stated"), [(5, 2), (5, 1), (6, 3), (8, 1)])
def test_a_wrong_fill(tmp_path: Path, count: int, stated: int) -> None:
    """Examples would count twice, or not at all."""
    path = write_source(tmp_path, "train", Source(count), batch_size=4)
    path.write_text(re.sub(r"fill         : \d", f"fill         : {stated}", path.read_text()))
    refused(path, f"the last {stated} (fill) of 8 elements to repeat the first ones", "another example than the first")


@pytest.mark.parametrize("name", ["train.examples.2", "train.labels.2"])
def test_a_file_that_is_truncated_while_it_is_used(path: Path, name: str) -> None:
    """Reading beyond its end would kill the process (SIGBUS)."""
    files = BatchFiles(path)
    os.truncate(path.parent / name, 0)
    message = rf"{name}: expected a file that does not change while it is used, of 4,096 bytes. Received: 0 bytes$"
    for read in (lambda: files[4], files.filling, lambda: files.remainders(1)):
        with pytest.raises(DataError, match=message):
            read()
    assert files[3][1] == 13


MANY = """
import resource, sys
from pathlib import Path
from crossbow.data import BatchFiles
from crossbow.types import DataError
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
try:
    files = BatchFiles(Path(sys.argv[1]))
    print(files.labels().ravel().tolist(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 64 + 200)
except DataError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of open files")
def test_more_files_than_a_process_may_open_at_first(tmp_path: Path) -> None:
    path = write_source(tmp_path, "train", Source(100), batch_size=1, partition_size=4096)

    def said(hard: int) -> str:
        done = subprocess.run([sys.executable, "-c", MANY, str(path), str(hard)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert said(1000) == f"{list(range(10, 110))} True"
    assert re.fullmatch(
        rf"{path}: expected a limit of open files of at least 2[0-9]{{2}}, for 200 files of examples and labels\. "
        r"Received: 150; with a larger --partition-size, `crossbow data encode` writes fewer files, and so does "
        r"`crossbow data rebatch` where the limit is higher",
        said(150),
    )
