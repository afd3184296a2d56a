"""Seconds of training to a test accuracy: Crossbow with SMA and two learners, PyTorch with one model on two threads.

    python -m benchmarks.time_to_accuracy --data-directory DIR --output DIR

Both systems choose their batch size and learning rate with the first seed, out of `--batches` and three rates each. The
chosen setting is then trained with all seeds, in turns. PyTorch trains from tensors that are converted in advance,
channels-last, with foreach SGD. Only training counts: both systems pause the clock while they test, every quarter of an
epoch. Momentum, weight decay, data and augmentation are the same.

LeNet's learning rate is constant, and the setting that reaches the target first is chosen. ResNet-20 needs a decaying
rate: after a warm-up of one epoch, it falls to 0 by half a cosine within the epochs of the run. Such a run takes long,
so the choice is made by trials, whose rate falls within three epochs: the highest accuracy at their end counts.

Each run is a separate process and writes a file to DIR. Runs with a file are not repeated, so the command can be
interrupted and continued.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, require_torch
from benchmarks.networks import NETWORKS, torch_resnet
from benchmarks.output import write_json
from benchmarks.parts import run_part
from benchmarks.report import markdown
from benchmarks.torch_data import PADDING, augmented, tensors
from crossbow import (
    Dataflow,
    Dataset,
    ExecutionContext,
    ModelConf,
    Monitor,
    Record,
    SolverConf,
    SystemConf,
    TrainingUnit,
)
from crossbow.console import run_command
from crossbow.data import cifar10, mnist
from crossbow.files import make_directory, write_whole
from crossbow.ops import DataTransform
from crossbow.scripts.values import expanded_path, integer
from crossbow.solver import Schedule
from crossbow.types import DataError, NonFiniteError, NonFiniteLossError, TaskError
from models.lenet import lenet
from models.resnet import resnet

MODULE = "benchmarks.time_to_accuracy"
SYSTEMS = ("crossbow", "pytorch")
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
TESTS_PER_EPOCH = 4
LIMIT = 1e4
"""Maximum number of seconds of training of a run."""


@dataclass(frozen=True)
class Task:
    """A network, its data and the accuracy to reach."""

    data: Callable[[Path | None], Dataset]
    target: float
    """Test accuracy, in (0, 1]."""
    build: Callable[[], Dataflow]
    torch: Callable[[], Any]
    """The same network as a PyTorch module."""
    augmented: bool
    """Whether training images are cropped at random from padded ones, and half of them mirrored."""
    rates: Mapping[str, Mapping[int, Sequence[float]]]
    """By system and batch size: three learning rates."""
    epochs: int
    """Maximum number of epochs of a run."""
    trial_epochs: int | None = None
    """Length of the runs that choose the setting. The learning rate then decays in all runs. None: it is constant."""

    def solver(self, setting: Setting) -> SolverConf:
        """The configuration of the solver, the same for both systems."""
        constant = SolverConf(learning_rate=setting.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        if self.trial_epochs is None:
            return constant
        return replace(
            constant, policy="cosine", decay_steps=setting.epochs, warmup_steps=1, learning_rate_step_unit="epochs"
        )


def _rates(factor: float, batches: Sequence[int]) -> Mapping[int, Sequence[float]]:
    """Three learning rates by batch size, in proportion to its square root. factor: the middle one for 64 images."""
    return {b: tuple(round(factor * step * math.sqrt(b / 64), 5) for step in (0.5, 1.0, 2.0)) for b in batches}


TASKS = {
    "lenet": Task(
        data=mnist,
        target=0.99,
        build=lambda: lenet("caffe"),
        torch=lambda: NETWORKS["lenet-caffe"].torch(),
        augmented=False,
        rates={
            "crossbow": _rates(0.05, (8, 16, 32, 64)),
            "pytorch": _rates(0.03, (16, 32, 64, 128, 256)),
        },
        epochs=10,
    ),
    "resnet-20": Task(
        data=cifar10,
        target=0.85,
        build=lambda: resnet(
            20, transform=DataTransform(crop_size=32, padding=PADDING, mirror=True, mean=0.5, scale=2.0)
        ),
        torch=lambda: torch_resnet(20, projection=False),
        augmented=True,
        rates={
            "crossbow": _rates(0.2, (8, 16, 32, 64)),
            "pytorch": _rates(0.1, (16, 32, 64, 128, 256)),
        },
        epochs=20,
        trial_epochs=3,
    ),
}


@dataclass(frozen=True)
class Setting:
    """A run."""

    network: str
    system: str
    batch: int
    rate: float
    seed: int
    epochs: int
    """Maximum number of epochs. A decaying learning rate reaches its end after as many."""
    limit: float
    """Maximum number of seconds of training."""
    purpose: str
    """"selection" or "measurement"."""

    @property
    def name(self) -> str:
        return (
            f"{self.purpose}-{self.network}-{self.system}-{self.epochs}-epochs-batch-{self.batch}-rate-{self.rate:g}"
            f"-seed-{self.seed}"
        )


@dataclass(frozen=True)
class Point:
    """A test."""

    epoch: float
    seconds: float
    """Seconds of training since the start of the run."""
    accuracy: float


@dataclass(frozen=True)
class Run:
    """A finished run: all its tests, up to the first one that reached the target."""

    setting: Setting
    points: tuple[Point, ...]

    def reached(self) -> Point | None:
        """The test that reached the target, if any."""
        target = TASKS[self.setting.network].target
        return next((point for point in self.points if point.accuracy >= target), None)

    @property
    def seconds(self) -> float:
        """Seconds to the target; infinite if it was not reached."""
        point = self.reached()
        return math.inf if point is None else point.seconds

    @property
    def final_accuracy(self) -> float:
        """Accuracy of the last test; 0 without one, because training diverged."""
        return self.points[-1].accuracy if self.points else 0.0

    @property
    def outcome(self) -> str:
        """The result in words."""
        point = self.reached()
        if point is not None:
            return f"{point.seconds:.1f} s ({point.epoch:.2f} epochs)"
        return f"not reached; {self.final_accuracy:.2%} at the end"

    def better_than(self, other: Run) -> bool:
        """Whether its setting is the better choice."""
        if TASKS[self.setting.network].trial_epochs is None:
            return self.seconds < other.seconds
        return self.final_accuracy > other.final_accuracy


class _Points(Monitor):
    """Collects the tests of a run."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def record(self, record: Record) -> None:
        if record.test is not None and record.test.accuracy is not None:
            self.points.append(Point(record.epoch, record.time, record.test.accuracy))


