"""When checkpoints are due, and the thread that writes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Checkpoints, ConfigurationError, DataError
from crossbow.runtime import checkpointing
from crossbow.runtime.checkpoint import checkpoint_files, read_checkpoint
from crossbow.runtime.checkpointing import CheckpointWriter, parse_interval
from tests.configurations import declared


def write_model(path: Path, variables: Mapping[str, Any]) -> None:
    path.write_text(",".join(variables))


class Time:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(checkpointing.time, "monotonic", lambda: self.now)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., CheckpointWriter]:
    def made(**settings: Any) -> CheckpointWriter:
        return CheckpointWriter(Checkpoints(tmp_path, **settings), write_model)

    return made


def save(writer: CheckpointWriter, tasks: int) -> None:
    writer.write({"x": np.full(3, tasks)}, {"tasks": tasks}, {"w": np.zeros(1)})


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [("500tasks", 500, "tasks"), ("1 epoch", 1, "epochs"), ("0.5minutes", 30, "seconds"), ("2hours", 7200, "seconds")],
)
def test_intervals(text: str, number: float, unit: str) -> None:
    assert parse_interval(Checkpoints("x", interval=text).interval) == (number, unit)


@pytest.mark.parametrize("text", ["", "5", "tasks", "0tasks", "1.5epochs", "-1minutes", "5 weeks", "5tasks5", 5, None])
def test_what_is_no_interval(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval must be a number of tasks, epochs"):
        Checkpoints("x", interval=text)


DECLARED = """\
Checkpoints.interval='auto' --checkpoint-interval (auto)
    a number of tasks, epochs, seconds, minutes or hours, as '500tasks' or '10minutes', 'auto' or 'none'
Checkpoints.keep=3 --keep (3)
    an integer ≥ 1
Checkpoints.overwrite=False --overwrite (off)
    True or False
