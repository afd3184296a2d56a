"""Files of checkpoints: what was written is read, and any damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from crossbow.runtime import checkpoint
from crossbow.runtime.checkpoint import checkpoint_files, checkpoint_path, read_checkpoint, write_checkpoint
from crossbow.types import DataError

TENSORS = {
    "a/f8": np.array([1.5, -0.0]),
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "empty": np.zeros((0, 2), np.float32),
    "half": np.ones(3, np.float16),
    "scalar": np.array(7, np.int64),
    "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}
STATE = json.dumps({"losses": [0.1, float("nan")], "text": 'é "checksum":"' + "a" * 64 + '"'})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = checkpoint_path(tmp_path, 12)
    write_checkpoint(path, TENSORS, STATE)
    return path


def test_what_was_written_is_read(path: Path) -> None:
    found = read_checkpoint(path)
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes()
    assert json.dumps(found.state) == json.dumps(json.loads(STATE))


def test_a_checkpoint_without_tensors(path: Path) -> None:
    write_checkpoint(path, {}, "[1]")
    found = read_checkpoint(path)
    assert (found.tensors, found.state) == ({}, [1])


def test_other_programs_can_read_it(path: Path) -> None:
    assert safetensors.numpy.load_file(path)["b"].tolist() == TENSORS["b"].tolist()


def test_equal_states_are_equal_files(path: Path) -> None:
    before = path.read_bytes()
    write_checkpoint(path, dict(reversed(TENSORS.items())), STATE)
    assert path.read_bytes() == before


def test_a_changed_byte_at_any_place_is_found(path: Path) -> None:
    write_checkpoint(path, {"x": TENSORS["b"]}, "{}")
    data = bytearray(path.read_bytes())
    for place in range(len(data)):
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(DataError, match="0000000012"):
            read_checkpoint(path)
        data[place] ^= 1 << place % 8
    path.write_bytes(data)
    read_checkpoint(path)


def test_a_file_that_ends_too_early(path: Path) -> None:
    write_checkpoint(path, {"x": TENSORS["b"]}, "{}")
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match="expected a checkpoint"):
            read_checkpoint(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(DataError, match="checksum"):
        read_checkpoint(path)


def test_foreign_and_newer_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors.numpy.save_file({"x": np.zeros(2)}, path)
    with pytest.raises(DataError, match="Received: safetensors of something else"):
        read_checkpoint(path)
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    write_checkpoint(path, TENSORS, STATE)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"version 1\. Received: version 2; update Crossbow"):
        read_checkpoint(path)
    with pytest.raises(DataError, match="No such file"):
        read_checkpoint(path.with_name("0000000013.safetensors"))


def test_a_failure_while_writing_keeps_the_older_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    with pytest.raises(KeyError):  # a type that the format does not have
        write_checkpoint(path, {"x": np.zeros(2, np.complex64)}, STATE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        write_checkpoint(path, {}, "{}")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_newest_file_comes_first(tmp_path: Path) -> None:
    assert checkpoint_files(tmp_path / "missing") == []
    for tasks in (3, 20, 100):
        checkpoint_path(tmp_path, tasks).write_bytes(b"")
    (tmp_path / "0000000007.damaged").write_bytes(b"")
    (tmp_path / ".12.partial").write_bytes(b"")
    assert [int(path.stem) for path in checkpoint_files(tmp_path)] == [100, 20, 3]
