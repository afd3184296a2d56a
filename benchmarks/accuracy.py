"""Test accuracy by epoch and by second: ResNet-20 on CIFAR-10 with Crossbow's SMA and with PyTorch's SGD.

    python -m benchmarks.accuracy --data-directory DIR --output DIR

Network (option A), initial weights, data, augmentation (crops after padding by 4 pixels, mirroring), batch, momentum,
weight decay and the learning rate by epoch (a warm-up of two epochs, then half a cosine) are the same. Crossbow trains
two learners of one thread, each with this batch, and tests their average; PyTorch trains one model on two threads, from
tensors that are converted in advance, channels-last, with foreach SGD. The order of the images and the crops differ.

Each run is a separate process and writes a file to DIR. Runs with a file are not repeated, so the command can be
interrupted and continued. The runs may be made on a busy machine, or on several machines.

The seconds of a run depend on the machine and on other programs. With `--speed-rounds N`, an epoch's seconds are
measured separately on a part of the images, in N turns of each system, and kept in DIR; the report then uses them for
every epoch. Only training counts as time. Use this option on a quiet machine, after all runs have their files.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, require_torch
from benchmarks.networks import torch_resnet
from benchmarks.output import write_json
from benchmarks.parts import run_part
from benchmarks.report import markdown
from benchmarks.torch_data import PADDING, augmented, tensors
from crossbow import Dataset, ExecutionContext, ModelConf, Monitor, Record, SolverConf, SystemConf
from crossbow.console import run_command
from crossbow.data import cifar10
from crossbow.files import make_directory, write_whole
from crossbow.ops import DataTransform
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.solver import Schedule
from crossbow.types import DataError
from models.resnet import resnet

DEPTH = 20
LEARNERS = 2
MOMENTUM = 0.9
WARM_UP = 2
"""Epochs."""
TARGET = 0.85
"""Target test accuracy, in (0, 1]. The report has the seconds until it is reached."""
SPEED_SHARE = 0.1
"""Fraction of the training images on which speed is measured."""
MODULE = "benchmarks.accuracy"
SPEEDS = "speeds.json"
SYSTEMS = ("crossbow", "pytorch")
TITLES = {"crossbow": "Crossbow, SMA, 2 learners", "pytorch": "PyTorch"}


@dataclass(frozen=True)
class Setting:
    """A run."""

    system: str
    seed: int
    epochs: int
    batch: int
    """Images in a batch, of each learner."""
    rate: float
    """Learning rate after the warm-up."""
    weight_decay: float

    @property
    def name(self) -> str:
        return (
            f"{self.system}-{self.epochs}-epochs-batch-{self.batch}-rate-{self.rate:g}-decay-{self.weight_decay:g}"
            f"-seed-{self.seed}"
        )

    @property
    def solver(self) -> SolverConf:
        """The configuration of the solver, which is the same for both systems."""
        return SolverConf(
            learning_rate=self.rate,
            policy="cosine",
            decay_steps=self.epochs,
            warmup_steps=min(WARM_UP, self.epochs),
            learning_rate_step_unit="epochs",
            momentum=MOMENTUM,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Point:
    """The end of an epoch."""

    accuracy: float
    """Accuracy on the test images, in [0, 1]."""
    seconds: float
    """Seconds of training since the start of the run."""


@dataclass(frozen=True)
class Run:
    """A finished run: a point for each epoch."""

    setting: Setting
    points: tuple[Point, ...]

    def to_target(self) -> Point | None:
        """The first test that reached the target, if any."""
        return next((point for point in self.points if point.accuracy >= TARGET), None)

    def at_speed(self, seconds: float) -> Run:
        """The same run with the times that it would have if an epoch took this many seconds."""
        points = (Point(point.accuracy, seconds * (index + 1)) for index, point in enumerate(self.points))
        return Run(self.setting, tuple(points))


class _Points(Monitor):
    """Collects the end of every epoch."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def record(self, record: Record) -> None:
        if record.test is not None and record.test.accuracy is not None:
            self.points.append(Point(record.test.accuracy, record.time))
            print(f"Crossbow: epoch {record.epoch:g}, {record.test.accuracy:.2%}, {record.time:.0f} s", flush=True)


def _context(setting: Setting, data: Dataset, *monitors: Monitor) -> ExecutionContext:
    transform = DataTransform(crop_size=32, padding=PADDING, mirror=True, mean=0.5, scale=2.0)
    return ExecutionContext(
        [resnet(DEPTH, transform=transform), None],
        data=data,
        model=ModelConf(batch_size=setting.batch),
        solver=setting.solver,
        system=SystemConf(learners_per_device=LEARNERS, threads_per_learner=1, seed=setting.seed),
        monitors=monitors,
    )


def train_crossbow(setting: Setting, data: Dataset) -> list[Point]:
    """SMA with two learners of one thread each."""
    tests = _Points()
    with _context(setting, data, tests) as context:
        context.train_and_test(setting.epochs)
    return tests.points


