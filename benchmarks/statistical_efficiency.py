"""Statistical efficiency: epochs and time to an accuracy, by rule, learners and batch. LeNet on MNIST.

    python -m benchmarks.statistical_efficiency --data-directory DIR

The program trains a grid of rules, learners, batches and seeds. Every run is a process and writes one file to the
output directory atomically. The program may be stopped at any time; when restarted, it starts only the missing runs. It
runs seed after seed and alternates rules, so that a partial grid is useful. At the end it writes a table and plots of
the available results, and lists the missing runs; `--report-only` does only this.

Under a rule with a barrier, the number of epochs does not depend on other programs. Without a barrier (easgd) it does,
because learners finish in another order, and z differs; for those runs, the report states separately how busy other
programs were. The seconds of a run always depend on other programs. So speed is measured separately, in short
interleaved turns of all cells of the grid: `--speed-rounds 3`, on a quiet machine. Seconds to the target are epochs to
the target times seconds per epoch.

All runs use one solver: SGD with a fixed learning rate, momentum 0.9 and weight decay 5e-4, as Caffe trains LeNet
(examples/mnist/lenet_solver.prototxt), but without its decay of the learning rate, with which an epoch's steps would
depend on the number of previous epochs. The learning rate is proportional to the batch (Goyal et al., 2017), 0.02 for
32 images, and at most 0.05. It was chosen for plain SGD, which is S-SGD with one learner, and which at 0.03 and batches
of 32 no longer reaches 99 %; docs/results.md has results of other rates. A learner's batch and rate do not depend on
the number of learners, because Crossbow claims that more learners need no other rate. Under S-SGD, k learners with
batch b are SGD with batch k·b, at this same rate; `--scale-rate` multiplies it by k there. The elastic rules use α =
1/k (1/2 with one learner): the default of SMA, and the same for asynchronous EASGD.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.efficiency_pictures import write_pictures
from benchmarks.efficiency_report import cells, missing, refused, report, verdict
from benchmarks.efficiency_run import REFUSED, RunResult, RunSettings, Speed, digest, read_result, speed_settings
from crossbow import SolverConf
from crossbow.console import run_command
from crossbow.data import mnist
from crossbow.files import make_directory, write_whole
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.synch import EASGD, RULES, SMA, SSGD, rule_class
from crossbow.types import CrossbowError, DataError
from models.lenet import VARIANTS

RULE_NAMES = ("sma", "ssgd", "easgd", "model-averaging")
LEARNERS, BATCHES, SEEDS = (1, 2, 4, 8), (32, 128, 8), (0, 1, 2)
"""The grid of the table in docs/results.md. Batch 8 is last in every seed, because its epochs take longest."""
FULL_RATE = 80
"""Batch from which on the learning rate is the given one."""
OUTPUT = Path("output/statistical-efficiency")
SPEEDS = "speeds.json"
FAILED, WRONG, INTERRUPTED = 1, 2, 130

Run = Callable[[RunSettings, argparse.Namespace], None]
Measure = Callable[[RunSettings, argparse.Namespace], Speed | None]


def grid(options: argparse.Namespace, data: str) -> list[RunSettings]:
    """The runs in the order of execution. data: digest of the data set. Raises ConfigurationError."""
    return [
        RunSettings(
            rule=rule,
            learners=learners,
            batch_size=batch_size,
            seed=seed,
            rule_parameters=_rule_parameters(options, rule, learners),
            solver=_solver(options, rule, learners, batch_size),
            target=options.target_accuracy,
            further_epochs=options.further_epochs,
            max_epochs=options.max_epochs,
            variant=options.variant,
            devices=options.devices,
            threads_per_learner=options.threads_per_learner,
            data=data,
        )
        for seed in dict.fromkeys(options.seeds)
        for batch_size in dict.fromkeys(options.batches)
        for learners in dict.fromkeys(options.learners)
        for rule in dict.fromkeys(options.rules)
    ]


def _rule_parameters(options: argparse.Namespace, name: str, learners: int) -> dict[str, Any]:
    """All fields of the rule, so that a changed default results in different runs."""
    given: dict[str, Any] = {}
    if name == EASGD.name:
        given["alpha"] = 1 / max(learners, 2)
    elif name == SMA.name:
        given["base_momentum"] = options.base_momentum
    return asdict(rule_class(name)(**given))  # type: ignore[call-overload,no-any-return] # every rule is a dataclass


def _solver(options: argparse.Namespace, rule: str, learners: int, batch_size: int) -> dict[str, Any]:
    rate = options.learning_rate * min(batch_size, FULL_RATE) / FULL_RATE
    return asdict(
        SolverConf(
            learning_rate=rate * (learners if options.scale_rate and rule == SSGD.name else 1),
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            clip_gradient_norm=options.clip_gradient_norm or None,
        )
    )


def run_apart(settings: RunSettings, options: argparse.Namespace) -> None:
    """Run in a separate process, which writes the result. Its output goes to standard error."""
    command = [sys.executable, "-m", "benchmarks.efficiency_run", "--settings", json.dumps(asdict(settings))]
    command += ["--output-directory", str(options.output_directory), "--parent", str(os.getpid())]
    if options.data_directory is not None:
        command += ["--data-directory", str(options.data_directory)]
    subprocess.run(command, check=False)


def measure_apart(settings: RunSettings, options: argparse.Namespace) -> Speed | None:
    """The speed, measured in a separate process; None if that failed."""
    command = [sys.executable, "-m", "benchmarks.efficiency_run", "--settings", json.dumps(asdict(settings))]
    command += ["--seconds", str(options.speed_seconds)]
    if options.data_directory is not None:
        command += ["--data-directory", str(options.data_directory)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return Speed(**json.loads(done.stdout)) if done.returncode == 0 else None


# Available results


def read_results(directory: Path) -> dict[str, RunResult]:
    """All results in the directory by the name of their settings. Invalid files are reported and skipped."""
    found = {}
    for path in sorted(set(directory.glob("*.json")) - {directory / SPEEDS}):
        try:
            found[path.name] = read_result(path)
        except (ValueError, OSError) as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def _data(options: argparse.Namespace, found: Mapping[str, RunResult]) -> str:
    """The digest of the data set; for a report, that of the results. Raises DataError."""
    if options.report_only and options.data_directory is None:
        known = sorted({result.settings.data for result in found.values()})
        if len(known) > 1:
            raise DataError(
                f"{options.output_directory}: expected results of one data set, or --data-directory to say of which. "
                f"Received: those of {', '.join(known)}"
            )
        return known[0] if known else ""
    try:
        return digest(mnist(options.data_directory))
    except DataError as error:
        if options.data_directory is not None:
            raise
        raise DataError(
            "MNIST is missing, and could not be downloaded: name a directory that holds its four files with "
            "--data-directory"
        ) from error


# Missing runs


class Budget:
    """A time limit in seconds, after which no run is started; None is unlimited."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began, self._said = seconds, time.monotonic(), False

    def is_spent(self) -> bool:
        """Whether the time is over. The first call that finds this prints it."""
        if self._seconds is None or time.monotonic() - self._began < self._seconds:
            return False
        if not self._said:
            print(f"the budget of {self._seconds:g} s is spent", file=sys.stderr)
            self._said = True
        return True


