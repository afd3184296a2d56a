"""The auto-tuner's decisions: how many learners a device should have, from how fast training is with each number.

Two numbers that are neighbours are compared by *windows*, stretches of training of at least WINDOW_SECONDS, which come
in pairs, one of each number, in changing order: what else the machine does meanwhile then meets both. One number is
better when the mean of the pairs' ratios is far enough from the bar, given how much they vary. From the number that
training begins with the tuner goes up while more learners are faster by GAIN, or else down while fewer are not slower.

Afterwards images/s are watched, and when they have changed for good, the search begins anew.

There is no clock here, and no thread: the engine says how a window went, and asks with how many learners the next is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_SECONDS = 0.25
"""Of a window, at least; the engine's are whole ticks."""
GAIN = 0.01
"""By how much more learners have to be faster: each takes memory, and its share of the examples."""
FEWEST_PAIRS, MOST_PAIRS = 3, 8
"""Of windows, for a comparison; after the most, the mean decides."""
ONE_SIDED_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
"""Student's t, 95 % one-sided, by degrees of freedom from 1 on."""
WATCHED_SECONDS = 1.0
"""Of a window when nothing is compared."""
REFERENCE_WINDOWS, CHANGED_WINDOWS = 3, 4
"""Windows behind a decision whose median is what later ones are held against; and how many of these have to differ, all
to the same side, before the numbers are compared again."""
CHANGE = 0.2
"""By how much."""


@dataclass(frozen=True)
class Decision:
    """What a comparison came to."""

    fewer: int
    more: int
    chosen: int
    reason: str
    pairs: int = 0
    """Of windows. Where there was no comparison there are none, and what follows is NaN."""
    ratio: float = math.nan
    """Images/s with more learners, over those with fewer: the mean of the pairs (their geometric one)."""
    low: float = math.nan
    high: float = math.nan
    """Bounds of it that hold with a confidence of 95 % each."""
    fewer_images_per_second: float = math.nan
    more_images_per_second: float = math.nan
    """The means of the windows with each."""

    def __str__(self) -> str:
        if not self.pairs:
            return f"{self.chosen} learners: {self.reason}"
        return (
            f"{self.chosen} learners: {self.more} are {self.ratio:.3f} times as fast as {self.fewer}, with "
            f"{self.more_images_per_second:,.0f} and {self.fewer_images_per_second:,.0f} images/s "
            f"({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs of windows): {self.reason}"
        )


@dataclass(frozen=True)
class Retuning:
    """That a new search begins, and why."""

    learners: int
    """From how many on."""
    reference: float
    """Images/s of the windows behind the last decision: their median."""
    windows: tuple[float, ...]
    """Images/s of the last ones, which differ from it."""

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:,.0f}" for rate in self.windows)
        before = f"{self.reference:,.0f}"
        return f"{self.learners} learners: compared again, for the last windows had {rates} images/s, not {before}"


TunerDecision = Decision | Retuning


class Comparison:
    """More learners against fewer, window by window."""

    def __init__(self, fewer: int, more: int) -> None:
        self.fewer, self.more = fewer, more
        self._windows: list[float] = []
        """Images/s, in the order of `_order`."""

    @property
    def next(self) -> int:
        """With how many learners the next window is: pairs begin with fewer and more in turn, so that of two pairs
        only every second window begins with a change."""
        pair, second = divmod(len(self._windows), 2)
        return self.more if second != pair % 2 else self.fewer

    def add(self, rate: float) -> None:
        """The images/s of a window with `next` learners."""
        self._windows.append(rate)

    @property
    def _pairs(self) -> list[tuple[float, float]]:
        """Whole pairs, with fewer and with more learners."""
        pairs = zip(self._windows[::2], self._windows[1::2], strict=False)
        return [(a, b) if number % 2 == 0 else (b, a) for number, (a, b) in enumerate(pairs)]

    def decision(self) -> Decision | None:
        """What it came to; None where more windows are needed."""
        pairs = self._pairs
        if len(pairs) < FEWEST_PAIRS:
            return None
        logarithms = [math.log(more / fewer) for fewer, more in pairs]
        mean = statistics.fmean(logarithms)
        half = ONE_SIDED_95[len(pairs) - 2] * statistics.stdev(logarithms) / math.sqrt(len(pairs))
        low, ratio, high = (math.exp(value) for value in (mean - half, mean, mean + half))
        bar = 1 + GAIN
        if low > bar:
            chosen, reason = self.more, f"more than {bar}"
        elif high < bar:
            chosen, reason = self.fewer, f"less than {bar}"
        elif len(pairs) == MOST_PAIRS:
            chosen, reason = (self.more if ratio > bar else self.fewer), "too near to tell, so the mean decides"
        else:
            return None
        fewer, more = (statistics.fmean(windows) for windows in zip(*pairs, strict=True))
        return Decision(self.fewer, self.more, chosen, reason, len(pairs), ratio, low, high, fewer, more)


