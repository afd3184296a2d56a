"""Cost of recording a timeline: images/s of training with and without a recording, in turns.

One context trains in all turns. Without a recording, its task lists are those of a context without `Profile`, so a
second context need not be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.networks import LEARNING_RATE, MOMENTUM, NETWORKS, dataset
from benchmarks.overhead import Rates, compare, new_parser, rate
from crossbow import ExecutionContext, ModelConf, SolverConf, SystemConf
from crossbow.console import run_command
from crossbow.runtime.engine import Engine
from crossbow.timeline.recorder import Recorder

TARGET = 0.95
"""Speed while a timeline is recorded, relative to that without."""


def rates(name: str, batch: int, seconds: float, rounds: int) -> Rates:
    """Images/s of each turn, with a recording and without."""
    network = NETWORKS[name]
    found: Rates = ([], [])
    with ExecutionContext(
        [network.build(), None],
        monitors=(),
        data=dataset(network),
        model=ModelConf(batch_size=batch),
        solver=SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
        system=SystemConf(learners_per_device=2),
    ) as context:
        recorder = _recorder(context)
        recorder.start()  # creates the lists of timed calls
        context.train_for_duration(0.5)
        recorder.stop()
        for turn in range(rounds):
            for on in (True, False) if turn % 2 else (False, True):
                if on:
                    recorder.start()
                found[not on].append(rate(context, seconds))
                recorder.stop()
    return found


def _recorder(context: ExecutionContext) -> Recorder:
    assert isinstance(context.engine, Engine)
    return context.engine.parts.setting.recorder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 0 if all targets are met, else 1."""
    options = new_parser("profiling", (__doc__ or "").splitlines()[0], seconds=1.0, rounds=11).parse_args(arguments)
    return compare(
        options, "a recording", TARGET, lambda name: rates(name, options.batch, options.seconds, options.rounds)
    )


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.profiling", main))
