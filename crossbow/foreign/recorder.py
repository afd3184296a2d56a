"""The recorder to which foreign models report the results of their iterations."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, NamedTuple


class Reported(NamedTuple):
    """The results that an iteration reported."""

    cost: float
    error: float
    """Fraction of the examples that were classified wrongly, in [0, 1]."""


class IterationRecorder:
    """Receives costs and errors of a model's iterations, and times their parts.

    Its methods are the methods of Theano-MPI's recorder that models call. Each learner has its own recorder.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """Seconds of each part of the iterations, by its name, such as "calc"."""
        self._began = 0.0
        self._reports: list[Reported] = []

    def start(self) -> None:
        """Begin to time a part of an iteration."""
        self._began = time.perf_counter()

    def end(self, mode: str) -> None:
        """Add the time since `start` to the part of this name: "calc", "comm" or "wait"."""
        self.seconds[mode] += time.perf_counter() - self._began

    def train_error(self, count: int, cost: Any, error: Any) -> None:
        """Report the mean cost of a training batch, and the fraction of its examples that are classified wrongly."""
        self._reports.append(Reported(float(cost), float(error)))

    def val_error(self, count: int, cost: Any, error: Any, error_top5: Any = None) -> None:
        """Report the mean cost of a validation batch, and the fraction of its examples that are classified wrongly.
        error_top5, the fraction of examples whose label is not among the five most probable classes, is not used."""
        self._reports.append(Reported(float(cost), float(error)))

    def print_train_info(self, count: int) -> None:
        """Do nothing: Crossbow shows the progress."""

    def take(self) -> Reported | None:
        """The mean of the reports since the last call; None if there were none."""
        reports, self._reports = self._reports, []
        if not reports:
            return None
        return Reported(*(sum(each) / len(reports) for each in zip(*reports, strict=True)))