@dataclass
class Tuner:
    """Finds the number of learners, and looks again when throughput changes."""

    learners: int
    """With how many the next window is."""
    on_decision: Callable[[TunerDecision], None] = lambda decision: None
    settled: bool = False
    """Whether nothing is being compared."""
    best: int = field(init=False)
    """The number that has not been beaten so far."""

    def __post_init__(self) -> None:
        self._begin()

    @property
    def window_seconds(self) -> float:
        """How long the next window is, at least."""
        return WATCHED_SECONDS if self.settled else WINDOW_SECONDS

    @property
    def compared(self) -> frozenset[int]:
        """The numbers that are wanted now: two, or the one that it has settled on."""
        return frozenset((self.best,) if self.settled else (self.best, self.best + self._step))

    def add(self, rate: float) -> None:
        """The images/s of a window with `learners`."""
        if self.settled:
            self._watch(rate)
            return
        assert self._comparison is not None
        self._comparison.add(rate)
        decision = self._comparison.decision()
        if decision is None:
            self.learners = self._comparison.next
        else:
            self._decided(decision)

    def _begin(self) -> None:
        """Compare, from the present number on."""
        self.best, self.settled = self.learners, False
        self._step, self._moved = 1, False
        self._rates: list[float] = []
        """Of the windows that later ones are held against."""
        self._changed: list[float] = []
        """The last windows, where they differ from those, all to the same side."""
        self._compare()

    def _compare(self) -> None:
        """The best and its neighbour in the direction of search."""
        neighbour = self.best + self._step
        self._comparison: Comparison | None = Comparison(*sorted((self.best, neighbour)))
        self.learners = self._comparison.next

    def refused(self, reason: str) -> None:
        """The best's neighbour cannot be had: the best stays."""
        assert self._comparison is not None
        fewer, more = self._comparison.fewer, self._comparison.more
        self._decided(Decision(fewer, more, self.best, f"not {self.best + self._step}: {reason}"))

    def _decided(self, decision: Decision) -> None:
        """Go on in this direction, turn round, or settle."""
        self.on_decision(decision)
        moved, self.best = decision.chosen != self.best, decision.chosen
        turns = not moved and self._step > 0 and not self._moved
        self._moved = self._moved or moved
        if turns:
            self._step = -1
        if (moved or turns) and self.best + self._step >= 1:
            self._compare()
        else:
            self._comparison, self.settled, self.learners = None, True, self.best

    def _watch(self, rate: float) -> None:
        """Compare again where throughput has changed for good."""
        if len(self._rates) < REFERENCE_WINDOWS:
            self._rates.append(rate)
            return
        reference = statistics.median(self._rates)
        if abs(rate / reference - 1) <= CHANGE:
            self._changed = []
            return
        same = [each for each in self._changed if (each > reference) == (rate > reference)]
        self._changed = [*same, rate]
        if len(self._changed) >= CHANGED_WINDOWS:
            self.on_decision(Retuning(self.learners, reference, tuple(self._changed)))
            self._begin()
