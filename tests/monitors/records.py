"""Records for tests of monitors."""

from __future__ import annotations

from crossbow import Record, TestResult
from crossbow.runtime.monitor import Progress


def progress(tasks: int = 0) -> Progress:
    return Progress(epoch=tasks / 100, tasks=tasks, time=0.0, loss=float("nan"), images_per_second=0.0)


def record(epoch: int, loss: float = 0.5, accuracy: float | None = 0.9) -> Record:
    """The record of an epoch of 100 tasks. accuracy: of its test; None without a test."""
    test = None if accuracy is None else TestResult(loss=loss / 2, accuracy=accuracy, examples=50)
    return Record(float(epoch), 100 * epoch, 2.0 * epoch, loss, None, 1234.5, 0.1, test, data_wait=0.25)
