"""What a timeline costs while it is recorded: images/s of training with and without a recorder, in turns.

One context trains in all turns. Without a recording its task lists are those of a context without `Profile`, so there
is nothing else to measure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.machine import describe_machine
from benchmarks.networks import LEARNING_RATE, MOMENTUM, NETWORKS, dataset
from benchmarks.report import markdown, paired, spread
from crossbow import ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.runtime.engine import Engine
from crossbow.scripts.values import integer, number
from crossbow.timeline.recorder import Recorder

NAMES = ("lenet-original", "resnet-32")
TARGET = 0.95
"""Speed while a timeline is recorded, relative to that without."""


def rates(name: str, batch: int, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    """Images/s of each turn, with a recording and without."""
    network = NETWORKS[name]
    found: tuple[list[float], list[float]] = ([], [])
    with ExecutionContext(
        [network.build(), None],
        data=dataset(network),
        model=ModelConf(batch_size=batch),
        solver=SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        system=SystemConf(learners_per_device=2),
    ) as context:
        recorder = _recorder(context)
        recorder.start()  # the lists of timed calls are made
        context.train_for_duration(0.5)
        recorder.stop()
        for turn in range(rounds):
            for on in (True, False) if turn % 2 else (False, True):
                if on:
                    recorder.start()
                found[not on].append(_rate(context, seconds))
                recorder.stop()
    return found


def _recorder(context: ExecutionContext) -> Recorder:
    assert isinstance(context.engine, Engine)
    return context.engine.parts.setting.recorder


def _rate(context: ExecutionContext, seconds: float) -> float:
    before, began = context.summary().tasks, time.perf_counter()
    context.train_for_duration(seconds)
    tasks = context.summary().tasks - before
    return tasks * context.model.batch_size / (time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all targets are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=NAMES, help="(default: %(default)s)")
    parser.add_argument("--batch", type=integer(1), default=16, help="images of a learner (default: %(default)s)")
    parser.add_argument("--seconds", type=number(0, above=True), default=1.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=integer(1), default=11, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    print(describe_machine(), flush=True)
    rows, met = [], True
    for name in options.networks:
        recorded, plain = rates(name, options.batch, options.seconds, options.rounds)
        ratio = spread(paired(recorded, plain))
        met = met and ratio.median >= TARGET
        shown = [f"{spread(each).median:,.0f}" for each in (recorded, plain)]
        rows.append([name, str(options.batch), *shown, ratio.text(".3f"), f"{TARGET}"])
    head = ["network", "batch", "images/s with a recording", "without", "ratio", "goal"]
    print(f"\n{markdown(head, rows)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
