"""Medians, paired ratios and targets; tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.anatomy import AVERAGING, OUTSIDE, Row, share
from benchmarks.contest import NEAR, QUIET
from benchmarks.networks import NETWORKS
from crossbow.runtime.summary import MemorySummary

ONE, TWO = "Crossbow 1 × 2", "Crossbow 2 × 1"
SELDOM, BARE, ALONE = "Crossbow 2 × 1, averaging seldom", "Crossbow 2 × 1, bare loop", "Crossbow 1 × 1"
TORCH_ONE = "PyTorch 1 × 2"
TORCH_TWO = ("PyTorch 2 × 1, threads", "PyTorch 2 × 1, processes")

LEAST = (1.0, 1.0)
"""Targets of networks without their own."""


@dataclass(frozen=True)
class Spread:
    """A median with the minimum and the maximum."""

    median: float
    low: float
    high: float

    def text(self, form: str) -> str:
        return f"{self.median:{form}} ({self.low:{form}}–{self.high:{form}})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def paired(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio in every round."""
    return [n / d for n, d in zip(numerators, denominators, strict=True)]


@dataclass(frozen=True)
class Outcome:
    """The measurements of one network at one batch size: images per second of every contestant, by round."""

    network: str
    batch: int
    kernels: str
    rates: Mapping[str, Sequence[float]]
    rows: Sequence[Row]
    """Profile of a task with two learners."""
    memory: MemorySummary
    copy_rate: float
    """Bytes per second, read and written."""
    others: float | None = None
    """Processors that other programs kept busy."""
    handovers: Sequence[float] = ()
    """Time in seconds in which a flag travels from one core to another, by round."""
    alone: Sequence[Row] = ()
    """Profile of a task of one learner alone, on one thread."""

    @property
    def torch_two(self) -> str | None:
        """PyTorch's faster way to train two models."""
        return max(
            (name for name in TORCH_TWO if name in self.rates),
            key=lambda name: statistics.median(self.rates[name]),
            default=None,
        )

    def ratio(self, numerator: str, denominator: str) -> Spread:
        return spread(paired(self.rates[numerator], self.rates[denominator]))

    def cost(self, with_it: str, without: str) -> Spread:
        """The fraction of speed that something costs."""
        return spread([1 - ratio for ratio in paired(self.rates[with_it], self.rates[without])])

    def comparisons(self) -> list[tuple[str, Spread, float]]:
        """The contestants that Crossbow's two learners are compared with, each with the ratio and its target."""
        made, (one, two) = [], NETWORKS[self.network].targets.get(self.batch, LEAST)
        if TORCH_ONE in self.rates:
            made.append((TORCH_ONE, self.ratio(TWO, TORCH_ONE), one))
        if self.torch_two is not None:
            made.append((self.torch_two, self.ratio(TWO, self.torch_two), two))
        return made


class Measured(Protocol):
    """The part of an outcome that `disturbance` needs."""

    @property
    def others(self) -> float | None: ...


def disturbance(outcomes: Sequence[Measured]) -> str:
    """A sentence on the load that other programs put on the machine."""
    known = [outcome.others for outcome in outcomes if outcome.others is not None]
    if not known:
        return "not known"
    text = f"kept {statistics.mean(known):.2f} processors busy (at worst {max(known):.2f})"
    return text + (": NOT A QUIET MACHINE, measure again" if max(known) > QUIET else "")


