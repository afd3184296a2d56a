"""What checkpoints contain besides the engine's state, and how a run goes on from the newest good one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from crossbow import (
    Checkpoints,
    ConfigurationError,
    CrossbowError,
    DataError,
    DurationUnit,
    ExecutionContext,
    JsonLinesMonitor,
    ModelConf,
    Monitor,
    Record,
    SolverConf,
    SystemConf,
    TrainingUnit,
)
from crossbow.cluster.members import Terminated
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.runtime import checkpointing
from crossbow.runtime.checkpoint import checkpoint_files
from crossbow.runtime.checkpointing import CheckpointWriter, Written
from crossbow.runtime.keeper import find_checkpoint
from crossbow.runtime.limits import Limits
from crossbow.runtime.monitor import Progress
from tests.support import blobs, context, perceptron, same_weights

DATA = blobs(examples=40)
BOTH = "model", "best"


class Watching(Monitor):
    """Keeps what it is told, and counts records, also across checkpoints."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.records = 0

    def record(self, record: Record) -> None:
        self.records += 1

    def checkpoint(self, written: Written) -> None:
        self.written.append(written)

    def state(self) -> int:
        return self.records

    def resume(self, state: Any) -> None:
        self.records = state


def files(directory: Path) -> list[int]:
    return [int(path.stem) for path in checkpoint_files(directory / "checkpoints")]


def test_the_models_of_a_run(tmp_path: Path) -> None:
    """The newest and the best model are those of the history, also after a second process went on."""
    settings = Checkpoints(tmp_path, interval="1epoch")
    with context(perceptron(), data=DATA, checkpoints=settings) as running:
        running.train_and_test(3)
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        (tmp_path / "best.safetensors").unlink()
        history = resumed.continue_training(count=8)
        assert same_weights(safetensors.numpy.load_file(tmp_path / "model.safetensors"), resumed.variables)
        best = history.best
    assert best is not None
    assert len(history.records) == 8
    with context(perceptron(), data=DATA) as other:
        other.load(tmp_path / "best.safetensors")
        assert other.test() == best.test


def test_a_best_model_that_is_lost_is_written_again(tmp_path: Path) -> None:
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        running.train_and_test(2)
    best = safetensors.numpy.load_file(tmp_path / "best.safetensors")
    (tmp_path / "best.safetensors").write_bytes(b"that of an epoch which was lost")
    with context(perceptron(), data=DATA, resume=tmp_path):
        pass
    assert same_weights(safetensors.numpy.load_file(tmp_path / "best.safetensors"), best)


@pytest.mark.parametrize("event", ["record", "progress"])
def test_the_models_of_a_deleted_directory(event: str, tmp_path: Path) -> None:
    """They are written when a monitor fails, as a log does whose directory is not there."""

    class Deleting(Monitor):
        interval = 0.0

        def record(self, record: Record) -> None:
            if event == "record" and record.epoch == 2:
                self.fail()

        def progress(self, progress: Progress) -> None:
            if event == "progress" and progress.epoch > 2:
                self.fail()

        def fail(self) -> None:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            raise DataError("no directory")

    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path / "run"), monitors=[Deleting()]) as running:
        with pytest.raises(DataError, match="no directory"):
            running.train_and_test(4)
        model, best = (safetensors.numpy.load_file(tmp_path / "run" / f"{name}.safetensors") for name in BOTH)
        assert same_weights(model, running.variables)
        is_best = event == "record" and running.history.best is running.history.records[-1]
        assert same_weights(best, running.variables) == is_best


def test_a_damaged_checkpoint_is_named_and_set_aside(tmp_path: Path) -> None:
    settings = Checkpoints(tmp_path, interval="2tasks", keep=5)
    with context(perceptron(), data=DATA, checkpoints=settings) as running:
        running.train(6, TrainingUnit.TASKS)
    newest = tmp_path / "checkpoints" / "0000000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        assert resumed.resumed is not None
        assert resumed.resumed.tasks == 4
        assert str(newest) in resumed.resumed.damaged[0]
        assert str(newest) in str(resumed.resumed)
    assert files(tmp_path) == [4, 2]
    assert newest.with_suffix(".damaged").exists()