def run_missing(
    runs: Sequence[RunSettings], found: dict[str, RunResult], options: argparse.Namespace, run: Run, budget: Budget
) -> list[RunSettings]:
    """Start the missing runs, and add their results to `found`. Returns the runs without a result."""
    failed = []
    for number_of_run, settings in enumerate(runs, 1):
        known = found.get(settings.name)
        if known is not None and not (known.status == REFUSED and options.retry_refused):
            continue
        if budget.is_spent():
            break
        print(f"{number_of_run} of {len(runs)}: {settings} …", file=sys.stderr, flush=True)
        run(settings, options)
        try:
            found[settings.name] = read_result(options.output_directory / settings.name)
        except (ValueError, OSError):
            failed.append(settings)
            print(f"{settings}: failed, and left no result", file=sys.stderr, flush=True)
        else:
            print(f"    {_summary(found[settings.name])}", file=sys.stderr, flush=True)
    return failed


def _summary(result: RunResult) -> str:
    if result.sentence:
        return f"{result.status}: {result.sentence}"
    last = result.epochs[-1]
    reached = "" if result.epochs_to_target is None else f", after {result.epochs_to_target} at the target"
    return f"{len(result.epochs)} epochs{reached}, {last.accuracy:.2%}, {last.seconds:.1f} s"


# Speed


