"""The ends of training and the times of tests, as numbers of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from crossbow.conf import configuration, is_integer, is_number, shown
from crossbow.data.order import TrainingOrder
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.solver import SolverConf
from crossbow.solver.schedule import time_of_zero_rate
from crossbow.types import ConfigurationError, DurationUnit, TrainingUnit

Kept = Literal["kept"]
"""A limit of a training call that continues, which is that of the interrupted call."""


@configuration
class Limits:
    """Limits of training, which ends when the first of them is reached. `of` checks the arguments of a training
    call."""

    count: int | None = None
    """Epochs or tasks, rounded up to whole ticks."""
    unit: TrainingUnit = TrainingUnit.EPOCHS
    seconds: float | None = None
    """Seconds of training, without tests. A tick that would last much longer is undone."""
    loss: float | None = None
    """Upper bound of the mean training loss over the last epoch's tasks."""
    accuracy: float | None = None
    """Lower bound of a test's accuracy."""

    @classmethod
    def of(
        cls,
        count: int | None,
        unit: TrainingUnit,
        *,
        target_loss: float | None = None,
        target_accuracy: float | None = None,
        duration: float | None = None,
        duration_unit: DurationUnit = DurationUnit.SECONDS,
    ) -> Limits:
        """The limits of a training call, from its arguments. Raises ConfigurationError, with the name of the argument,
        for an invalid one, and if there is no limit."""
        for name, chosen, known in (("unit", unit, TrainingUnit), ("duration_unit", duration_unit, DurationUnit)):
            if not isinstance(chosen, known):
                raise _refused(name, chosen, f"one of {', '.join(map(str, known))}")
        if count is not None and not (is_integer(count) and count >= 1):
            raise _refused("count", count, "an integer ≥ 1")
        if duration is not None and not (is_number(duration) and duration > 0):
            raise _refused("duration", duration, "a finite number > 0")
        if target_loss is not None and not is_number(target_loss):
            raise _refused("target_loss", target_loss, "a finite number")
        if target_accuracy is not None and not (is_number(target_accuracy) and 0 <= target_accuracy <= 1):
            raise _refused("target_accuracy", target_accuracy, "a fraction, a finite number ≥ 0 and ≤ 1")
        if count is None and duration is None and target_loss is None and target_accuracy is None:
            raise ConfigurationError("training must end: expected a count, a duration or a target. Received: none")
        seconds = None if duration is None else duration * duration_unit.value
        return cls(count=count, unit=unit, seconds=seconds, loss=target_loss, accuracy=target_accuracy)

    @classmethod
    def continued(
        cls,
        before: Mapping[str, Any],
        *,
        count: int | Kept | None,
        target_loss: float | Kept | None,
        target_accuracy: float | Kept | None,
        duration: float | Kept | None,
        duration_unit: DurationUnit,
    ) -> Limits:
        """The limits of a training call that continues. before: the limits of the interrupted call, as JSON values; the
        others replace them. Raises ConfigurationError, as `of` does."""

        def chosen(value: Any, name: str) -> Any:
            return before[name] if isinstance(value, str) and value == "kept" else value

        return cls.of(
            chosen(count, "count"),
            TrainingUnit[before["unit"]],
            target_loss=chosen(target_loss, "loss"),
            target_accuracy=chosen(target_accuracy, "accuracy"),
            duration=chosen(duration, "seconds"),
            duration_unit=DurationUnit.SECONDS if isinstance(duration, str) else duration_unit,
        )

    def time_is_over(self, seconds: float) -> bool:
        """Whether these are as many seconds of training as the limit, if there is one."""
        return self.seconds is not None and seconds >= self.seconds


def _refused(name: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{name} must be {allowed}. Received: {name}={shown(value)}")


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


def end_of_decay(limits: Limits, engine: TrainingEngine, solver: SolverConf, start: int) -> str:
    """A warning if the learning rate becomes 0 before the training call ends; "" if it does not, or if the end is not
    known. start: number of tasks at the beginning of the call."""
    end, tick = end_of_training(limits, engine, start), engine.clock.tasks_per_tick
    zero = time_of_zero_rate(solver)
    if zero is None or end == math.inf or limits.seconds is not None or limits.loss is not None:
        return ""
    unit = solver.learning_rate_step_unit
    if unit == "epochs":
        tasks = math.ceil(zero * engine.tasks_per_epoch)
    elif unit == "tasks":
        tasks = zero
    elif engine.clock.barrier and engine.clock.ticks == 1:
        tasks = zero * tick
    else:
        return ""
    if end - max(tasks, start) < tick:
        return ""
    before, whole = (engine.clock.whole_ticks(int(until) - start) // tick for until in (tasks, end))
    counts = "" if unit == "epochs" else '. learning_rate_step_unit="epochs" counts epochs'
    return (
        f"the learning rate becomes 0 after {before} of the {whole} ticks of this training call: the "
        f"{'decay' if solver.decay_steps else 'annihilation'} ends after {zero} {unit}{counts}"
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