def test_a_directory_without_a_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a directory with a checkpoint\. Received: one without"):
        find_checkpoint(tmp_path / "checkpoints")
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        running.train(2, TrainingUnit.TASKS)
    (only,) = checkpoint_files(tmp_path / "checkpoints")
    only.write_bytes(b"short")
    with pytest.raises(DataError, match=f"{only.name}: expected a checkpoint"):
        context(perceptron(), data=DATA, resume=tmp_path)
    assert only.read_bytes() == b"short"


def test_the_state_of_monitors(tmp_path: Path) -> None:
    watching = Watching()
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path), monitors=[watching]) as running:
        running.train_and_test(3)
    assert [written.tasks for written in watching.written] == [10, 30]
    again = Watching()
    with context(perceptron(), data=DATA, resume=tmp_path, monitors=[again]) as resumed:
        resumed.continue_training(count=5)
    assert again.records == 5


def test_the_log_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    """Lines after it are of a future that did not come."""
    log = tmp_path / "log.jsonl"
    settings = Checkpoints(tmp_path, interval="2epochs", keep=5)
    with context(perceptron(), data=DATA, checkpoints=settings, monitors=[JsonLinesMonitor(log)]) as running:
        running.train_and_test(3)
    (tmp_path / "checkpoints" / "0000000030.safetensors").unlink()
    monitor = JsonLinesMonitor(log)
    with context(perceptron(), data=DATA, resume=tmp_path, monitors=[monitor]) as resumed:
        resumed.continue_training(count=5)
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == [1, 2, 3, 4, 5]


def test_a_full_disk_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpointing.write_checkpoint

    def sometimes_full(path: Path, *arguments: Any) -> None:
        if int(path.stem) in (4, 6):
            raise DataError("No space left on device")
        write(path, *arguments)

    monkeypatch.setattr(checkpointing, "write_checkpoint", sometimes_full)
    watching = Watching()
    settings = Checkpoints(tmp_path, interval="2tasks", keep=5)
    with context(perceptron(), data=DATA, checkpoints=settings, monitors=[watching]) as running:
        running.train(8, TrainingUnit.TASKS)
        weights = running.variables
    assert {each.tasks: each.error for each in watching.written} == {
        2: "",
        4: "No space left on device",
        6: "No space left on device",
        8: "",
    }
    assert files(tmp_path) == [8, 2]
    with context(perceptron(), data=DATA) as unbroken:
        unbroken.train(8, TrainingUnit.TASKS)
        assert same_weights(unbroken.variables, weights)