def read_speeds(directory: Path) -> dict[str, list[Speed]]:
    """Measured speeds by round, by the name of the settings. Raises DataError."""
    path = directory / SPEEDS
    try:
        found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.is_file() else {}
        return {name: [Speed(**known) for known in rounds] for name, rounds in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: expected measured speeds by name. Received: {error}") from error


def measure_speeds(runs: Sequence[RunSettings], options: argparse.Namespace, measure: Measure, budget: Budget) -> None:
    """Measure the missing rounds of all cells in turns, and save each measurement. Failed measurements are reported,
    and stay missing."""
    speeds = read_speeds(options.output_directory)
    for number_of_round in range(options.speed_rounds):
        for name, settings in {speed_settings(run).name: speed_settings(run) for run in runs}.items():
            rounds = speeds.setdefault(name, [])
            if len(rounds) > number_of_round:
                continue
            if budget.is_spent():
                return
            turn, speed = f"round {number_of_round + 1}: {settings}", measure(settings, options)
            if speed is None:
                print(f"{turn}: its speed could not be measured", file=sys.stderr, flush=True)
                continue
            rounds.append(speed)
            print(f"{turn}: {speed.seconds:.2f} s an epoch", file=sys.stderr, flush=True)
            known = {each: [asdict(one) for one in measured] for each, measured in speeds.items() if measured}
            text = json.dumps(known, indent=1, allow_nan=False)
            write_whole(options.output_directory / SPEEDS, f"{text}\n".encode())


# The command line


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.statistical_efficiency",
        description="Epochs and time to an accuracy, by rule, learners and batch: LeNet on MNIST.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data-directory", type=expanded_path, metavar="DIR", help="where MNIST lies; None: it is downloaded once")
    add(
        "--output-directory",
        type=expanded_path,
        metavar="DIR",
        default=OUTPUT,
        help="where the results are, a file a run",
    )
    add(
        "--report-directory",
        type=expanded_path,
        metavar="DIR",
        help="where table and pictures go; None: beside the results",
    )
    add("--rules", nargs="+", choices=tuple(RULES), metavar="NAME", default=list(RULE_NAMES), help="rules")
    add("--learners", nargs="+", type=integer(1), metavar="K", default=list(LEARNERS), help="numbers of learners")
    add("--batches", nargs="+", type=integer(1), metavar="B", default=list(BATCHES), help="images in a learner's batch")
    add("--seeds", nargs="+", type=integer(0), metavar="S", default=list(SEEDS), help="seeds")
    add("--variant", choices=VARIANTS, default="caffe", help="of LeNet")
    add(
        "--learning-rate",
        type=number(0, above=True),
        metavar="G",
        default=0.05,
        help=f"of every learner, with batches of {FULL_RATE} or more",
    )
    add("--momentum", type=number(0), metavar="M", default=0.9, help="in [0, 1)")
    add("--weight-decay", type=number(0), metavar="L", default=5e-4, help="of the L2 penalty")
    add("--clip-gradient-norm", type=number(0), metavar="N", default=0.0, help="longer ones are shortened; 0: none")
    add("--base-momentum", type=number(0), metavar="M", default=0.0, help="sma: of the average model, in [0, 1)")
    add("--scale-rate", action="store_true", help="ssgd: the learning rate times the number of learners")
    add("--target-accuracy", type=number(0, 1, above=True), metavar="A", default=0.99, help="on the test images")
    add("--further-epochs", type=integer(0), metavar="N", default=0, help="after the one that reaches the target")
    add("--max-epochs", type=integer(1), metavar="N", default=15, help="of a run that does not reach it")
    add("--devices", default="cpu", help="as in SystemConf")
    add("--threads-per-learner", type=integer(1), metavar="N", help="None: the cores are shared among the learners")
    add("--budget", type=number(0), metavar="S", help="seconds after which no run and no measurement is begun")
    add("--speed-rounds", type=integer(0), metavar="N", default=0, help="measurements of the speed of every cell")
    add("--speed-seconds", type=number(0, above=True), metavar="S", default=3.0, help="of such a measurement")
    add("--report-only", action="store_true", help="run nothing: write table and pictures of what is there")
    add("--retry-refused", action="store_true", help="run again what the engine has refused")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, run: Run = run_apart, measure: Measure = measure_apart) -> int:
    """Run and report from the command line. Returns the exit status. run, measure: functions for one run or speed."""
    options = parse(arguments)
    failed: list[RunSettings] = []
    try:
        make_directory(options.output_directory)
        found = read_results(options.output_directory)
        runs = grid(options, _data(options, found))
        if not options.report_only:
            budget = Budget(options.budget)
            failed = run_missing(runs, found, options, run, budget)
            measure_speeds(runs, options, measure, budget)
        speeds = read_speeds(options.output_directory)
        directory = options.report_directory or options.output_directory
        write_report(runs, found, speeds, directory, options.speed_rounds)
    except CrossbowError as error:
        print(f"python -m benchmarks.statistical_efficiency: error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted: started again, it goes on with what is missing", file=sys.stderr)
        return INTERRUPTED
    return FAILED if failed else 0


def write_report(
    runs: Sequence[RunSettings],
    found: Mapping[str, RunResult],
    speeds: Mapping[str, Sequence[Speed]],
    directory: Path,
    speed_rounds: int,
) -> None:
    """Write report.md and the plots, and print the check and the missing runs. speed_rounds: requested number of rounds
    of speed measurements. Raises DataError."""
    grouped = cells(runs, found, speeds)
    pictures = write_pictures(grouped, directory)
    write_whole(directory / "report.md", report(grouped, pictures, speed_rounds).encode())
    for title, lines in (("refused", refused(grouped)), ("missing", missing(grouped, speed_rounds))):
        for line in lines:
            print(f"{title}: {line}")
    print(verdict(grouped))
    print(f"report {directory / 'report.md'}")


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.statistical_efficiency", main))