def train_torch(setting: Setting, data: Dataset) -> list[Point]:
    """One model on two threads, from the initial variables of Crossbow's network."""
    import torch
    from torch.nn.functional import cross_entropy

    assert data.check is not None
    torch.set_num_threads(2)
    with _context(setting, data) as context:
        variables = {name: value.copy() for name, value in context.variables.items() if "running" not in name}
    model = _torch_model(list(variables.values()))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=setting.rate, momentum=MOMENTUM, weight_decay=setting.weight_decay, foreach=True
    )
    x, y = tensors(data, data.train, padded=True)
    x_check, y_check = tensors(data, data.check, padded=False)
    generator = torch.Generator().manual_seed(setting.seed)
    count, size = len(y), data.image_shape[-1]
    schedule, done, seconds = Schedule(setting.solver, count / setting.batch), 0, 0.0
    points: list[Point] = []
    for epoch in range(setting.epochs):
        order, began = torch.randperm(count, generator=generator), time.perf_counter()
        model.train()
        for start in range(0, count - setting.batch + 1, setting.batch):
            optimiser.param_groups[0]["lr"] = schedule(done).rate
            chosen = order[start : start + setting.batch]
            loss: Any = cross_entropy(model(augmented(x, chosen, size, generator)), y[chosen])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            done += 1
        seconds += time.perf_counter() - began
        model.eval()
        with torch.no_grad():
            parts = (slice(first, first + 500) for first in range(0, len(y_check), 500))
            right = sum(int((model(x_check[part]).argmax(1) == y_check[part]).sum()) for part in parts)
        points.append(Point(right / len(y_check), seconds))
        print(f"PyTorch: epoch {epoch + 1}, {points[-1].accuracy:.2%}, {seconds:.0f} s", flush=True)
    return points


def _torch_model(values: Sequence[NDArray[Any]]) -> Any:
    """PyTorch's network with these values, channels-last."""
    import torch

    model = torch_resnet(DEPTH, projection=False).to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    if [tuple(p.shape) for p in parameters] != [value.shape for value in values]:
        raise ValueError("expected the variables of Crossbow's network in the order of PyTorch's")
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


TRAIN: dict[str, Callable[[Setting, Dataset], list[Point]]] = {"crossbow": train_crossbow, "pytorch": train_torch}