def test_the_first_epoch_ends_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also because its model is the best so far, and takes long to be written."""
    write = CheckpointWriter._write_or_note

    def slow(self: CheckpointWriter, *arguments: Any) -> bool:
        time.sleep(0.2)
        return write(self, *arguments)

    monkeypatch.setattr(CheckpointWriter, "_write_or_note", slow)
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        history = running.train_and_test(3)
    assert files(tmp_path) == [30, 10], "within a minute, only the last one follows"
    assert same_weights(
        safetensors.numpy.load_file(tmp_path / "best.safetensors"),
        safetensors.numpy.load_file(tmp_path / "model.safetensors"),
    ) == (history.best is history.records[-1])


def test_bad_examples_are_not_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ArrayExamples.write_images

    def write_images(self: ArrayExamples, selection: Selection, images: np.ndarray) -> None:
        if len(self) == 40 and 11 in selection.indices:
            raise BadExample(11, "file 11", "broken")
        good(self, selection, images)

    monkeypatch.setattr(ArrayExamples, "write_images", write_images)

    class Bad(Monitor):
        def __init__(self) -> None:
            self.found: list[int] = []

        def bad_example(self, phase: object, example: BadExample) -> None:
            self.found.append(example.index)

    given: dict[str, Any] = {
        "data": DATA,
        "model": ModelConf(batch_size=4),
        "solver": SolverConf(learning_rate=0.1),
        "system": SystemConf(learners_per_device=2, kernels="reference", on_bad_record="skip"),
    }
    first, second = Bad(), Bad()
    with ExecutionContext(
        [perceptron(), None], checkpoints=Checkpoints(tmp_path), monitors=[first], **given
    ) as running:
        running.train(2)
    with ExecutionContext.resume(tmp_path, [perceptron(), None], monitors=[second], data=DATA) as resumed:
        resumed.continue_training(count=3)
        assert [each.index for each in resumed.bad_examples()] == [11]
    assert (first.found, second.found) == ([11], [])


def test_a_checkpoint_on_request(tmp_path: Path) -> None:
    """Between two calls, and in a monitor."""

    class Saving(Monitor):
        running: ExecutionContext

        def record(self, record: Record) -> None:
            self.running.checkpoint()

    saving = Saving()
    with (
        context(perceptron(), data=DATA) as running,
        pytest.raises(CrossbowError, match="no directory for checkpoints"),
    ):
        running.checkpoint()
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path), monitors=[saving]) as running:
        saving.running = running
        running.checkpoint()
        assert files(tmp_path) == [0]
        running.train_and_test(2)
        assert files(tmp_path) == [20, 10, 0]
    (tmp_path / "checkpoints" / "0000000020.safetensors").unlink()
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        assert [record.epoch for record in resumed.continue_training().records] == [1, 2]
    for number in (10, 20):
        (tmp_path / "checkpoints" / f"{number:010d}.safetensors").unlink()
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        with pytest.raises(CrossbowError, match="no training call to continue"):
            resumed.continue_training()
        assert len(resumed.train(1).records) == 1


@pytest.mark.slow
def test_pauses_do_not_count_as_training(tmp_path: Path) -> None:
    """No stretch ends before its time, and the duration is reached."""
    settings = Checkpoints(tmp_path, interval="2tasks", keep=1)
    with context(perceptron(), data=DATA, checkpoints=settings) as running:
        history = running.train_for_duration(0.3)
    assert all(record.epoch == int(record.epoch) for record in history.records[:-1])
    assert history.records[-1].time >= 0.28  # a stretch that ends before its first task is not recorded
    assert history.stopped == "duration"


def test_another_target_is_a_new_one(tmp_path: Path) -> None:
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        first = running.train_until_condition(0.6, 50)
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        assert len(resumed.continue_training().records) == len(first.records)
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        second = resumed.continue_training(target_loss=0.2)
    assert second.stopped == "loss"
    assert second.loss < first.loss
    assert len(second.records) > len(first.records)


def test_limits_are_replaced_under_the_names_of_training_calls(tmp_path: Path) -> None:
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        running.train_and_test(1, target_accuracy=1.0, duration=1, duration_unit=DurationUnit.HOURS)
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        for wrong in ({"unit": TrainingUnit.TASKS}, {"accuracy": 0.5}, {"seconds": 1}):
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                resumed.continue_training(**wrong)
        with pytest.raises(ConfigurationError, match=r"^target_accuracy must be a fraction.*target_accuracy=97$"):
            resumed.continue_training(target_accuracy=97)
        with pytest.raises(ConfigurationError, match="training must end"):
            resumed.continue_training(count=None, target_accuracy=None, duration=None)
        resumed.continue_training(count=2, target_accuracy=None, duration_unit=DurationUnit.MINUTES)
        assert resumed._calls._run is not None
        assert resumed._calls._run.limits == Limits(count=2, seconds=3600.0)


def test_a_directory_in_use_and_one_with_an_older_run(tmp_path: Path) -> None:
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as running:
        with pytest.raises(DataError, match="a directory that no run is using"):
            context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path))
        running.train(1)
    with (
        context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path)) as other,
        pytest.raises(DataError, match="expected a directory without checkpoints"),
    ):
        other.train(1)
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path, overwrite=True)) as other:
        other.train(2, TrainingUnit.TASKS)
    assert files(tmp_path) == [2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_ends_training_after_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)

    class Signalling(Monitor):
        def record(self, record: Record) -> None:
            if record.epoch == 2:
                threading.Thread(target=self.send).start()

        def send(self) -> None:
            time.sleep(0.05)
            os.kill(os.getpid(), number)

    with context(perceptron(), data=DATA) as unbroken:
        expected = unbroken.train_and_test(4)
    with (
        context(perceptron(), data=DATA, checkpoints=Checkpoints(tmp_path), monitors=[Signalling()]) as running,
        pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Terminated) as ended,
    ):
        running.train_and_test(10**6)
    assert signal.getsignal(number) is before
    if number != signal.SIGINT:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 143
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        done = resumed.continue_training(count=-(-resumed.summary().tasks // 10))
        same = min(4, len(done.records))
        assert [each.loss for each in done.records[:same]] == [each.loss for each in expected.records[:same]]
        assert [each.epoch for each in done.records] == list(range(1, len(done.records) + 1))
