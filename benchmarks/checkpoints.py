"""Cost of checkpoints: images/s of training with and without them, in turns.

Both contexts are in one process, and one trains at a time. A turn is timed from outside, so that it includes the copies
of vectors, the writing in the background, and the last checkpoint, for which training waits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.networks import LEARNING_RATE, MOMENTUM, NETWORKS, dataset
from benchmarks.overhead import Rates, compare, new_parser, rate
from crossbow import Checkpoints, ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.console import run_command
from crossbow.scripts.values import number

TARGET = 0.98
"""Speed with checkpoints, relative to that without, at an interval of 30 seconds."""


def rates(name: str, batch: int, interval: float, seconds: float, rounds: int) -> Rates:
    """Images/s of each turn, with checkpoints and without."""
    network = NETWORKS[name]
    data = dataset(network)
    given = {
        "data": data,
        "model": ModelConf(batch_size=batch),
        "solver": SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        "system": SystemConf(learners_per_device=2),
    }
    found: Rates = ([], [])
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
                    into.append(rate(context, seconds))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all targets are met, else 1."""
    parser = new_parser("checkpoints", (__doc__ or "").splitlines()[0], seconds=65.0, rounds=3)
    parser.add_argument(
        "--interval",
        type=number(0, above=True),
        default=30.0,
        help="seconds that a kill may lose; a checkpoint is written after each half (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    return compare(
        options,
        f"a checkpoint every {options.interval:g} s",
        TARGET,
        lambda name: rates(name, options.batch, options.interval, options.seconds, options.rounds),
    )


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.checkpoints", main))
