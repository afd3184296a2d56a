"""Decisions of the auto-tuner: the number of learners per device, from the training speed with each number.

Two neighbouring numbers are compared in *windows*, stretches of training of at least WINDOW_SECONDS. Windows form
pairs, one for each number, in alternating order, so that other programs affect both numbers. One number is better if
the mean of the pairs' ratios is far enough from the threshold, given their variance. From the initial number, the tuner
goes up while more learners are faster by GAIN, or else down while fewer learners are not slower.

Afterwards images/s are monitored, and a lasting change starts a new search.

There is no clock and no thread here: the engine reports the result of each window, and asks for the number of learners
of the next.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW_SECONDS = 0.25
"""Minimum length of a window; the engine's windows are whole ticks."""
GAIN = 0.01
"""Minimum gain in speed for more learners, because each takes memory and its share of the examples."""
FEWEST_PAIRS, MOST_PAIRS = 3, 8
"""Minimum and maximum number of pairs of windows in a comparison; after the maximum, the mean decides."""
ONE_SIDED_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
"""Student's t, 95 % one-sided, by degrees of freedom from 1 on."""
WATCHED_SECONDS = 1.0
"""Length of a window when nothing is compared."""
REFERENCE_WINDOWS, CHANGED_WINDOWS = 3, 4
"""Number of windows after a decision whose median is the reference; and number of consecutive windows that must differ
from it, in the same direction, to start a new search."""
CHANGE = 0.2
"""Minimum relative difference of these windows."""


@dataclass(frozen=True)
class Decision:
    """Result of a comparison."""

    fewer: int
    more: int
    chosen: int
    reason: str
    pairs: int = 0
    """Number of pairs of windows. It is 0 if there was no comparison; then the following fields are NaN."""
    ratio: float = math.nan
    """Images/s with more learners relative to fewer: the geometric mean over the pairs."""
    low: float = math.nan
    high: float = math.nan
    """Lower and upper bound of the ratio, each with a confidence of 95 %."""
    fewer_images_per_second: float = math.nan
    more_images_per_second: float = math.nan
    """Mean images/s over the windows of each number of learners."""
    devices: int = 1
    """Number of devices of all ranks. `fewer`, `more` and `chosen` are the numbers of learners on each device."""

    def __str__(self) -> str:
        learners = _learners(self.chosen, self.devices)
        if not self.pairs:
            return f"{learners}: {self.reason}"
        return (
            f"{learners}: {self.more} are {self.ratio:.3f} times as fast as {self.fewer}, with "
            f"{self.more_images_per_second:,.0f} and {self.fewer_images_per_second:,.0f} images/s "
            f"({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs of windows): {self.reason}"
        )


@dataclass(frozen=True)
class Retuning:
    """The start of a new search, with its reason."""

    learners: int
    """Number of learners at the start."""
    reference: float
    """Median of images/s over the windows after the last decision."""
    windows: tuple[float, ...]
    """Images/s of the last windows, which differ from the median."""
    devices: int = 1
    """Number of devices of all ranks. The number of learners is that on each device."""

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:,.0f}" for rate in self.windows)
        before = f"{self.reference:,.0f}"
        learners = _learners(self.learners, self.devices)
        return f"{learners}: compared again, for the last windows had {rates} images/s, not {before}"


TunerDecision = Decision | Retuning


def _learners(number: int, devices: int) -> str:
    return f"{number} learners" if devices == 1 else f"{number} learners on each of {devices} devices"


class Comparison:
    """Comparison of more and fewer learners, window by window."""

    def __init__(self, fewer: int, more: int) -> None:
        self.fewer, self.more = fewer, more
        self._windows: list[float] = []
        """Images/s, in the order of `_order`."""

    @property
    def next(self) -> int:
        """Number of learners of the next window. Pairs begin alternately with fewer and more learners, so that the
        number changes only in every second window."""
        pair, second = divmod(len(self._windows), 2)
        return self.more if second != pair % 2 else self.fewer

    def add(self, rate: float) -> None:
        """Add the images/s of a window with `next` learners."""
        self._windows.append(rate)

    @property
    def _pairs(self) -> list[tuple[float, float]]:
        """Complete pairs, with fewer and with more learners."""
        pairs = zip(self._windows[::2], self._windows[1::2], strict=False)
        return [(a, b) if number % 2 == 0 else (b, a) for number, (a, b) in enumerate(pairs)]

    def decision(self) -> Decision | None:
        """The result; None if more windows are needed."""
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
    """Finds the number of learners, and searches again when throughput changes."""

    learners: int
    """Number of learners of the next window."""
    on_decision: Callable[[TunerDecision], None] = lambda decision: None
    settled: bool = False
    """Whether nothing is being compared."""
    best: int = field(init=False)
    """The best number so far."""

    def __post_init__(self) -> None:
        self._begin()

    @property
    def window_seconds(self) -> float:
        """Minimum length of the next window."""
        return WATCHED_SECONDS if self.settled else WINDOW_SECONDS

    @property
    def compared(self) -> frozenset[int]:
        """The numbers that are being compared: two, or the final one."""
        return frozenset((self.best,) if self.settled else (self.best, self.best + self._step))

    def add(self, rate: float) -> None:
        """Add the images/s of a window with `learners` learners."""
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
        """Start a search at the current number."""
        self.best, self.settled = self.learners, False
        self._step, self._moved = 1, False
        self._rates: list[float] = []
        """Images/s of the reference windows."""
        self._changed: list[float] = []
        """The last windows, if they differ from the reference in the same direction."""
        self._compare()

    def _compare(self) -> None:
        """Compare the best number and its neighbour in the direction of search."""
        neighbour = self.best + self._step
        self._comparison: Comparison | None = Comparison(*sorted((self.best, neighbour)))
        self.learners = self._comparison.next

    def refused(self, reason: str) -> None:
        """Keep the best number, because its neighbour is not possible."""
        assert self._comparison is not None
        fewer, more = self._comparison.fewer, self._comparison.more
        self._decided(Decision(fewer, more, self.best, f"not {self.best + self._step}: {reason}"))

    def _decided(self, decision: Decision) -> None:
        """Continue in this direction, reverse it, or settle."""
        self.on_decision(decision)
        moved, self.best = decision.chosen != self.best, decision.chosen
        turns = not moved and self._step > 0 and not self._moved
        self._moved = self._moved or moved
        if turns:
            self._step = -1
        if (moved or turns) and self.best + self._step >= 1:
            self._compare()
        else:
            self.settle()

    def settle(self) -> None:
        """End the search: the best number stays."""
        self._comparison, self.settled, self.learners = None, True, self.best

    def _watch(self, rate: float) -> None:
        """Start a new search if throughput has changed lastingly."""
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
