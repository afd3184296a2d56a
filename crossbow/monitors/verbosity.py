"""The argument `verbose` of training calls, which adds a display of progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from crossbow.conf import shown
from crossbow.monitors.console import ConsoleMonitor
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.run import TrainingRun
from crossbow.types import ConfigurationError, TrainingUnit

Verbosity = Literal["auto", 0, 1]
"""0: silent; 1: a `ConsoleMonitor` for the call; "auto": 1 for a context that was created without monitors, else 0."""


def add_console(run: TrainingRun, verbose: Verbosity, monitors: Sequence[Monitor] | None) -> ConsoleMonitor | None:
    """Add a `ConsoleMonitor` to a training call if it should show its progress and has none yet, and return it.

    monitors: the monitors that the context was created with; None if none were given. Raises ConfigurationError for an
    invalid `verbose`.
    """
    if isinstance(verbose, str | int) and verbose in ("auto", 0, 1):
        wanted = monitors is None if verbose == "auto" else bool(verbose)
    else:
        raise ConfigurationError(f"verbose must be 'auto', 0 or 1. Received: verbose={shown(verbose)}")
    if not wanted or any(isinstance(monitor, ConsoleMonitor) for monitor in run.monitors):
        return None
    tasks = None if run.end == math.inf else range(run.start, int(run.end))
    epochs = None
    if tasks is not None and run.limits.unit is TrainingUnit.EPOCHS:
        order, tick = run.engine.order, run.engine.clock.tasks_per_tick
        epochs = order.epochs_in_tasks(tasks.stop)
        if tasks.stop - order.tasks_in_epochs(epochs) >= tick:  # as in `Progress.epoch`
            epochs += 1
    console = ConsoleMonitor(epochs=epochs, seconds=run.limits.seconds, tasks=tasks)
    run.monitors = (*run.monitors, console)
    return console
