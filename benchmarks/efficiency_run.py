"""One run of benchmarks.statistical_efficiency: its settings, which identify it, its training, and its result.

    python -m benchmarks.efficiency_run --data-directory DIR --settings JSON --output-directory DIR
    python -m benchmarks.efficiency_run --data-directory DIR --settings JSON --seconds S

It trains in its own process, so that other runs' memory, threads and caches do not disturb it, and a crash ends only
this run. The result is one file, which is written atomically. With `--seconds` it only trains for that time, and prints
the speed as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import busy_seconds, describe_machine
from crossbow import (
    Dataflow,
    Dataset,
    DurationUnit,
    ExecutionContext,
    ModelConf,
    Monitor,
    Record,
    SolverConf,
    SystemConf,
)
from crossbow.console import run_command
from crossbow.data import mnist
from crossbow.files import write_whole
from crossbow.runtime.monitor import Progress
from crossbow.scripts.values import expanded_path, number
from crossbow.synch import rule_class
from crossbow.types import ConfigurationError, CrossbowError, NonFiniteError, NonFiniteLossError, TaskError
from models.lenet import lenet

TRAINED, DIVERGED, REFUSED = "trained", "diverged", "refused"
"""Status of a run. A diverged run had non-finite numbers; a refused run did not begin."""
MACHINE = ("processor", "cores", "memory", "system", "versions")


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run. Runs with different settings are different runs."""

    rule: str
    learners: int
    batch_size: int
    """Batch size of a learner."""
    seed: int
    rule_parameters: dict[str, Any]
    solver: dict[str, Any]
    """Fields of `SolverConf`, including the learning rate of this run."""
    target: float
    """Target test accuracy, in (0, 1]."""
    further_epochs: int
    """Epochs after the one that reaches the target."""
    max_epochs: int
    variant: str
    """Variant of LeNet."""
    devices: str
    threads_per_learner: int | None
    """Threads of each learner; None shares the device's cores."""
    data: str
    """Digest of images and labels."""

    @property
    def name(self) -> str:
        """The file's name: main settings in readable form, and a digest of all settings."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.rule}-learners-{self.learners}-batch-{self.batch_size}-seed-{self.seed}-{digest}.json"

    def __str__(self) -> str:
        return f"{self.rule}, batch {self.batch_size}, learners {self.learners}, seed {self.seed}"


def speed_settings(settings: RunSettings) -> RunSettings:
    """The settings that represent all runs of equal speed: those of the first seed."""
    return replace(settings, seed=0)


@dataclass(frozen=True)
class Epoch:
    """Measurements at the end of an epoch."""

    accuracy: float
    """Accuracy on the test images, in [0, 1]."""
    seconds: float
    """Seconds of training since the start of the run, without tests."""
    loss: float
    """Mean training loss of the epoch."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    settings: RunSettings
    status: str
    """One of TRAINED, DIVERGED, REFUSED."""
    sentence: str = ""
    """The reason, if the run was not completed."""
    epochs: list[Epoch] = field(default_factory=list)
    epochs_to_target: int | None = None
    others: float | None = None
    """Processors that other programs kept busy during the run, including tests; None if unknown."""
    load: tuple[float, ...] = ()
    """The host's load average over 1, 5 and 15 minutes at the end."""
    machine: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    date: str = ""


@dataclass(frozen=True)
class Speed:
    """Training speed in one round."""

    seconds: float
    """Seconds of training per epoch, without tests."""
    others: float | None = None
    """Processors that other programs kept busy; None if unknown."""
    commit: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"expected seconds an epoch > 0. Received: {self.seconds}")


class Others:
    """Measures the CPU time of other programs from its creation on."""

    def __init__(self) -> None:
        self._busy, self._own, self._began = busy_seconds(), time.process_time(), time.perf_counter()

    def processors(self) -> float | None:
        """Number of processors that they have kept busy; None if unknown."""
        busy, elapsed = busy_seconds(), time.perf_counter() - self._began
        if busy is None or self._busy is None:
            return None
        return max(0.0, busy - self._busy - (time.process_time() - self._own)) / elapsed


def digest(data: Dataset) -> str:
    """A digest that identifies a data set."""
    assert data.check is not None
    found = hashlib.sha256()
    for part in (data.train, data.check):
        for array in (part.images, part.labels):
            found.update(f"{array.shape}{array.dtype}".encode())
            found.update(array.tobytes())
    return found.hexdigest()[:16]


def write_result(directory: Path, result: RunResult) -> None:
    """Write the result's file atomically. Raises DataError."""
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(directory / result.settings.name, f"{text}\n".encode())


