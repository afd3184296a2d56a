"""The ends of training and the times of tests, as numbers of tasks."""

from __future__ import annotations

import math

from crossbow.conf import check_integer, check_number, configuration
from crossbow.data.order import TrainingOrder
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import ConfigurationError, TrainingUnit


@configuration
class Limits:
    """Limits of training, which ends when the first of them is reached."""

    count: int | None = None
    """Epochs or tasks, rounded up to whole ticks."""
    unit: TrainingUnit = TrainingUnit.EPOCHS
    seconds: float | None = None
    """Seconds of training, without tests. A tick that would last much longer is undone."""
    loss: float | None = None
    """Upper bound of the mean training loss over the last epoch's tasks."""
    accuracy: float | None = None
    """Lower bound of a test's accuracy."""

    def __post_init__(self) -> None:
        check_integer(self, "count", 1, optional=True)
        check_number(self, "seconds", minimum=0, above=True, optional=True)
        check_number(self, "loss", optional=True)
        check_number(self, "accuracy", minimum=0, maximum=1, optional=True)


def end_of_training(limits: Limits, engine: TrainingEngine, start: int) -> float:
    """Number of tasks at which `count` is complete; infinite without a count. An epoch ends with the stream of
    examples, so a call that starts in the tick in which an epoch ended runs to the end of the next. start: number of
    tasks at the beginning of the call."""
    clock, order, count = engine.clock, engine.order, limits.count
    if count is None:
        return math.inf
    if limits.unit is TrainingUnit.TASKS:
        return start + count
    epochs = order.epochs_in_tasks(start)
    if start - order.tasks_in_epochs(epochs) < clock.tasks_per_tick:
        return order.tasks_in_epochs(epochs + count)
    return start + math.ceil(count * engine.tasks_per_epoch)


def check_tick(limits: Limits, engine: TrainingEngine) -> None:
    """Raise ConfigurationError for a τ with which the first tick is longer than the training. (One task of each learner
    is allowed, and with two levels, a last tick of the hosts.)"""
    clock, count = engine.clock, limits.count
    if count is None:
        return
    asked = count if limits.unit is TrainingUnit.TASKS else engine.order.tasks_in_epochs(count)
    tau = clock.tau * clock.ticks
    last = 0 if clock.host_ticks is None else clock.tasks_per_host_tick - 1
    if tau > 1 and clock.tasks_per_tick - last > asked:
        raise ConfigurationError(
            f"expected at most {asked} tasks in a tick, those of the training asked for. "
            f"Received: {clock.tasks_per_tick}, tau={tau} for each of the {clock.learners} learners"
        )


def epochs_done(engine: TrainingEngine) -> float:
    """Number of epochs done: an integer in the tick in which an epoch ends, even if that tick extends into the next
    epoch."""
    epochs = engine.order.epochs_in_tasks(engine.tasks)
    beyond = engine.tasks - engine.order.tasks_in_epochs(epochs)
    return float(epochs) if beyond < engine.clock.tasks_per_tick else engine.tasks / engine.tasks_per_epoch


def next_multiple(order: TrainingOrder, interval: int, unit: TrainingUnit, tasks: int) -> int:
    """The next number of tasks after `tasks` at which a multiple of the interval is complete."""
    done = order.epochs_in_tasks(tasks) if unit is TrainingUnit.EPOCHS else tasks
    multiple = (done // interval + 1) * interval
    return order.tasks_in_epochs(multiple) if unit is TrainingUnit.EPOCHS else multiple
