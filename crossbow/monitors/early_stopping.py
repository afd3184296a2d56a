"""The end of training when it no longer helps."""

from __future__ import annotations

import math

from crossbow.conf import is_integer, is_number, shown
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.results import History, Record
from crossbow.types import ConfigurationError

MEASURES = {"test_accuracy": 1.0, "test_loss": -1.0, "accuracy": 1.0, "loss": -1.0}
"""Numbers of a record that may be watched; 1 if more is better, −1 if less is."""


class EarlyStopping(Monitor):
    """Ends training when a number of the records has not improved in `patience` records that have it."""

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

    def record(self, record: Record) -> None:
        value = record.numbers()[self.measure]
        if value is None:
            return
        if math.isnan(self.best) or (value - self.best) * MEASURES[self.measure] > self.least_change:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            name = self.measure.replace("_", " ")
            self.end_training(f"{name} not better than {self.best:.4g} in {self.waited} records")

    def take_over(self, history: History) -> None:
        """Watch the records so far."""
        for record in history.records:
            self.record(record)
        self.take_request()  # training has gone on
