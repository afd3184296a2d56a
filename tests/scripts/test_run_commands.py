"""`crossbow resume` and `crossbow runs`: a run that was killed ends as one that was not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from crossbow.cli import main
from crossbow.runtime import checkpointing
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.runtime.directory_lock import DirectoryLock
from crossbow.scripts.run_commands import resume_run
from crossbow.types import DataError
from models import logistic_regression
from tests.scripts.runs import ROOT, SECONDS
from tests.support import same_weights

pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'crossbow[zoo]'")

OPTIONS = ["--learners", "2", "--kernels", "reference", "--threads-per-learner", "1"]
EVERY = ["--checkpoint-interval", "20tasks"]


def train(directory: Path, *options: str) -> None:
    assert logistic_regression.main([*OPTIONS, *options, "--output-directory", str(directory)]) == 0


def records(directory: Path) -> list[dict[str, Any]]:
    """The records in the log, without times."""
    rows = [json.loads(line) for line in (directory / "log.jsonl").read_text("utf-8").splitlines()]
    kept = ("epoch", "tasks", "loss", "learning_rate", "test_loss", "test_accuracy", "test_examples")
    return [{name: row[name] for name in kept} for row in rows if "epoch" in row]


def weights(directory: Path, name: str = "model") -> dict[str, Any]:
    loaded: dict[str, Any] = safetensors.numpy.load_file(directory / f"{name}.safetensors")
    return loaded


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "whole", "--epochs", "3")
    train(tmp_path / "parts", "--epochs", "2")
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "parts")]) == 0
    assert "this run has finished; --epochs N continues it" in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "parts"), "--epochs", "3"]) == 0
    assert "epochs: 2 → 3" in capsys.readouterr().out
    assert same_weights(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert same_weights(weights(tmp_path / "parts", "best"), weights(tmp_path / "whole", "best"))
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    lines = (tmp_path / "parts" / "log.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["changes"] for line in lines if "resumed" in line] == [["epochs: 2 → 3"]]
    assert sum("run" in json.loads(line) for line in lines) == 1


def test_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "a", "--epochs", "2")
    train(tmp_path / "b" / "c", "--epochs", "1")
    description = json.loads((tmp_path / "b" / "c" / "run.json").read_text())
    (tmp_path / "b" / "c" / "run.json").write_text(json.dumps({**description, "state": "running"}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    capsys.readouterr()
    assert main(["runs", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "epochs", "best", "test", "accuracy", "images/s"]
    assert [row.split()[:3] for row in rows] == [
        [str(tmp_path / "a"), "finished", "2/2"],
        [str(tmp_path / "b" / "c"), "interrupted", "1/1"],
        [str(tmp_path / "broken"), "unknown"],
    ]
    assert main(["runs", str(tmp_path / "a"), "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["epochs"] == 2
    assert 0.5 < only["best_test_accuracy"] <= 1
    assert main(["runs", str(tmp_path / "nowhere")]) == 2


@pytest.mark.slow
def test_the_description_of_a_run(tmp_path: Path) -> None:
    train(tmp_path, "--epochs", "1", "--seed", "7", "--learning-rate", "0.05")
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["state"] == "finished"
    assert found["module"] == "models.logistic_regression"
    assert found["seed"] == 7
    assert found["settings"]["learning_rate"] == 0.05
    assert found["configuration"]["solver"]["momentum"] == 0
    assert found["configuration"]["system"]["kernels"] == "reference"
    assert found["data"]["training_examples"] == 1501
    assert {"crossbow", "numpy"} <= found["versions"].keys()
    assert found["process"] == os.getpid()


@pytest.mark.slow
def test_an_older_run_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "--epochs", "1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert logistic_regression.main([*OPTIONS, "--epochs", "2", "--output-directory", str(tmp_path)]) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before
    train(tmp_path, "--epochs", "1", "--seed", "3", "--overwrite")
    assert len(checkpoint_files(tmp_path / "checkpoints")) == 1
    assert len(records(tmp_path)) == 1


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also by a quiet run, as a warning."""
    train(tmp_path, "--epochs", "2", "--checkpoint-interval", "1epochs")
    newest = checkpoint_files(tmp_path / "checkpoints")[0]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    for options, stream in ([], "out"), (["--quiet"], "err"):
        newest.write_bytes(content)
        capsys.readouterr()
        assert main(["resume", str(tmp_path), "--epochs", "2", *options]) == 0
        assert f"{newest}: expected a checkpoint as it was written" in getattr(capsys.readouterr(), stream)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a quiet run, as a warning."""

    def full(*arguments: object) -> None:
        raise DataError("No space left on device")

    monkeypatch.setattr(checkpointing, "write_checkpoint", full)
    for options, stream in ([], "out"), (["--quiet"], "err"):
        capsys.readouterr()
        train(tmp_path, "--epochs", "1", "--overwrite", *options)
        said = getattr(capsys.readouterr(), stream)
        assert re.search(r"no checkpoint after \d+ tasks, training goes on: No space left on device", said)


@pytest.mark.slow
def test_what_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(tmp_path)]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err
    train(tmp_path, "--epochs", "1")
    capsys.readouterr()
    for options, message in (
        (["--batch-size", "4"], "another batch_size: expected 8. Received: 4"),
        (["--seed", "4"], "another seed: expected 0. Received: 4"),
        (["--dataset", "synthetic"], "another data set"),
    ):
        assert main(["resume", str(tmp_path), "--epochs", "2", *options]) == 2
        assert message in capsys.readouterr().err
    for path in checkpoint_files(tmp_path / "checkpoints"):
        path.unlink()
    assert main(["resume", str(tmp_path), "--epochs", "2"]) == 2
    assert "Received: one without; begin the run again" in capsys.readouterr().err
    assert logistic_regression.main([*OPTIONS, "--output-directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "replace it with --overwrite, or use another --output-directory" in error
    assert "crossbow resume" not in error


def start(directory: Path, *options: str, resume: bool = False) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "models.logistic_regression", *options, "--output-directory", str(directory)]
    if resume:
        command = [sys.executable, "-m", "crossbow", "resume", str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_checkpoint(directory: Path, after: int = 0) -> None:
    deadline = time.monotonic() + SECONDS
    while not [path for path in checkpoint_files(directory / "checkpoints") if int(path.stem) > after]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def newest(directory: Path) -> int:
    return max((int(path.stem) for path in checkpoint_files(directory / "checkpoints")), default=0)


LONG = [*OPTIONS, *EVERY, "--epochs", "30"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long run that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    with start(directory, *LONG) as process:
        assert process.wait(SECONDS) == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_an_interrupted_run_ends_as_one_that_was_not(number: signal.Signals, whole: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    status: dict[int, int] = {signal.SIGKILL: -9, signal.SIGINT: 130}
    for resume in (False, True):
        with start(killed, *LONG, resume=resume) as process:
            wait_for_checkpoint(killed, newest(killed))
            process.send_signal(number)
            printed = process.communicate(timeout=SECONDS)[0]
        assert process.returncode in (0, status.get(number, 143)), printed
        if process.returncode in (130, 143):
            assert f"continue with: crossbow resume {killed}" in printed
            assert json.loads((killed / "run.json").read_text())["state"] == "interrupted"
    with start(killed, resume=True) as process:
        printed = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, printed
    assert json.loads((killed / "run.json").read_text())["state"] == "finished"
    assert same_weights(weights(killed), weights(whole))
    assert same_weights(weights(killed, "best"), weights(whole, "best"))
    assert records(killed) == records(whole)


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start(tmp_path, *OPTIONS, *EVERY, "--epochs", "100000") as process:
        wait_for_checkpoint(tmp_path)
        try:
            assert main(["resume", str(tmp_path), "--epochs", "3"]) == 2
            assert f"Received: one that process {process.pid} uses" in capsys.readouterr().err
        finally:
            process.kill()


def test_a_running_run_is_not_resumed(tmp_path: Path) -> None:
    """Also before its first checkpoint."""
    (tmp_path / "run.json").write_text(json.dumps({"version": 1, "state": "running", "arguments": []}))
    with DirectoryLock(tmp_path), pytest.raises(DataError, match=f"Received: one that process {os.getpid()} uses"):
        resume_run(tmp_path, [])
