"""Rules one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crossbow.conf import is_integer, parameters, shown
from crossbow.synch.rule import Rule
from crossbow.types import ConfigurationError


class Phase(NamedTuple):
    """A rule, and for how many merges it is followed."""

    rule: Rule
    merges: int


@parameters
class RuleSequence:
    """Rules in turn, each for so many merges, and then again from the first (SpeeDO's --hybrid).

    A phase ends with the tick in which its last merge is due, were nothing dropped; whatever is under way is finished.
    The next begins as after a restart: all learners start from z, without velocities. All rules have the same τ, so
    that their ticks are as long.

    Fixed from SpeeDO: a phase's rule is that by which z is merged, too.

    >>> from crossbow.synch import SMA, SSGD
    >>> RuleSequence(((SMA(), 100), (SSGD(), 20))).phases[1].merges
    20
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        given = self.phases
        good = isinstance(given, list | tuple) and all(
            isinstance(each, list | tuple) and len(each) == 2 for each in given
        )
        if not good or not given or not all(isinstance(rule, Rule) and _positive(merges) for rule, merges in given):
            raise ConfigurationError(
                "RuleSequence: phases must be pairs of a rule and a number of merges ≥ 1, as "
                f"((SMA(), 100), (SSGD(), 20)). Received: phases={shown(given)}"
            )
        object.__setattr__(self, "phases", tuple(Phase(*each) for each in given))
        taus = {rule.tau for rule, _ in self.phases}
        if len(taus) > 1:
            raise ConfigurationError(f"RuleSequence: rules must have the same tau. Received: {sorted(taus)}")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(phase.rule for phase in self.phases)

    @property
    def tau(self) -> int:
        return self.phases[0].rule.tau

    def ends(self, learners: int, tasks_per_tick: int) -> Iterator[tuple[Rule, int]]:
        """The phases without end: each one's rule, and the tick with which it ends."""
        tick = 0
        while True:
            for rule, merges in self.phases:
                tick += -(-merges * rule.tasks_per_merge(learners) // tasks_per_tick)
                yield rule, tick


def _positive(merges: object) -> bool:
    return is_integer(merges) and merges >= 1  # type: ignore[operator]
