"""The directory of a run, and its description."""

from __future__ import annotations

import argparse
import enum
import json
import os
import re
from pathlib import Path

import pytest

from crossbow.runtime.directory_lock import DirectoryLock
from crossbow.scripts.run_directory import VERSION, RunDirectory, repeated, settings_of
from crossbow.types import ConfigurationError, DataError

DESCRIPTION = {"version": VERSION, "state": "running", "started": "2026-01-02T03:04:05+00:00"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def test_a_description_is_read_as_it_was_written(run: RunDirectory) -> None:
    run.write(DESCRIPTION)
    assert run.read() == DESCRIPTION


def test_a_new_run_does_not_replace_an_older_one(run: RunDirectory) -> None:
    run.check_new()
    run.prepare()
    run.check_new()
    run.write({**DESCRIPTION, "state": "finished"})
    with pytest.raises(
        ConfigurationError, match=r"a run that has finished \(2026-01-02[^;]*; replace it with --overwrite"
    ):
        run.check_new()
    run.checkpoints.mkdir()
    (run.checkpoints / "0000000001.safetensors").touch()
    with pytest.raises(ConfigurationError, match=r"a run that has finished \(2026-01-02.*crossbow resume.*--overwrite"):
        run.check_new()
    run.description.unlink()
    (run.checkpoints / "0000000003.safetensors").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="Received: a run; continue"):
        run.check_new()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["log.jsonl"], "log.jsonl"),
        (["best.safetensors", "model.safetensors"], "model.safetensors and best.safetensors"),
    ],
)
def test_a_new_run_does_not_replace_other_files(run: RunDirectory, names: list[str], expected: str) -> None:
    run.prepare()
    (run.path / "notes.txt").touch()
    run.check_new()
    for name in names:
        (run.path / name).touch()
    message = f"without files that a run replaces. Received: one with {expected}; replace them with --overwrite"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        run.check_new()


def test_a_new_run_names_the_process_that_is_using_the_directory(run: RunDirectory) -> None:
    """Instead of the advice to continue its run."""
    run.prepare()
    run.write(DESCRIPTION)
    with DirectoryLock(run.path), pytest.raises(DataError, match=f"Received: one that process {os.getpid()} uses"):
        run.check_new()
    with pytest.raises(ConfigurationError, match="a run that was interrupted"):
        run.check_new()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"run\.json: expected the description of a run \(JSON\)"),
        ("[]", "Received: other JSON"),
        ('{"version": "1"}', "Received: other JSON"),
        (json.dumps({**DESCRIPTION, "version": VERSION + 1}), f"Received: {VERSION + 1}; update Crossbow"),
    ],
)
def test_descriptions_that_cannot_be_used(run: RunDirectory, text: str, message: str) -> None:
    run.prepare()
    run.description.write_text(text)
    with pytest.raises(DataError, match=message):
        run.read()


def test_a_directory_that_is_no_run(run: RunDirectory) -> None:
    with pytest.raises(DataError, match=r"expected the directory of a run.*Received: No such file"):
        run.read()


def test_a_run_without_a_process_does_not_run(run: RunDirectory) -> None:
    assert run.state(DESCRIPTION) == "interrupted"
    with DirectoryLock(run.path):
        assert run.state(DESCRIPTION) == "running"
    assert run.state({**DESCRIPTION, "state": "failed"}) == "failed"


def test_settings_are_json_values() -> None:
    class Unit(enum.Enum):
        TASKS = 1

    options = argparse.Namespace(
        epochs=3, unit=Unit.TASKS, shape=(1, 2), data_directory=Path("x"), rate=0.1, none=None, resume=True, quiet=False
    )
    assert settings_of(options) == {"epochs": 3, "unit": "TASKS", "shape": [1, 2], "data_directory": "x", "rate": 0.1}


def test_a_run_can_be_repeated_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace(data_directory=Path("data"))
    arguments = ["--overwrite", "--data-directory", "data", "--epochs", "2"]
    assert repeated(arguments, options) == [*arguments[1:], "--data-directory", str(tmp_path / "data")]
