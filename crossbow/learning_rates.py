"""The learning-rate range test: with which learning rates the loss falls, and from which on training diverges.

L. N. Smith, Cyclical Learning Rates for Training Neural Networks (arXiv:1506.01186, 2015), section 3.3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.conf import is_integer
from crossbow.context import ExecutionContext
from crossbow.data import Dataset
from crossbow.runtime.arguments import Network
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.solver import SolverConf
from crossbow.solver.configuration import SCHEDULE_FIELDS
from crossbow.types import ConfigurationError, NonFiniteLossError, TrainingUnit

KEPT = 0.9
"""Fraction of the mean loss that is kept at each point."""
TOO_LARGE = 4.0
"""The test ends when the mean loss is this many times the smallest one."""
FEWEST = 10
"""Number of points before which nothing is concluded: the mean is that of a few losses."""


@dataclass(frozen=True)
class RangeTest:
    """What a learning-rate range test measured, a point for each clock tick."""

    rates: tuple[float, ...]
    """The learning rates, which increase."""
    losses: tuple[float, ...]
    """The mean loss of each tick's tasks."""
    diverged: bool
    """Whether the test ended because the loss became large or was not finite."""

    @property
    def smoothed(self) -> tuple[float, ...]:
        """The exponential moving mean of the losses, without bias towards the first one."""
        mean, means = 0.0, []
        for number, loss in enumerate(self.losses, start=1):
            mean = KEPT * mean + (1 - KEPT) * loss
            means.append(mean / (1 - KEPT**number))
        return tuple(means)

    @property
    def least(self) -> float | None:
        """The rate with the smallest mean loss: a little more, and the loss increases. None if it never decreased."""
        lowest = self._lowest()
        return None if lowest is None else self.rates[lowest]

    @property
    def suggestion(self) -> float | None:
        """The rate at which the mean loss falls fastest, by the rate's logarithm, from its largest value to
        `least`; but at most a third of `least`. None if the loss never decreased."""
        lowest = self._lowest()
        if lowest is None:
            return None
        means, first = np.array(self.smoothed), FEWEST - 1
        first += int(means[first:lowest].argmax())
        falls = np.gradient(means[first : lowest + 1], np.log(self.rates[first : lowest + 1]))
        return min(self.rates[first + int(falls.argmin())], self.rates[lowest] / 3)

    def _lowest(self) -> int | None:
        """Where the mean loss is smallest; None if that is at the beginning."""
        smoothed = self.smoothed
        lowest = int(np.argmin(smoothed)) if smoothed else 0
        return lowest if lowest >= FEWEST else None


def find_learning_rate(
    dataflows: Network | Sequence[Network | None],
    *,
    data: Dataset,
    model: ModelConf | None = None,
    solver: SolverConf | None = None,
    system: SystemConf | None = None,
    lowest: float = 1e-6,
    highest: float = 10.0,
    tasks: int = 200,
) -> RangeTest:
    """Train with a learning rate that increases from `lowest` to `highest` by the same factor in each task, and record
    the loss. The test ends sooner if training diverges.

    dataflows, data, model, solver, system: as for an `ExecutionContext`. This function makes its own context, so that
    no trained model changes. The solver's learning rate and its schedule are ignored.
    lowest, highest: learning rates, 0 < lowest < highest.
    tasks: number of tasks, ≥ 2, rounded up to whole ticks.

    Choose `suggestion` as the learning rate, or as the highest rate of a schedule. Repeat the test with another rule,
    batch size or number of learners. Raises what an ExecutionContext raises, and ConfigurationError for invalid rates.

    >>> from crossbow import Sequential
    >>> from crossbow.data import digits
    >>> from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
    >>> network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
    >>> solver = SolverConf(momentum=0.9)
    >>> found = find_learning_rate(network, data=digits(), model=ModelConf(batch_size=16), solver=solver)
    >>> 1e-5 < found.suggestion < 1
    True
    """
    for name, value in (("lowest", lowest), ("highest", highest)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigurationError(f"{name} must be a finite number > 0. Received: {value!r}")
    if lowest >= highest:
        raise ConfigurationError(f"lowest must be less than highest. Received: {lowest:g} and {highest:g}")
    if not is_integer(tasks) or tasks < 2:
        raise ConfigurationError(f"tasks must be an integer ≥ 2. Received: {tasks!r}")
    increasing = _increasing(SolverConf() if solver is None else solver, lowest, highest, tasks)
    with ExecutionContext(dataflows, data=data, model=model, solver=increasing, system=system, monitors=()) as context:
        return _measure(context, lowest, increasing.gamma, tasks)


def _increasing(solver: SolverConf, lowest: float, highest: float, tasks: int) -> SolverConf:
    """The solver with a rate of `lowest` in the first task, and `highest` in the last."""
    schedule = {*SCHEDULE_FIELDS, "learning_rate", "policy", "learning_rate_step_unit"}
    kept = {
        field.name: getattr(solver, field.name) for field in dataclasses.fields(solver) if field.name not in schedule
    }
    growth = (highest / lowest) ** (1 / (tasks - 1))
    return SolverConf(**kept, learning_rate=lowest, policy="exp", gamma=growth)


def _measure(context: ExecutionContext, lowest: float, growth: float, tasks: int) -> RangeTest:
    rates: list[float] = []
    losses: list[float] = []
    done, diverged, best = 0, False, math.inf
    while done < tasks and not diverged:
        try:
            record = context.train(1, TrainingUnit.TASKS, verbose=0).records[-1]
        except NonFiniteLossError:
            diverged = True
            break
        rates.append(lowest * growth**done)
        losses.append(record.loss)
        done = record.tasks
        mean = RangeTest(tuple(rates), tuple(losses), False).smoothed[-1]
        if len(rates) > FEWEST:
            best = min(best, mean)
            diverged = mean > TOO_LARGE * best
    return RangeTest(tuple(rates), tuple(losses), diverged)
