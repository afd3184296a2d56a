"""Common base of rules in which replicas and the base model pull each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossbow.conf import Domain, is_number
from crossbow.solver import Pace
from crossbow.solver.update import CONSTANT
from crossbow.synch.rule import Rule

AlphaSteps = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class TimedAlphas(Domain):
    """Steps of α: pairs (time, α), the times ascending.

    >>> TimedAlphas().write(((30.0, 0.1), (1234567.0, 0.05))), TimedAlphas().read("30:0.1")
    ('30:0.1,1234567:0.05', ((30.0, 0.1),))
    """

    zero: bool = False
    """Whether α may be 0."""

    @property
    def allowed(self) -> str:
        bounds = "[0, 1]" if self.zero else "(0, 1]"
        return f"pairs of a time > 0 and an alpha in {bounds}, the times ascending, as ((30, 0.1), (60, 0.05))"

    @property
    def placeholder(self) -> str:
        return "T:A,…"

    @property
    def form(self) -> str:
        return "times and numbers, as 30:0.1,60:0.05"

    def canonical(self, value: Any) -> AlphaSteps:
        pairs = isinstance(value, list | tuple) and all(
            isinstance(step, list | tuple) and len(step) == 2 and all(map(is_number, step)) for step in value
        )
        if not pairs:
            raise ValueError(value)
        times, alphas = [time for time, _ in value], [alpha for _, alpha in value]
        ascending = sorted(set(times)) == times and all(time > 0 for time in times)
        if not ascending or not all(0 <= alpha <= 1 and (alpha > 0 or self.zero) for alpha in alphas):
            raise ValueError(value)
        return tuple((time, alpha) for time, alpha in value)

    def read(self, text: str) -> AlphaSteps:
        """Pairs of any numbers, which the rule validates."""
        steps = [tuple(float(number) for number in step.split(":")) for step in text.split(",")]
        return tuple((time, alpha) for time, alpha in steps)

    def write(self, value: Any) -> str:
        return ",".join(":".join(super(TimedAlphas, self).write(number) for number in step) for step in value)


class Elastic(Rule):
    """A rule whose replicas are pulled towards z, with a strength α that may change in steps.

    alpha_steps: ascending pairs (time, α); α has the given value from that time on, and is `alpha` before the first.
    Times are > 0, in the solver's `learning_rate_step_unit`: tasks, epochs or merges.
    """

    alpha: float | None
    """Strength of the correction."""
    alpha_steps: AlphaSteps
    """Times, in `learning_rate_step_unit`, and the alpha from each of them on, as 30:0.1,60:0.05."""

    def strength(self, pace: Pace, learners: int) -> float:
        """α at this pace."""
        reached = [alpha for since, alpha in self.alpha_steps if since <= pace.time]
        if reached:
            return reached[-1]
        return 1 / max(learners, 2) if self.alpha is None else self.alpha

    @property
    def strength_depends_on(self) -> frozenset[str]:
        """Fields of `Pace` that α depends on."""
        return frozenset({"time"}) if self.alpha_steps else CONSTANT
