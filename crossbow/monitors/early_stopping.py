"""The end of training when it no longer helps."""

from __future__ import annotations

import math
import warnings
from typing import Any

from crossbow.conf import is_integer, is_number, shown
from crossbow.runtime.monitor import Monitor, Progress
from crossbow.runtime.results import History, Record
from crossbow.types import ConfigurationError

MEASURES = {"test_accuracy": 1.0, "test_loss": -1.0, "accuracy": 1.0, "loss": -1.0}
"""Numbers of a record that may be watched: 1 if higher is better, −1 if lower is better."""


class EarlyStopping(Monitor):
    """Ends training when a number of the records has not improved in `patience` records that contain it.

    It begins anew with each training call, so it can be used for several contexts. A checkpoint contains its state. It
    warns if it watches a test result in a training call without tests, and raises ConfigurationError if it watches the
    accuracy of a network that has none.
    """

    def __init__(self, patience: int, measure: str = "test_accuracy", *, least_change: float = 0.0) -> None:
        """patience: number of records without an improvement, ≥ 1. measure: "test_accuracy", "test_loss", "accuracy" or
        "loss", the last two of training. least_change: a smaller change is no improvement. Raises
        ConfigurationError."""
        if not is_integer(patience) or patience < 1:
            raise ConfigurationError(f"EarlyStopping: patience must be an integer ≥ 1. Received: {shown(patience)}")
        if measure not in MEASURES:
            expected = ", ".join(MEASURES)
            raise ConfigurationError(
                f"EarlyStopping: measure must be one of {expected}. Received: measure={shown(measure)}"
            )
        if not is_number(least_change) or least_change < 0:
            raise ConfigurationError(
                f"EarlyStopping: least_change must be a finite number ≥ 0. Received: {shown(least_change)}"
            )
        self.patience, self.measure, self.least_change = patience, measure, least_change
        self.best = math.nan
        """The best value so far; NaN before the first."""
        self.waited = 0
        """Number of records since the best value."""
        self._warned = False

    def begin(self) -> None:
        self.best, self.waited = math.nan, 0

    def record(self, record: Record) -> None:
        value = record.numbers()[self.measure]
        if value is None:
            self._check_accuracy(record)
            return
        if math.isnan(self.best) or (value - self.best) * MEASURES[self.measure] > self.least_change:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            name = self.measure.replace("_", " ")
            self.end_training(f"{name} not better than {self.best:.4g} in {self.waited} records")

    def progress(self, progress: Progress) -> None:
        if not progress.tested and self.measure.startswith("test_") and not self._warned:
            self._warned = True
            warnings.warn(
                f"EarlyStopping: there is no {self.measure} in a training call without tests. Use `train_and_test`, or "
                'watch "loss"',
                RuntimeWarning,
                stacklevel=2,
            )

    def _check_accuracy(self, record: Record) -> None:
        """Raises ConfigurationError if the record should have the accuracy that is watched."""
        if self.measure == "accuracy" or (self.measure == "test_accuracy" and record.test is not None):
            other = self.measure.replace("accuracy", "loss")
            raise ConfigurationError(
                f"EarlyStopping: expected a network with an accuracy. Received: one without; watch {other!r} instead"
            )

    def state(self) -> dict[str, Any]:
        """The measure, the best value so far and the number of records since."""
        return {"measure": self.measure, "best": None if math.isnan(self.best) else self.best, "waited": self.waited}

    def resume(self, state: Any) -> None:
        if state is not None and state["measure"] == self.measure:
            self.best, self.waited = math.nan if state["best"] is None else state["best"], state["waited"]

    def take_over(self, history: History) -> None:
        """Evaluate the records so far."""
        for record in history.records:
            self.record(record)
        self.take_request()  # training has continued