def read_result(path: Path) -> RunResult:
    """The result in a file. Raises ValueError if the file has no result, or one of other settings than its name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["settings"] = RunSettings(**content["settings"])
        content["epochs"] = [Epoch(**epoch) for epoch in content["epochs"]]
        content["load"] = tuple(content["load"])
        result = RunResult(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: expected the result of a run. Received: {error}") from error
    if result.settings.name != path.name:
        raise ValueError(f"{path}: expected the settings of this name. Received: those of {result.settings.name}")
    return result


# Training


class _Epochs(Monitor):
    """Stores measurements at the end of every epoch, because a diverging run returns nothing."""

    def __init__(self, parent: int) -> None:
        """parent: the id of the process that needs the run; the run ends with it."""
        self.epochs: list[Epoch] = []
        self.before = 0.0
        """Seconds of training in previous calls."""
        self._parent = parent

    @property
    def seconds(self) -> float:
        return self.epochs[-1].seconds if self.epochs else 0.0

    def progress(self, progress: Progress) -> None:
        if os.getppid() != self._parent:
            raise SystemExit("who wanted this run has ended")

    def record(self, record: Record) -> None:
        assert record.test is not None
        assert record.test.accuracy is not None
        self.epochs.append(Epoch(record.test.accuracy, self.before + record.time, record.loss))


def train(
    settings: RunSettings, data: Dataset, build: Callable[[str], Dataflow] = lenet, parent: int | None = None
) -> RunResult:
    """Train with the given settings, and return the result. Refusal by the engine is a result; other errors are raised.

    parent: the process to end with, by default the one that started this process.
    """
    known = {name: value for name, value in describe_machine().items() if name in (*MACHINE, "commit")}
    commit = known.pop("commit")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    monitor = _Epochs(os.getppid() if parent is None else parent)
    others = Others()
    status, sentence = TRAINED, ""
    try:
        with _context(settings, data, build, monitor) as context:
            _train(settings, context, monitor)
    except ConfigurationError as error:
        if monitor.epochs:
            raise
        status, sentence = REFUSED, str(error)
    except (NonFiniteLossError, TaskError) as error:
        if isinstance(error, TaskError) and not isinstance(error.__cause__, NonFiniteError):
            raise
        status, sentence = DIVERGED, str(error)
    reached = next((n for n, epoch in enumerate(monitor.epochs, 1) if epoch.accuracy >= settings.target), None)
    return RunResult(
        settings,
        status,
        sentence,
        monitor.epochs,
        reached,
        others.processors(),
        os.getloadavg(),
        known,
        commit,
        date,
    )


def _context(
    settings: RunSettings, data: Dataset, build: Callable[[str], Dataflow], *monitors: Monitor
) -> ExecutionContext:
    rule = rule_class(settings.rule)(**settings.rule_parameters)
    return ExecutionContext(
        [build(settings.variant), None],
        data=data,
        model=ModelConf(batch_size=settings.batch_size, rule=rule),
        solver=SolverConf(**settings.solver),
        system=SystemConf(
            devices=settings.devices,
            learners_per_device=settings.learners,
            threads_per_learner=settings.threads_per_learner,
            seed=settings.seed,
        ),
        monitors=monitors,
    )


def _train(settings: RunSettings, context: ExecutionContext, monitor: _Epochs) -> None:
    """Train to the target and `further_epochs` more, but at most `max_epochs`."""
    history = context.train_and_test(settings.max_epochs, target_accuracy=settings.target)
    further = min(settings.further_epochs, settings.max_epochs - len(monitor.epochs))
    if history.stopped == "accuracy" and further:
        monitor.before = monitor.seconds
        context.train_and_test(further)


def measure_speed(
    settings: RunSettings, data: Dataset, seconds: float, build: Callable[[str], Dataflow] = lenet
) -> Speed:
    """Training speed with the given settings, without tests, measured over the given time after a warm-up."""
    known = describe_machine()
    with _context(settings, data, build) as context:
        before = context.train_for_duration(seconds / 3, DurationUnit.SECONDS).records[-1]
        others = Others()
        after = context.train_for_duration(seconds, DurationUnit.SECONDS).records[-1]
        busy = others.processors()
    return Speed(after.time / (after.epoch - before.epoch), busy, known["commit"], known["date"])


# The process


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.efficiency_run", description="One run of the grid.")
    parser.add_argument("--data-directory", type=expanded_path, help="where MNIST lies (default: it is downloaded)")
    parser.add_argument("--settings", required=True, help="JSON")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--output-directory", type=expanded_path, help="train to the end, and write the result there")
    wanted.add_argument("--seconds", type=number(0, above=True), help="measure the speed, and print it")
    parser.add_argument("--parent", type=int, help="the process to end with (default: who started this one)")
    options = parser.parse_args(arguments)
    settings = RunSettings(**json.loads(options.settings))
    try:
        data = mnist(options.data_directory)
        if digest(data) != settings.data:
            raise ConfigurationError(f"expected the data set {settings.data}. Received: {digest(data)}")
        if options.seconds:
            print(json.dumps(asdict(measure_speed(settings, data, options.seconds)), allow_nan=False))
        else:
            write_result(options.output_directory, train(settings, data, parent=options.parent))
    except CrossbowError as error:
        print(f"{settings}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.efficiency_run", main))
