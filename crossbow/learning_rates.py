"""The learning-rate range test, which finds the learning rates at which the loss falls and at which training diverges.

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
"""Fraction of the moving mean of the loss that is kept at each point."""
TOO_LARGE = 4.0
"""The test ends when the moving mean of the loss is larger than its minimum by this factor."""
RISE = 0.25
"""Training has diverged where the moving mean of the loss is larger than its minimum by this fraction of it…"""
RISE_OF_FALL = 0.1
"""… and by this fraction of its fall to the minimum, which is more than noise."""
BELOW_LEAST = 3.0
"""The suggestion is the rate with the smallest mean loss, divided by this factor. The mean lags behind the losses, and
a whole training needs a larger distance from divergence than a few tasks."""
FEWEST = 10
"""Minimum number of points for a conclusion, because before them the mean includes only a few losses."""


@dataclass(frozen=True)
class RangeTest:
    """The measurements of a learning-rate range test, with a point for each clock tick."""

    rates: tuple[float, ...]
    """The learning rates, in increasing order."""
    losses: tuple[float, ...]
    """The mean loss of each tick's tasks."""
    diverged: bool
    """Whether the test ended because the loss became large or was not finite, or whether the loss has risen from its
    minimum, as that of a network that has lost what it had learnt."""

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
        """The learning rate with the smallest mean loss; above it, the loss increases. None if it never decreased."""
        lowest = self._lowest()
        return None if lowest is None else self.rates[lowest]

    @property
    def suggestion(self) -> float | None:
        """A third of `least`; None if the loss never decreased.

        Smith (2017) reads the highest rate of a cycle from the picture: that at which the loss stops falling, as
        `least`. The rate at which the loss falls fastest is no better: it may be anywhere, because the losses of single
        batches differ more than those of similar rates."""
        return None if self.least is None else self.least / BELOW_LEAST

    @property
    def divergence(self) -> float | None:
        """The learning rate from which on training diverges: the mean loss is then larger than its minimum by a quarter
        of it, and by a tenth of its fall. None if training did not diverge."""
        lowest, means = self._lowest(), np.array(self.smoothed)
        if lowest is not None:
            fall = float(means[FEWEST - 1 : lowest].max() - means[lowest])
            bound = means[lowest] + max(RISE * means[lowest], RISE_OF_FALL * fall)
            if (risen := np.flatnonzero(means[lowest:] > bound)).size:
                return self.rates[lowest + int(risen[0])]
        return self.rates[-1] if self.diverged and self.rates else None

    def _lowest(self) -> int | None:
        """Index of the point with the smallest mean loss; None if it is among the first points."""
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
    the loss. The test ends sooner if the loss becomes large or is not finite.

    dataflows, data, model, solver, system: as for an `ExecutionContext`. This function makes its own context, so that
    no trained model changes. The solver's learning rate and its schedule are ignored.
    lowest, highest: learning rates, 0 < lowest < highest.
    tasks: number of tasks, ≥ 2, rounded up to whole ticks.

    Choose `suggestion` as the learning rate, or as the highest rate of a schedule. Repeat the test if the rule, the
    batch size or the number of learners changes. Raises the errors of an `ExecutionContext`, and ConfigurationError for
    invalid rates.

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
    found = RangeTest(tuple(rates), tuple(losses), diverged)
    return dataclasses.replace(found, diverged=diverged or found.divergence is not None)