"""


def test_names_and_defaults_of_options() -> None:
    """Commands that users have written rely on them."""
    assert declared(Checkpoints) == DECLARED


def test_the_directory_is_a_path() -> None:
    with pytest.raises(ConfigurationError, match="directory must be a path"):
        Checkpoints(3)  # type: ignore[arg-type]


def test_an_interval_of_tasks(make: Callable[..., CheckpointWriter]) -> None:
    writer = make(interval="10tasks")
    writer.begin(4)
    assert [tasks for tasks in range(4, 20) if writer.is_due(tasks)] == list(range(9, 20))
    assert not writer.is_due_at_epoch(1, 8)
    assert writer.is_due_at_epoch(1, 9)


def test_an_interval_of_epochs(make: Callable[..., CheckpointWriter]) -> None:
    writer = make(interval="2epochs")
    assert [epoch for epoch in range(1, 6) if writer.is_due_at_epoch(epoch, 100 * epoch)] == [2, 4]
    assert not writer.is_due(1000)


def test_an_interval_of_time(make: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writer = Time(monkeypatch), make(interval="30seconds")
    clock.now = 114.9
    assert not writer.is_due(5)
    clock.now = 115.0
    assert writer.is_due(5)
    assert writer.is_due_at_epoch(1, 5)


def test_the_automatic_interval(make: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writer = Time(monkeypatch), make()
    assert writer.is_due_at_epoch(1, 5), "there is none yet"
    assert not writer.is_due(5)
    save(writer, 5)
    writer.wait()
    clock.now = 159.0
    assert not writer.is_due_at_epoch(1, 5)
    clock.now = 160.0
    assert writer.is_due_at_epoch(1, 5)
    assert not writer.is_due(5)
    clock.now = 700.0
    assert writer.is_due(5)
    writer.close()


def test_no_checkpoints(make: Callable[..., CheckpointWriter], tmp_path: Path) -> None:
    writer = make(interval="none")
    assert not writer.writes_checkpoints
    assert not writer.is_due(10**9)
    assert not writer.is_due_at_epoch(1, 10**9)
    writer.write_last({"w": np.zeros(1)}, 4)
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_last_ones_are_kept(make: Callable[..., CheckpointWriter], tmp_path: Path) -> None:
    writer = make(keep=2)
    for tasks in (1, 2, 3, 4):
        save(writer, tasks)
    writer.close()
    files = checkpoint_files(tmp_path / "checkpoints")
    assert [read_checkpoint(path).state["tasks"] for path in files] == [4, 3]
    assert (tmp_path / "model.safetensors").read_text() == "w"
    assert [written.tasks for written in writer.take_news()] == [1, 2, 3, 4]
    assert writer.take_news() == []
    assert threading.active_count() == 1 or not any("checkpoints" in each.name for each in threading.enumerate())


def test_a_failure_is_told_and_the_next_one_is_written(
    make: Callable[..., CheckpointWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make()
    save(writer, 1)
    writer.wait()

    def full(*arguments: object) -> None:
        raise DataError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_checkpoint", full)
        save(writer, 2)
        writer.wait()
    save(writer, 3)
    writer.close()
    errors = {each.tasks: each.error for each in writer.take_news()}
    assert errors == {1: "", 2: "No space left on device", 3: ""}
    assert [int(path.stem) for path in checkpoint_files(tmp_path / "checkpoints")] == [3, 1]


def test_a_model_that_fits_is_written_without_its_checkpoint(
    make: Callable[..., CheckpointWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise DataError("No space left on device")

    monkeypatch.setattr(checkpointing, "write_checkpoint", full)
    writer = make()
    save(writer, 2)
    writer.close()
    assert (tmp_path / "model.safetensors").exists()
    assert [each.error for each in writer.take_news()] == ["No space left on device"]


def test_a_model_that_does_not_fit_is_told_with_its_number_of_tasks(tmp_path: Path) -> None:
    def full(path: Path, model: Mapping[str, Any]) -> None:
        raise DataError(f"{path.name}: no space")

    writer = CheckpointWriter(Checkpoints(tmp_path), full)
    writer.write_best({"w": np.zeros(1)}, 5)
    writer.write_last({"w": np.zeros(1)}, 6)
    writer.close()
    assert [each.warning for each in writer.take_news()] == [
        "no checkpoint after 5 tasks, training goes on: best.safetensors: no space",
        "no checkpoint after 6 tasks, training goes on: model.safetensors: no space",
    ]


def test_the_best_model_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    is_full, files = True, dict[str, int]()

    def write(path: Path, model: Mapping[str, Any]) -> None:
        if is_full:
            raise DataError("no space")
        files[path.name] = int(model["w"][0])

    writer = CheckpointWriter(Checkpoints(tmp_path), write)
    writer.write_best({"w": np.full(1, 5.0)}, 5)
    writer.wait()
    is_full = False
    save(writer, 7)
    writer.close()
    assert files == {"best.safetensors": 5, "model.safetensors": 0}


def test_while_one_is_written_another_is_due_only_for_a_given_interval(
    make: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, go_on = Time(monkeypatch), threading.Event()
    monkeypatch.setattr(checkpointing, "write_checkpoint", lambda *arguments: go_on.wait(60))
    for interval, due in ("1seconds", True), ("2tasks", True), ("auto", False):
        writer = make(interval=interval)
        go_on.clear()
        save(writer, 1)
        clock.now += 1000.0
        assert writer.is_due(2) is due, interval
        assert writer.is_due_at_epoch(1, 2) is due, interval
        go_on.set()
        writer.wait()
        assert writer.is_due(2), interval
        writer.close()


def test_an_unfinished_file_is_waited_for(
    make: Callable[..., CheckpointWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def slow(path: Path, tensors: Mapping[str, Any], state: str) -> None:
        time.sleep(0.1)
        written.append(int(path.stem))

    monkeypatch.setattr(checkpointing, "write_checkpoint", slow)
    writer = make(interval="10tasks")
    save(writer, 5)
    assert written == []  # training goes on meanwhile
    save(writer, 10)
    assert written == [5]
    writer.close()
    assert written == [5, 10]


def test_an_older_run(make: Callable[..., CheckpointWriter], tmp_path: Path) -> None:
    writer = make()
    writer.prepare()
    save(writer, 5)
    writer.close()
    with pytest.raises(
        DataError, match=r"expected a directory without checkpoints.*one with 0000000005\.safetensors; resume that run"
    ):
        make().prepare()
    assert checkpoint_files(tmp_path / "checkpoints")
    make(overwrite=True).prepare()
    assert not checkpoint_files(tmp_path / "checkpoints")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "best.safetensors"])
def test_models_without_a_run(name: str, make: Callable[..., CheckpointWriter], tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=rf"one with {name}; replace it with overwrite=True, or use another directory"):
        make().prepare()
    assert (tmp_path / name).read_text() == "mine"
    make(overwrite=True).prepare()
    assert not (tmp_path / name).exists()
