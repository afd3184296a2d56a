"""Report of GPU measurements: medians, ratios by round, targets, tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu_host import HostTime
from benchmarks.gpu_networks import GPU_NETWORKS
from benchmarks.report import Spread, markdown, paired, spread

CROSSBOW, PYTORCH = "Crossbow", "PyTorch"
TORCH_EAGER, TORCH_GRAPHS = "PyTorch, eager", "PyTorch, CUDA graph"
TARGET_HOST_TIME = 20.0
"""Target of the host's time to submit a task with CUDA graphs, in microseconds."""


def crossbow(learners: int, graphs: bool) -> str:
    """The name of a Crossbow contestant.

    >>> crossbow(1, True), crossbow(4, False)
    ('Crossbow, 1 learner, CUDA graphs', 'Crossbow, 4 learners, no graphs')
    """
    return f"{CROSSBOW}, {learners} learner{'' if learners == 1 else 's'}, {'CUDA' if graphs else 'no'} graphs"


def vmapped(replicas: int, graphs: bool) -> str:
    """The name of PyTorch with several replicas as one model."""
    return f"{PYTORCH}, vmap of {replicas}{', CUDA graph' if graphs else ''}"


def streamed(models: int) -> str:
    """The name of PyTorch with several models at once.

    >>> streamed(4)
    'PyTorch, 4 CUDA graphs on 4 streams'
    """
    return f"{PYTORCH}, {models} CUDA graphs on {models}{STREAMS}"


STREAMS = " streams"
ONE = crossbow(1, True)


@dataclass(frozen=True)
class Observation:
    """Observations of a contestant other than its speed."""

    host: HostTime | None = None
    busy: float | None = None
    """Fraction of the time in which any kernel ran."""
    memory: int | None = None
    """Bytes of GPU memory."""


@dataclass
class Outcome:
    """The measurements of one network at one batch size."""

    network: str
    batch: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Images per second of every contestant, by round."""
    learners: dict[str, int] = field(default_factory=dict)
    """Number of learners of Crossbow's contestants with graphs."""
    seen: dict[str, Observation] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Missing contestants, with reasons."""
    traces: dict[str, str] = field(default_factory=dict)
    """Tracebacks of failed contestants."""
    convolutions: list[dict[str, Any]] = field(default_factory=list)
    """Crossbow's convolutions, with the selected algorithms."""
    others: bool = False
    """Whether these are the contestants without targets."""

    def measured(self, name: str) -> bool:
        return bool(self.rates.get(name))

    def ratio(self, numerator: str, denominator: str) -> Spread | None:
        """Ratios by round; None if one of them was not measured."""
        if not (self.measured(numerator) and self.measured(denominator)):
            return None
        return spread(paired(self.rates[numerator], self.rates[denominator]))

    @property
    def best(self) -> str | None:
        """Crossbow with the best number of learners."""
        names = [name for name in self.learners if self.measured(name)]
        return max(names, key=lambda name: statistics.median(self.rates[name]), default=None)

    @property
    def best_streams(self) -> str | None:
        """PyTorch with the best number of models at once."""
        names = [name for name in self.rates if name.endswith(STREAMS) and self.measured(name)]
        return max(names, key=lambda name: statistics.median(self.rates[name]), default=None)


def text_of(ratio: Spread | None) -> str:
    return "–" if ratio is None else ratio.text(".2f")


def table(outcome: Outcome) -> str:
    """All contestants of a network and batch."""
    head = [
        *(f"{outcome.network}, batch {outcome.batch}", "", "images/s", "× 1 learner", "× PyTorch, CUDA graph"),
        *("GPU busy", "GPU memory", "host, µs a task", "its launches", "a tick's end"),
    ]
    rows = []
    for name, rates in outcome.rates.items():
        if not rates:
            continue
        seen = outcome.seen.get(name, Observation())
        host = seen.host or HostTime(float("nan"))
        rows.append(
            [
                name,
                "← best" if name == outcome.best else "",
                spread(rates).text(",.0f"),
                text_of(outcome.ratio(name, ONE)),
                text_of(outcome.ratio(name, TORCH_GRAPHS)),
                "–" if seen.busy is None else f"{seen.busy:.0%}",
                "–" if seen.memory is None else f"{seen.memory / 2**20:,.0f} MiB",
                *("–" if us is None or us != us else f"{us:,.1f}" for us in (host.task, host.launch, host.tick)),
            ]
        )
    return markdown(head, rows)


def report(outcome: Outcome) -> str:
    """All results of a network and batch."""
    parts = [table(outcome)]
    if outcome.failed:
        parts.append("\n".join(f"- {name}: not measured: {reason}" for name, reason in outcome.failed.items()))
    if lines := verdicts([outcome]):
        parts.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts)


def verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """Targets met, missed or not measured, one line each."""
    lines = []
    for outcome in outcomes:
        if outcome.others:
            continue
        where, best = f"{outcome.network}, batch {outcome.batch}", outcome.best
        for against, target in zip((ONE, TORCH_GRAPHS), targets(outcome), strict=False):
            ratio = None if best is None else outcome.ratio(best, against)
            if best is None or ratio is None:
                lines.append(f"not measured: {where}: × {against} (target {target})")
                continue
            word = "met" if ratio.median >= target else "MISSED"
            count = _learners(outcome.learners[best])
            lines.append(f"{word}: {where}: {count}: {ratio.text('.2f')} × {against} (target {target})")
        rival = outcome.best_streams
        if best is not None and rival is not None:
            count = _learners(outcome.learners[best])
            lines.append(f"beside: {where}: {count}: {text_of(outcome.ratio(best, rival))} × {rival} (no target)")
        host = None if best is None else outcome.seen.get(best, Observation()).host
        if best is not None and host is not None:
            word = "met" if host.task < TARGET_HOST_TIME else "MISSED"
            lines.append(
                f"{word}: {where}: {_learners(outcome.learners[best])}: {host.task:.1f} µs of the host's time to "
                f"submit a task (target < {TARGET_HOST_TIME:g})"
            )
    return lines


def targets(outcome: Outcome) -> tuple[float, ...]:
    """× one learner, × PyTorch with a CUDA graph; none for most batches."""
    return GPU_NETWORKS[outcome.network].targets.get(outcome.batch, ())


def _learners(number: int) -> str:
    return f"{number} learner{'' if number == 1 else 's'}"


def content(machine: Mapping[str, str], outcomes: Sequence[Outcome], left_out: Sequence[str]) -> dict[str, Any]:
    """The content of the JSON file."""
    return {
        "machine": dict(machine),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "targets": verdicts(outcomes),
        "left out": list(left_out),
    }