def distance(outcomes: Sequence[Outcome]) -> str:
    """A sentence on the distance between the cores, the time in which a flag travels from one to another."""
    handovers = [handover for outcome in outcomes for handover in outcome.handovers]
    if not handovers:
        return "not known"
    far = sum(handover > NEAR for handover in handovers)
    text = (
        f"a flag gets from one core to another in {spread([1e9 * handover for handover in handovers]).text('.0f')} ns"
    )
    return text + (f": FAR APART in {far} of {len(handovers)} rounds" if far else "")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, right-aligned from the third column on, where the numbers are."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    line = [("-" * (width - 1) + ":" if column > 1 else "-" * width) for column, width in enumerate(widths)]

    def text(row: Sequence[str]) -> str:
        cells = [c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "| " + " | ".join(cells) + " |"

    return "\n".join([text(head), "| " + " | ".join(line) + " |", *map(text, rows)])


def rates_table(outcomes: Sequence[Outcome]) -> str:
    """Images per second."""
    names = [ONE, TWO]
    if TORCH_ONE in outcomes[0].rates:
        names += [TORCH_ONE, *TORCH_TWO]
    rows = [
        [outcome.network, str(outcome.batch), *(spread(outcome.rates[name]).text(",.0f") for name in names)]
        for outcome in outcomes
    ]
    return markdown(["network", "batch", *names], rows)


def shares_table(outcomes: Sequence[Outcome]) -> str:
    """Ratios to PyTorch, and the costs of averaging and Python."""
    head = [
        "network",
        "batch",
        "× PyTorch 1 × 2",
        "× PyTorch 2 × 1",
        "averaging",
        "its calls",
        "Python",
        "outside calls",
    ]
    rows = []
    for outcome in outcomes:
        ratios = [ratio.text(".2f") for _, ratio, _ in outcome.comparisons()] or ["–", "–"]
        rows.append(
            [
                outcome.network,
                str(outcome.batch),
                *ratios,
                _cost_text(outcome, SELDOM),
                f"{share(outcome.rows, AVERAGING):.1%}",
                _cost_text(outcome, BARE),
                f"{share(outcome.rows, (OUTSIDE,)):.1%}",
            ]
        )
    return markdown(head, rows)


def _cost_text(outcome: Outcome, without: str) -> str:
    return outcome.cost(TWO, without).text(".1%") if without in outcome.rates else "–"


LEARNERS = 2


def averaging_bytes(outcome: Outcome) -> float:
    """Bytes that averaging moves in a task of one of two learners under SMA.

    The learner's slice of z is written, the same slice of both replicas is read, and z is read in the step.
    """
    vector = outcome.memory.vector
    return vector / LEARNERS * (1 + LEARNERS) + vector


def memory_table(outcomes: Sequence[Outcome]) -> str:
    """Vectors and arena of a learner, and the traffic of averaging."""
    head = ["network", "batch", "a vector", "arena", "lower bound", "no reuse", "averaging moves", "copy rate", "share"]
    rows = []
    for outcome in outcomes:
        memory, moved = outcome.memory, averaging_bytes(outcome)
        task = sum(row.seconds for row in outcome.rows)
        rows.append(
            [
                outcome.network,
                str(outcome.batch),
                *(
                    f"{number / 1e6:,.2f} MB"
                    for number in (memory.vector, memory.arena, memory.lower_bound, memory.without_reuse, moved)
                ),
                f"{outcome.copy_rate / 1e9:.1f} GB/s",
                f"{moved / outcome.copy_rate / task:.1%}",
            ]
        )
    return markdown(head, rows)


def verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """Targets met or missed, one line each."""
    lines = []
    for outcome in outcomes:
        for against, ratio, target in outcome.comparisons():
            word = "met" if ratio.median >= target else "MISSED"
            lines.append(
                f"{word}: {outcome.network}, batch {outcome.batch}: {ratio.median:.2f} × {against} (target {target})"
            )
    return lines


def profile_table(outcome: Outcome) -> str:
    """Microseconds of a task by call: for one learner alone, and for two at once."""
    total, total_alone = (sum(row.seconds for row in rows) for rows in (outcome.rows, outcome.alone))
    rows = [
        [
            row.operator,
            row.call,
            f"{alone.seconds * 1e6:,.0f}",
            f"{row.seconds * 1e6:,.0f}",
            f"{row.seconds / total:.1%}",
        ]
        for row, alone in zip(outcome.rows, outcome.alone, strict=True)
    ]
    rows.append(["all", "", f"{total_alone * 1e6:,.0f}", f"{total * 1e6:,.0f}", "100%"])
    return markdown(["operator", "call", "1 learner, µs", "2 learners, µs", "share"], rows)
