"""Common base of rules in which replicas and the base model pull each other."""

from __future__ import annotations

from crossbow.conf import is_number
from crossbow.solver import Pace
from crossbow.synch.rule import Rule

AlphaSteps = tuple[tuple[float, float], ...]


class Elastic(Rule):
    """A rule whose replicas are pulled towards z, with a strength α that may change in steps.

    alpha_steps: ascending pairs (time, α); α has the given value from that time on, and is `alpha` before the first.
    Times are > 0, in the solver's `learning_rate_step_unit`: tasks, epochs or merges.
    """

    alpha: float | None
    alpha_steps: AlphaSteps

    def at(self, pace: Pace, tick: int, time: float) -> Pace:
        reached = [alpha for since, alpha in self.alpha_steps if since <= time]
        return pace._replace(alpha=reached[-1]) if reached else pace

    def strength(self, pace: Pace, learners: int) -> float:
        """α at this pace."""
        if self.alpha_steps and pace.alpha is not None:
            return pace.alpha
        return 1 / max(learners, 2) if self.alpha is None else self.alpha

    def _check_alpha(self, *, zero: bool = False, default: str = "") -> None:
        """Raises ConfigurationError."""
        self._check_strength("alpha", zero=zero, default=default)
        given = self.alpha_steps
        pairs = isinstance(given, list | tuple) and all(
            isinstance(step, list | tuple) and len(step) == 2 and all(map(is_number, step)) for step in given
        )
        times = [time for time, _ in given] if pairs else []
        ascending = sorted(set(times)) == times and all(time > 0 for time in times)
        if not (pairs and ascending and all((alpha > 0 or (zero and alpha == 0)) and alpha <= 1 for _, alpha in given)):
            bounds = "[0, 1]" if zero else "(0, 1]"
            allowed = f"pairs of a time > 0 and an alpha in {bounds}, the times ascending, as ((30, 0.1), (60, 0.05))"
            raise self.refuse("alpha_steps", given, allowed)
        object.__setattr__(self, "alpha_steps", tuple((time, alpha) for time, alpha in given))
