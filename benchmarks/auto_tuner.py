"""Time until the auto-tuner settles, and speed of the chosen number of learners compared with every fixed number.

    python -m benchmarks.auto_tuner

The network is LeNet, with several batch sizes. Fixed numbers of learners are measured in interleaved rounds, each in
its own process, with all cores shared among its learners. Between the rounds, a new process trains with
`learners_per_device="auto"` until the tuner has settled. Its speed is that of the chosen number, in the median of
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.contest import Contest, Contestant, Team
from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.machine import describe_machine
from benchmarks.networks import LEARNING_RATE, MOMENTUM, NETWORKS, dataset
from benchmarks.output import write_json
from benchmarks.report import markdown
from crossbow import DurationUnit, ExecutionContext, ModelConf, Monitor, SolverConf
from crossbow.console import run_command
from crossbow.runtime.device import available_cores
from crossbow.scripts.values import file_to_write

SHARE, SECONDS = 0.95, 10.0
"""Targets on two cores: images/s of the chosen number relative to the best, and seconds until it is chosen."""
STRETCH = 0.5
"""Seconds of a training call, after which it is checked whether the tuner has settled."""
PATIENCE = 60.0
"""Seconds after which an unsettled tuner is abandoned."""


@dataclass(frozen=True)
class Settled:
    """Result of a tuner."""

    learners: int
    seconds: float
    """Seconds of training; PATIENCE if it did not settle."""
    decisions: list[str]


class Heard(Monitor):
    """Records the tuner's decisions and their times."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.decisions: list[str] = []
        self.seconds: list[float] = []
        """Seconds from the beginning to each decision."""

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def decision(self, decision: Any) -> None:
        self.decisions.append(str(decision))
        self.seconds.append(self.now)


class AutoRunner:
    """Trains with the number of learners chosen by the tuner."""

    def __init__(self, network: str, batch: int) -> None:
        self.heard = Heard()
        self.context = ExecutionContext(
            [NETWORKS[network].build(), None],
            data=dataset(NETWORKS[network]),
            model=ModelConf(batch_size=batch),
            solver=SolverConf(learning_rate=LEARNING_RATE, momentum=MOMENTUM),
            monitors=[self.heard],
        )

    def settle(self) -> Settled:
        """Train until the tuner has settled."""
        heard = self.heard
        heard.began = time.monotonic()
        while self.context.summary().tuning and heard.now < PATIENCE:
            self.context.train_for_duration(STRETCH, DurationUnit.SECONDS)
        seconds = PATIENCE if self.context.summary().tuning else heard.seconds[-1]
        self.context.train_for_duration(STRETCH, DurationUnit.SECONDS)  # a decision may be the last event of a stretch
        summary = self.context.summary()
        return Settled(summary.learners, seconds, heard.decisions)

    def run(self, begin: float, end: float) -> float:
        raise NotImplementedError("it is asked to settle")

    def close(self) -> None:
        self.context.close()


@dataclass(frozen=True)
class Outcome:
    """Measurements for one batch size."""

    batch: int
    rates: dict[int, list[float]]
    """Images/s of every fixed number of learners, round by round."""
    settled: list[Settled]

    @property
    def medians(self) -> dict[int, float]:
        return {learners: statistics.median(rates) for learners, rates in self.rates.items()}

    def share(self, settled: Settled) -> float:
        """Speed of the chosen number relative to the best. A number above the largest measured one is treated as the
        largest measured one."""
        medians = self.medians
        return medians[min(settled.learners, max(medians))] / max(medians.values())

    @property
    def median_share(self) -> float:
        return statistics.median(self.share(settled) for settled in self.settled)

    @property
    def median_seconds(self) -> float:
        return statistics.median(settled.seconds for settled in self.settled)

    @property
    def verdict(self) -> str:
        return "met" if self.median_share >= SHARE and self.median_seconds < SECONDS else "MISSED"


def measure(network: str, batch: int, most: int, rounds: int, seconds: float, patience: float) -> Outcome:
    """All measurements for one batch size."""
    cores = len(available_cores())
    same: dict[str, Any] = {"network": network, "batch": batch, "kernels": "auto"}
    fixed = [
        Contestant(str(k), CrossbowRunner, {**same, "learners": k, "threads": max(1, cores // k)})
        for k in range(1, most + 1)
    ]
    with Contest(fixed, patience) as contest:
        found: list[Settled] = []
        rates: dict[int, list[float]] = {k: [] for k in range(1, most + 1)}
        for _ in range(rounds):
            for name, measured in contest.rounds(1, seconds / 4, seconds).items():
                rates[int(name)] += measured
            auto = Team(Contestant("auto", AutoRunner, {"network": network, "batch": batch}))
            try:
                auto.wait_until_ready()
                found += auto.ask("settle")
            finally:
                auto.close()
    return Outcome(batch, rates, found)


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each batch size."""
    most = max(max(outcome.rates) for outcome in outcomes)
    head = ["batch", *(f"{k} learner{'s' if k > 1 else ''}" for k in range(1, most + 1))]
    rows = []
    for outcome in outcomes:
        chosen = Counter(settled.learners for settled in outcome.settled)
        rows.append(
            [
                str(outcome.batch),
                *(f"{outcome.medians[k]:,.0f}" for k in range(1, most + 1)),
                ", ".join(f"{k} ({count}×)" for k, count in sorted(chosen.items())),
                f"{outcome.median_share:.3f}",
                f"{outcome.median_seconds:.1f} ({max(settled.seconds for settled in outcome.settled):.1f})",
                outcome.verdict,
            ]
        )
    return markdown([*head, "chosen", "of the best", "seconds (longest)", f"≥ {SHARE} in < {SECONDS:.0f} s"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_tuner", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", choices=NETWORKS, default="lenet-caffe", help="(default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 16, 32, 64], metavar="B")
    parser.add_argument("--most", type=int, default=4, metavar="K", help="fixed numbers to measure (default: up to 4)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="and repeats of the tuner (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of a turn (default: 2)")
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="S", help="that may be spent on waiting for a quiet machine"
    )
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write everything there too")
    options = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    for batch in options.batches:
        outcomes.append(
            measure(options.network, batch, options.most, options.rounds, options.seconds, options.patience)
        )
        print(f"batch {batch}:", *(str(settled) for settled in outcomes[-1].settled), sep="\n  ", flush=True)
    machine = describe_machine()
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()))
    print(f"\nImages/s of {options.network}, median of {options.rounds} rounds:\n")
    print(table(outcomes))
    if options.json is not None:
        found = [{**asdict(outcome), "verdict": outcome.verdict} for outcome in outcomes]
        write_json(options.json, {"machine": machine, "outcomes": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.auto_tuner", main))
