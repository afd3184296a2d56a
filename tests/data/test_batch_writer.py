"""Batch-aligned files: written byte by byte, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossbow.data import BatchFiles
from crossbow.data.batch_metadata import read_metadata
from crossbow.data.batch_writer import plan
from crossbow.data.inspection import verify
from crossbow.types import DataError
from tests.data.hand_made_files import FILES, TEXT, Source, label_batch, write_files, write_source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The metadata of a small data set, made by hand."""
    return write_files(tmp_path)


def test_the_written_bytes_are_known(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "written"
    assert write_source(target, "train", Source(), batch_size=2, partition_size=8192) == target / "train.metadata"
    assert sorted(os.listdir(target)) == sorted([*FILES, "train.metadata"])
    for name, content in FILES.items():
        assert (target / name).read_bytes() == content, name
    assert (target / "train.metadata").read_text() == TEXT.format(target)


def test_fewer_examples_than_a_batch_has_places(tmp_path: Path) -> None:
    """The original repeats the bytes that are there, of which those after the examples are zeros."""
    write_source(tmp_path, "train", Source(3), batch_size=8)
    assert (tmp_path / "train.labels.1").read_bytes() == label_batch(10, 11, 12, 10, 11, 12, 0, 0)
    assert read_metadata(tmp_path / "train.metadata").fill == 5
    assert len(BatchFiles(tmp_path / "train.metadata")) == 3
    assert list(verify(tmp_path / "train.metadata")) == []


def test_whole_batches_have_no_fill(tmp_path: Path) -> None:
    write_source(tmp_path, "train", Source(4), batch_size=2)
    assert "fill         : 0\n" in (tmp_path / "train.metadata").read_text()
    assert (tmp_path / "train.labels.1").read_bytes() == FILES["train.labels.1"]


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_the_size_of_all_files_is_known_before(tmp_path: Path, batch_size: int) -> None:
    write_source(tmp_path, "train", Source(), batch_size=batch_size, partition_size=8192 * 4)
    written = sum(file.stat().st_size for file in tmp_path.iterdir() if file.suffix != ".metadata")
    assert plan(Source(), batch_size, 8192 * 4).nbytes == written


def test_a_batch_larger_than_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least one batch, 8,192 bytes with batch size 1,000\. Received: 8,191"):
        write_source(tmp_path, "train", Source(), batch_size=1000, partition_size=8191)
    assert os.listdir(tmp_path) == []
    assert plan(Source(), 1000, 8192).batches_per_file == 1


def test_more_examples_than_metadata_can_state() -> None:
    class Endless(Source):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(DataError, match=r"at most 2,147,483,647 examples"):
        plan(Endless(), 1)


@pytest.mark.parametrize("name", ["a:b", "a\nb", " a", "a\udcff"])
def test_a_directory_that_metadata_cannot_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"a path without colons, line breaks or surrounding spaces"):
        write_source(Path(name), "train", Source(), batch_size=2)
    assert os.listdir() == []


def test_older_files_are_replaced_all_of_them(path: Path, tmp_path: Path) -> None:
    (tmp_path / "train.examples.other").write_bytes(b"")
    (tmp_path / "test.examples.1").write_bytes(b"")
    write_source(tmp_path, "train", Source(), batch_size=5)
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
        write_source(path.parent, "train", Failing(), batch_size=2, partition_size=8192)
    assert os.listdir(path.parent) == []


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from tests.data.hand_made_files import Source, write_source
directory, how = Path(sys.argv[1]), sys.argv[2]

class Stopped(Source):
    def slice(self, start, stop):
        if how == "killed" and start == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().slice(start, stop)

if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
write_source(directory, "train", Stopped(), 2, 8192)
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
    write_source(tmp_path, "train", Source(), batch_size=2, partition_size=8192)
    assert sorted(os.listdir(tmp_path)) == sorted([*FILES, "train.metadata"])
    for name, content in FILES.items():
        assert (tmp_path / name).read_bytes() == content, name


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from crossbow.data import Dataset
from crossbow.data.encoding import EncodedExamples, Encoding
from tests.data.hand_made_files import write_source
example, label = np.zeros((3, int(sys.argv[2])), np.float32), np.zeros((3, int(sys.argv[3])), np.float32)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
write_source(Path(sys.argv[1]), "train", EncodedExamples(Dataset((example, label)).train, Encoding("train")), 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")
@pytest.mark.parametrize(("sizes", "name"), [(("5000", "1"), "train.examples.1"), (("1", "5000"), "train.labels.1")])
def test_the_file_that_cannot_be_written_is_named(tmp_path: Path, sizes: tuple[str, str], name: str) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), *sizes], capture_output=True, text=True)
    assert f"{tmp_path / name}: expected to write this file. Received: File too large" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_data_set_of_another_shape_is_not_replaced(path: Path, tmp_path: Path) -> None:
    """CIFAR-10 and CIFAR-100 have the same file names."""

    class Longer(Source):
        def __init__(self) -> None:
            super().__init__()
            self.example_shape = (2, 1)

    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(
        DataError, match=r"examples \(2, 1\) to replace\. Received: one with examples \(1, 2\); write to"
    ):
        write_source(tmp_path, "train", Longer(), batch_size=2)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_too_little_space_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs(tmp_path)
    values = list(status)
    values[4] = 1
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    with pytest.raises(DataError, match=r"of free space\. Received: [0-9.]+ k?B$"):
        write_source(tmp_path, "train", Source(300), batch_size=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="the space is not checked on Windows")
def test_older_files_stay_if_there_is_too_little_space_and_count_as_space(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.examples.77").symlink_to(tmp_path / "train.examples.1")
    (tmp_path / "copy").hardlink_to(tmp_path / "train.labels.2")  # which stays under this name
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    freed = [*FILES.keys() - {"train.labels.2"}, "train.examples.77"]
    older = sum((tmp_path / name).lstat().st_blocks * 512 for name in freed)
    needed = plan(Source(), 1, 8192).nbytes
    assert 0 < older < needed
    values = list(os.statvfs(tmp_path))

    def free(nbytes: int) -> None:
        values[1], values[4] = 1, nbytes
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))

    free(needed - older - 1)
    message = (
        rf"^{tmp_path}: expected 40\.9 kB of free space\. Received: [0-9.]+ kB and [0-9.]+ kB in files to replace$"
    )
    with pytest.raises(DataError, match=message):
        write_source(tmp_path, "train", Source(), batch_size=1, partition_size=8192)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    free(needed - older)
    write_source(tmp_path, "train", Source(), batch_size=1, partition_size=8192)
    assert len(BatchFiles(path)) == 5
    assert (tmp_path / "copy").read_bytes() == FILES["train.labels.2"]
    assert len(os.listdir(tmp_path)) == 2 + 2 * 3


# Many files