def train_crossbow(setting: Setting, task: Task, data: Dataset) -> list[Point]:
    """SMA with two learners of one thread each."""
    tests = _Points()
    context = ExecutionContext(
        [task.build(), None],
        data=data,
        model=ModelConf(
            batch_size=setting.batch,
            test_interval=max(2, len(data.train) // setting.batch // TESTS_PER_EPOCH),
            test_interval_unit=TrainingUnit.TASKS,
        ),
        solver=task.solver(setting),
        system=SystemConf(learners_per_device=2, threads_per_learner=1, seed=setting.seed),
        monitors=[tests],
    )
    # If training diverges, the target is not reached.
    with context, contextlib.suppress(NonFiniteError, NonFiniteLossError, TaskError):
        context.train_and_test(setting.epochs, target_accuracy=task.target, duration=setting.limit)
    return tests.points


def train_torch(setting: Setting, task: Task, data: Dataset) -> list[Point]:
    """One model on two threads."""
    import torch
    from torch.nn.functional import cross_entropy

    assert data.check is not None
    torch.set_num_threads(2)
    torch.manual_seed(setting.seed)
    last = torch.channels_last
    model = task.torch().to(memory_format=last)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=setting.rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, foreach=True
    )
    x, y = tensors(data, data.train, padded=task.augmented)
    x_check, y_check = tensors(data, data.check, padded=False)
    count, size = len(y), data.image_shape[-1]
    generator = torch.Generator().manual_seed(setting.seed)

    def batch_of(chosen: Any) -> Any:
        if task.augmented:
            return augmented(x, chosen, size, generator)
        return x[chosen].contiguous(memory_format=last)

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(x_check[start : start + 500]).argmax(1) == y_check[start : start + 500]).sum())
                for start in range(0, len(y_check), 500)
            )
        model.train()
        return right / len(y_check)

    schedule, points = Schedule(task.solver(setting), count / setting.batch), list[Point]()
    seconds, done, step = 0.0, 0, max(1, count // setting.batch // TESTS_PER_EPOCH)
    for epoch in range(setting.epochs):
        order, began = torch.randperm(count, generator=generator), time.perf_counter()
        for start in range(0, count - setting.batch + 1, setting.batch):
            optimiser.param_groups[0]["lr"] = schedule(done).rate
            chosen = order[start : start + setting.batch]
            loss: Any = cross_entropy(model(batch_of(chosen)), y[chosen])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            done += 1
            if done % step == 0:
                seconds += time.perf_counter() - began
                if not math.isfinite(loss.item()):
                    return points
                points.append(Point(epoch + (start + setting.batch) / count, seconds, accuracy()))
                if points[-1].accuracy >= task.target or seconds > setting.limit:
                    return points
                began = time.perf_counter()
        seconds += time.perf_counter() - began
    return points


TRAIN = {"crossbow": train_crossbow, "pytorch": train_torch}


class Contest:
    """Runs settings in separate processes, and keeps their results in files."""

    def __init__(self, output: Path, data_directory: Path | None) -> None:
        self.output, self.data_directory = output, data_directory
        make_directory(output)

    def run(self, setting: Setting) -> Run:
        """The result of a run, from its file if there is one. Exits with the status of a process that fails."""
        file = self.output / f"{setting.name}.json"
        if not file.is_file():
            directory = [] if self.data_directory is None else ["--data-directory", str(self.data_directory)]
            options = ["--output", str(self.output), *directory, "--run", json.dumps(asdict(setting))]
            run_part(MODULE, setting.name, options)
        run = read(file)
        print(f"{setting.name}: {run.outcome}", flush=True)
        return run


def read(file: Path) -> Run:
    """A run from its file. Raises DataError if it is damaged."""
    try:
        content = json.loads(file.read_text("utf-8"))
        return Run(Setting(**content["setting"]), tuple(Point(**point) for point in content["points"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected a run of this benchmark. Received: {error}") from error


def batches_of(network: str, system: str, batches: Sequence[int] | None) -> list[int]:
    """The batch sizes to select from: all of the task, or those among `batches`. Raises DataError if there are none."""
    known = list(TASKS[network].rates[system])
    found = [batch for batch in known if batches is None or batch in batches]
    if not found:
        raise DataError(f"expected batches of {known} for {system}. Received: {batches}")
    return found


def select(contest: Contest, network: str, system: str, batches: Sequence[int] | None, seed: int) -> Run:
    """The best run with one seed, over all batch sizes and learning rates. If the fastest run is selected, each run
    ends as soon as it is slower than the fastest one so far."""
    task, best = TASKS[network], None
    epochs = task.epochs if task.trial_epochs is None else task.trial_epochs
    for batch in batches_of(network, system, batches):
        for rate in task.rates[system][batch]:
            limit = LIMIT if best is None else min(LIMIT, best.seconds)
            run = contest.run(Setting(network, system, batch, rate, seed, epochs, round(limit, 3), "selection"))
            if best is None or run.better_than(best):
                best = run
    assert best is not None
    return best


def report(runs: Sequence[Run]) -> str:
    """A table of all runs of the selected settings, and the ratio of the medians."""
    rows = []
    for run in runs:
        point, setting = run.reached(), run.setting
        reached = ["–", "–"] if point is None else [f"{point.epoch:.2f}", f"{point.seconds:.1f}"]
        rows.append(
            [setting.network, setting.system, str(setting.batch), f"{setting.rate:g}", str(setting.seed), *reached]
        )
    lines = [markdown(["network", "system", "batch", "rate", "seed", "epochs", "seconds"], rows), ""]
    for network in dict.fromkeys(run.setting.network for run in runs):
        medians = {
            system: statistics.median(
                r.seconds for r in runs if (r.setting.network, r.setting.system) == (network, system)
            )
            for system in SYSTEMS
        }
        ours, theirs = (medians[system] for system in SYSTEMS)
        target = TASKS[network].target
        lines.append(
            f"{network} to {target:.1%}: Crossbow {ours:.1f} s, PyTorch {theirs:.1f} s, ratio {theirs / ours:.2f}"
        )
    return "\n".join(lines)


def draw(runs: Sequence[Run], directory: Path) -> None:
    """Write a picture for each network: test accuracy over seconds of training."""
    import io

    from matplotlib.figure import Figure

    for network in dict.fromkeys(run.setting.network for run in runs):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for run in (run for run in runs if run.setting.network == network):
            system = run.setting.system
            label = f"{system}, batch {run.setting.batch}" if run.setting.seed == runs[0].setting.seed else None
            seconds, accuracy = [p.seconds for p in run.points], [p.accuracy for p in run.points]
            axes.plot(seconds, accuracy, color=f"C{SYSTEMS.index(system)}", label=label, marker="o", markersize=2)
        target = TASKS[network].target
        axes.axhline(target, color="grey", linewidth=0.8, linestyle="--")
        axes.set_ylim(2 * target - 1 - 0.05 * (1 - target), target + 0.1 * (1 - target))
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("test accuracy")
        axes.set_title(f"{network}: Crossbow with two learners, PyTorch with two threads")
        axes.legend()
        content = io.BytesIO()
        figure.savefig(content, format="png")
        write_whole(directory / f"{network}.png", content.getvalue())


def train(setting: Setting, data_directory: Path | None) -> Run:
    """Train a run in this process."""
    task = TASKS[setting.network]
    return Run(setting, tuple(TRAIN[setting.system](setting, task, task.data(data_directory))))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--networks", nargs="+", choices=TASKS, default=["lenet"], help="networks to train (default: lenet)"
    )
    parser.add_argument("--data-directory", type=expanded_path, help="directory of the data (default: download)")
    parser.add_argument(
        "--output",
        type=expanded_path,
        default=Path("output/time-to-accuracy"),
        help="directory of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=integer(0),
        nargs="+",
        default=[0, 1, 2],
        help="seeds of the runs, the first of which also chooses the settings (default: 0 1 2)",
    )
    parser.add_argument("--batches", type=integer(1), nargs="+", help="batch sizes to select from (default: all)")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:  # checked now, because the second system's turn comes only after hours
        for network in options.networks:
            for system in SYSTEMS:
                batches_of(network, system, options.batches)
    except DataError as error:
        parser.error(f"--batches: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.run is not None:
        run = train(Setting(**json.loads(options.run)), options.data_directory)
        write_json(options.output / f"{run.setting.name}.json", asdict(run))
        return 0
    if not list(options.output.glob("*pytorch*.json")):
        require_torch("half of the runs need it")  # said now, because its turn comes only after hours
    contest, runs = Contest(options.output, options.data_directory), list[Run]()
    for network in options.networks:
        chosen = [select(contest, network, system, options.batches, options.seeds[0]).setting for system in SYSTEMS]
        for seed in options.seeds:
            for setting in chosen:
                measured = replace(setting, seed=seed, epochs=TASKS[network].epochs, limit=LIMIT, purpose="measurement")
                runs.append(contest.run(measured))
    draw(runs, options.output)
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()))
    print(report(runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(f"python -m {MODULE}", main))
