"""What checkpoints cost: images/s of training with and without them, in turns.

Both contexts are in one process, and one trains at a time. A turn is timed from outside, so that it includes the copies
of vectors, the writing beside training, and the last checkpoint, for which training waits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.networks import LEARNING_RATE, MOMENTUM, NETWORKS, dataset
from benchmarks.report import markdown, paired, spread
from crossbow import Checkpoints, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.scripts.values import integer, number

NAMES = ("lenet-original", "resnet-32")
TARGET = 0.98
"""Speed with checkpoints, relative to that without, at an interval of 30 seconds."""


def rates(name: str, batch: int, interval: float, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    """Images/s of each turn, with checkpoints and without."""
    network = NETWORKS[name]
    data = dataset(network)
    given = {
        "data": data,
        "model": ModelConf(batch_size=batch),
        "solver": SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        "system": SystemConf(learners_per_device=2),
    }
    found: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Checkpoints(Path(directory) / "run", interval=f"{interval:g}seconds")
        with (
            ExecutionContext([network.build(), None], monitors=(), checkpoints=checkpoints, **given) as watched,
            ExecutionContext([network.build(), None], monitors=(), **given) as plain,
        ):
            for context in (watched, plain):
                context.train_for_duration(0.5)
            for turn in range(rounds):
                pair = [(watched, found[0]), (plain, found[1])]
                for context, into in pair if turn % 2 else reversed(pair):
                    into.append(_rate(context, seconds))
    return found


def _rate(context: ExecutionContext, seconds: float) -> float:
    before, began = context.summary().tasks, time.perf_counter()
    context.train_for_duration(seconds)
    tasks = context.summary().tasks - before
    return tasks * context.model.batch_size / (time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all targets are met, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoints", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=NAMES, help="(default: %(default)s)")
    parser.add_argument("--batch", type=integer(1), default=16, help="images of a learner (default: %(default)s)")
    parser.add_argument(
        "--interval",
        type=number(0, above=True),
        default=30.0,
        help="seconds (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=number(0, above=True), default=65.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=integer(1), default=3, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    print(describe_machine(), flush=True)
    rows, met = [], True
    for name in options.networks:
        with_them, without = rates(name, options.batch, options.interval, options.seconds, options.rounds)
        ratio = spread(paired(with_them, without))
        met = met and ratio.median >= TARGET
        shown = [f"{spread(each).median:,.0f}" for each in (with_them, without)]
        rows.append([name, str(options.batch), *shown, ratio.text(".3f"), f"{TARGET}"])
    head = ["network", "batch", "images/s with checkpoints", "without", "ratio", "goal"]
    print(f"\nA checkpoint every {options.interval:g} s.\n\n{markdown(head, rows)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
