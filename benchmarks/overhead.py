"""Cost of an option: images/s of training with and without it, in turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks.machine import describe_machine
from benchmarks.networks import NETWORKS
from benchmarks.report import markdown, paired, spread
from crossbow import ExecutionContext
from crossbow.scripts.values import integer, number

NAMES = ("lenet-original", "resnet-32")
Rates = tuple[list[float], list[float]]
"""Images/s of each turn, with the option and without."""


def new_parser(name: str, description: str, *, seconds: float, rounds: int) -> argparse.ArgumentParser:
    """The parser of a benchmark's options. seconds, rounds: defaults of the options of these names."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    add = parser.add_argument
    add("--networks", nargs="+", choices=tuple(NETWORKS), default=NAMES, help="(default: %(default)s)")
    add("--batch", type=integer(1), default=16, help="images of a learner (default: %(default)s)")
    add("--seconds", type=number(0, above=True), default=seconds, help="of a turn (default: %(default)s)")
    add("--rounds", type=integer(1), default=rounds, help="(default: %(default)s)")
    return parser


def rate(context: ExecutionContext, seconds: float) -> float:
    """Images/s of training for some seconds, timed from outside."""
    before, began = context.summary().tasks, time.perf_counter()
    context.train_for_duration(seconds)
    tasks = context.summary().tasks - before
    return tasks * context.model.batch_size / (time.perf_counter() - began)


def compare(options: argparse.Namespace, what: str, goal: float, measure: Callable[[str], Rates]) -> int:
    """Measure networks by name, and print a table. Returns 0 if all ratios meet the goal, else 1."""
    print("\n".join(f"- {name}: {value}" for name, value in describe_machine().items()), flush=True)
    rows, met = [], True
    for name in options.networks:
        with_it, without = measure(name)
        ratio = spread(paired(with_it, without))
        met = met and ratio.median >= goal
        shown = [f"{spread(each).median:,.0f}" for each in (with_it, without)]
        rows.append([name, str(options.batch), *shown, ratio.text(".3f"), f"{goal}"])
    head = ["network", "batch", f"images/s with {what}", "without", "ratio", "goal"]
    print(f"\n{markdown(head, rows)}")
    return 0 if met else 1