def read(file: Path) -> Run:
    """A run from its file. Raises DataError if it is damaged."""
    try:
        content = json.loads(file.read_text("utf-8"))
        return Run(Setting(**content["setting"]), tuple(Point(**point) for point in content["points"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected a run of this benchmark. Received: {error}") from error


def result(setting: Setting, output: Path, data_directory: Path | None) -> Run:
    """The result of a run, from its file if there is one. Exits with the status of a process that fails."""
    file = output / f"{setting.name}.json"
    if not file.is_file():
        run_part(MODULE, setting.name, [*_options(output, data_directory), "--run", json.dumps(asdict(setting))])
    return read(file)


def _options(output: Path, data_directory: Path | None) -> list[str]:
    """The options of every run."""
    directory = [] if data_directory is None else ["--data-directory", str(data_directory)]
    return ["--output", str(output), *directory]


def epoch_seconds(setting: Setting, data: Dataset) -> float:
    """Seconds of an epoch of all training images, from the second epoch of a part of them."""
    share = data.shard(fraction=(0, SPEED_SHARE))
    first, second = TRAIN[setting.system](replace(setting, epochs=2), share)
    return (second.seconds - first.seconds) * len(data.train) / len(share.train)


def read_speeds(output: Path) -> dict[str, list[float]]:
    """The measured seconds of an epoch, by system. Raises DataError if the file is damaged."""
    file = output / SPEEDS
    try:
        content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        return {system: [float(value) for value in content[system]] for system in SYSTEMS if system in content}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{file}: expected seconds of an epoch by system. Received: {error}") from error


def measure_speeds(settings: Sequence[Setting], rounds: int, output: Path, data_directory: Path | None) -> None:
    """Measure an epoch's seconds with each of the settings, in turns, in separate processes."""
    measured: dict[str, list[float]] = {setting.system: [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            options = [*_options(output, data_directory), "--speed", json.dumps(asdict(setting))]
            printed = run_part(MODULE, setting.name, options, captured=True)
            measured[setting.system].append(float(printed.splitlines()[-1]))
            print(f"{TITLES[setting.system]}: {measured[setting.system][-1]:.1f} s an epoch", flush=True)
    write_json(output / SPEEDS, measured)


def report(runs: Sequence[Run]) -> str:
    """The accuracies of every run by seed, the difference of the medians, and the seconds to the target."""
    epochs = runs[0].setting.epochs
    shown = sorted({*range(5, epochs, 5), epochs})
    rows = [
        [TITLES[run.setting.system], str(run.setting.seed)]
        + [f"{run.points[epoch - 1].accuracy:.2%}" for epoch in shown]
        + [f"{run.points[-1].seconds:,.0f}"]
        for run in runs
    ]
    head = ["system", "seed", *(f"epoch {epoch}" for epoch in shown), "seconds"]
    last = {
        system: statistics.median(run.points[-1].accuracy for run in runs if run.setting.system == system)
        for system in dict.fromkeys(run.setting.system for run in runs)
    }
    lines = [f"- {TITLES[system]}: {accuracy:.2%} in the median of the seeds" for system, accuracy in last.items()]
    if len(last) == len(SYSTEMS):
        lines.append(f"- difference: {100 * (last['crossbow'] - last['pytorch']):+.2f} points")
    times = {
        system: statistics.median(
            math.inf if (point := run.to_target()) is None else point.seconds
            for run in runs
            if run.setting.system == system
        )
        for system in last
    }
    for system, seconds in times.items():
        how = f"{seconds:,.0f} s to {TARGET:.0%}" if math.isfinite(seconds) else f"{TARGET:.0%} not reached"
        lines.append(f"- {TITLES[system]}: {how} in the median")
    if len(times) == len(SYSTEMS) and all(map(math.isfinite, times.values())):
        lines.append(f"- ratio of these seconds: {times['pytorch'] / times['crossbow']:.2f}")
    return markdown(head, rows) + "\n\n" + "\n".join(lines)


def draw(runs: Sequence[Run], directory: Path) -> None:
    """Write a picture: test accuracy over epochs, and over seconds of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_epoch, by_second = figure.subplots(1, 2, sharey=True)
    labelled: set[str] = set()
    for run in runs:
        system = run.setting.system
        label = None if system in labelled else TITLES[system]
        labelled.add(system)
        accuracy, colour = [point.accuracy for point in run.points], f"C{SYSTEMS.index(system)}"
        by_epoch.plot(np.arange(len(accuracy)) + 1, accuracy, color=colour, label=label, linewidth=1)
        by_second.plot([point.seconds for point in run.points], accuracy, color=colour, linewidth=1)
    by_epoch.set(xlabel="epochs", ylabel="test accuracy", ylim=(0.5, 0.95))
    by_second.set_xlabel("seconds of training")
    by_epoch.legend(loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(directory / "resnet-20.png", content.getvalue())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data-directory", type=expanded_path, help="where CIFAR-10 lies; None: it is downloaded")
    add("--output", type=expanded_path, default=Path("output/accuracy"), metavar="DIR", help="directory of the results")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="what to train")
    add("--seeds", nargs="+", type=integer(0), default=[0, 1, 2], metavar="N", help="seeds of weights, order and crops")
    add("--epochs", type=integer(1), default=40, metavar="N", help="length of every run")
    add("--batch-size", type=integer(1), default=64, metavar="N", help="images in a batch, of each learner")
    add("--learning-rate", type=number(0, above=True), default=0.1, metavar="X", help="rate after the warm-up")
    add("--weight-decay", type=number(0), default=5e-4, metavar="X", help="penalty of the weights")
    add("--speed-rounds", type=integer(0), default=0, metavar="N", help="measure an epoch's seconds this many times")
    add("--run", help=argparse.SUPPRESS)
    add("--speed", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    make_directory(options.output)
    if options.run is not None:
        setting = Setting(**json.loads(options.run))
        run = Run(setting, tuple(TRAIN[setting.system](setting, cifar10(options.data_directory))))
        write_json(options.output / f"{setting.name}.json", asdict(run))
        return 0
    if options.speed is not None:
        setting = Setting(**json.loads(options.speed))
        print(epoch_seconds(setting, cifar10(options.data_directory)))
        return 0
    settings = [
        Setting(system, seed, options.epochs, options.batch_size, options.learning_rate, options.weight_decay)
        for seed in options.seeds
        for system in options.systems
    ]
    missing = [setting for setting in settings if not (options.output / f"{setting.name}.json").is_file()]
    if options.speed_rounds or any(setting.system == "pytorch" for setting in missing):
        require_torch("without it, use --systems crossbow")  # said now, because its turn may come only after hours
    runs = [result(setting, options.output, options.data_directory) for setting in settings]
    if options.speed_rounds:
        measured = settings[: len(options.systems)]  # one of each system
        measure_speeds(measured, options.speed_rounds, options.output, options.data_directory)
    speeds = {system: statistics.median(seconds) for system, seconds in read_speeds(options.output).items()}
    if speeds:
        print(*(f"- {TITLES[system]}: {seconds:.1f} s an epoch" for system, seconds in speeds.items()), sep="\n")
        runs = [run.at_speed(speeds[system]) if (system := run.setting.system) in speeds else run for run in runs]
    draw(runs, options.output)
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()))
    print(f"\n{report(runs)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(f"python -m {MODULE}", main))
