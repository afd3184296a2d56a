"""Sequences of rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crossbow.conf import is_integer, parameters, shown
from crossbow.synch.rule import Rule
from crossbow.types import ConfigurationError


class RulePhase(NamedTuple):
    """A rule and its length in merges."""

    rule: Rule
    merges: int


@parameters
class RuleSequence:
    """Rules in turn, each for a number of merges, repeated in a cycle (SpeeDO's --hybrid).

    A phase ends with the tick in which its last merge would be due if none were dropped; all running tasks finish. The
    next phase starts like a restart: all learners take z, with zero velocity. All rules have the same τ, so that their
    ticks have the same length.

    Fixed from SpeeDO: the rule of a phase also defines how z is merged.

    >>> from crossbow.synch import SMA, SSGD
    >>> RuleSequence(((SMA(), 100), (SSGD(), 20))).phases[1].merges
    20
    """

    phases: tuple[RulePhase, ...]

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
        object.__setattr__(self, "phases", tuple(RulePhase(*each) for each in given))
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
        """An endless iterator over phases: the rule of each, and the tick with which it ends."""
        tick = 0
        while True:
            for rule, merges in self.phases:
                tick += -(-merges * rule.tasks_per_merge(learners) // tasks_per_tick)
                yield rule, tick


def _positive(merges: object) -> bool:
    return is_integer(merges) and merges >= 1  # type: ignore[operator]
