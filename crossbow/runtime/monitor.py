"""Monitors, which receive events of training on the caller's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossbow.data.examples import BadExample
from crossbow.runtime.checkpointing import Written
from crossbow.runtime.new_view import Departure, NewCoordinator, NewRanks
from crossbow.runtime.results import AnyDecision, History, LearnerRecord, Record
from crossbow.types import CrossbowError, MonitorError, Phase


@dataclass(frozen=True)
class Progress:
    """State of training."""

    epoch: float
    tasks: int
    time: float
    """Seconds of training since the start of the call."""
    loss: float
    """Moving mean of the training loss."""
    images_per_second: float
    """Throughput since the start of the stretch."""
    learners: tuple[LearnerRecord, ...] = ()
    """The learners of CPU devices in the last stretch of at least a second."""
    doing: tuple[str, ...] = ()
    """Current activity of each of these learners: "computing", "averaging", "waiting" (for others) or "no task"."""
    tested: bool = True
    """Whether the training call tests."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics beside the accuracy (`TestResult.metrics`)."""


class Monitor:
    """Base class of monitors. Override the methods for the events of interest.

    An exception in a monitor ends the training. It reaches the caller as a `MonitorError`, unless it is a
    `CrossbowError` itself.
    """

    interval: float = 0.25
    """Seconds between two calls of `progress`."""
    on_all_ranks: bool = False
    """Whether the monitor runs on all ranks, and may end the training on any of them after a record. By default it runs
    on rank 0. The value must be the same on all ranks."""
    _request = ""

    def end_training(self, reason: str) -> None:
        """End the training: after the record or, if called in `progress`, after the tick. `History.stopped` is then
        "monitor", and `History.message` has the reason. Call it in a monitor's own methods."""
        self._request = reason

    def take_request(self) -> str:
        """The reason why the monitor ends training, returned once; "" if training continues."""
        reason, self._request = self._request, ""
        return reason

    def begin(self) -> None:
        """Called when a training call begins, before `progress`; not if it continues an earlier call
        (`ExecutionContext.continue_training`, or a rank that joins)."""

    def progress(self, progress: Progress) -> None:
        """Called when training begins, and then about every `interval` seconds."""

    def record(self, record: Record) -> None:
        """Called at the end of every epoch (or stretch between tests), after its test."""

    def bad_example(self, phase: Phase, example: BadExample) -> None:
        """Called once for each example that was left out, with `SystemConf(on_bad_record="skip")`."""

    def checkpoint(self, written: Written) -> None:
        """Called after a checkpoint was written, or could not be written."""

    def state(self) -> Any:
        """The state that a checkpoint contains, as a JSON value; None if there is none."""
        return None

    def resume(self, state: Any) -> None:
        """Called with the state in a checkpoint, before training continues from it."""

    def take_over(self, history: History) -> None:
        """Called on a rank that becomes rank 0 during training, because the previous rank 0 has left. The monitor
        continues the output of the same monitor in the other process, perhaps on another machine. history: history of
        the training call."""

    def decision(self, decision: AnyDecision) -> None:
        """Called when the auto-tuner (learners_per_device="auto") has compared numbers of learners, and when it starts
        a new search; and when learners have been grouped by speed (`Grouping()`)."""

    def left(self, departure: Departure) -> None:
        """Called after ranks have left, when training continues with the others."""

    def joined(self, event: NewRanks) -> None:
        """Called after ranks have joined, when training continues with them."""

    def coordinator(self, event: NewCoordinator) -> None:
        """Called on a rank that has taken the place of rank 0, after `take_over` and `left`."""

    def close(self) -> None:
        """Called when the context is closed."""


def tell(monitor: Monitor, event: str, *arguments: object) -> str:
    """Call a monitor's method. Returns the reason why the monitor ends the training, or "".

    Raises MonitorError, which names the monitor, if the method raises an exception. A CrossbowError keeps its type, and
    gets a note with the name.
    """
    name = type(monitor).__name__
    try:
        getattr(monitor, event)(*arguments)
    except CrossbowError as error:
        error.add_note(f"raised by the monitor {name} in `{event}`")
        raise
    except Exception as error:
        raise MonitorError(f"the monitor {name} failed in `{event}`: {type(error).__name__}: {error}") from error
    reason = monitor.take_request()
    return f"{name}: {reason}" if reason else ""
