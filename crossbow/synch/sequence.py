"""Sequences of rules."""

from __future__ import annotations

from typing import NamedTuple

from crossbow.conf import is_integer, parameters, shown
from crossbow.synch.rule import Rule
from crossbow.synch.two_level import TwoLevel
from crossbow.types import ConfigurationError


class RulePhase(NamedTuple):
    """A rule and its length in merges."""

    rule: Rule | TwoLevel
    merges: int


@parameters
class RuleSequence:
    """Rules one after the other, each for a number of merges, repeated in a cycle (SpeeDO's --hybrid).

    A phase ends with the tick in which its last merge would be due if none were dropped; all running tasks finish. The
    next phase starts like a restart: all learners take z, with zero velocity. All rules have the same τ, so that their
    ticks have the same length.

    If one rule has two levels, all have, with the same τ in each level. Their merges are those of the hosts, so a phase
    ends with the tick of z in which its last one is due.

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
        if not good or not given or not all(_is_rule(rule) and _positive(merges) for rule, merges in given):
            raise ConfigurationError(
                "RuleSequence: phases must be pairs of a rule and a number of merges ≥ 1, as "
                f"((SMA(), 100), (SSGD(), 20)). Received: phases={shown(given)}"
            )
        object.__setattr__(self, "phases", tuple(RulePhase(*each) for each in given))
        taus = {_taus(rule) for rule in self.rules}
        if len({len(each) for each in taus}) > 1:
            raise ConfigurationError(
                f"RuleSequence: rules must all have two levels, or none. Received: phases={shown(given)}"
            )
        if len(taus) > 1:
            received = ", ".join(" · ".join(map(str, each)) for each in sorted(taus))
            raise ConfigurationError(f"RuleSequence: rules must have the same tau. Received: {received}")

    @property
    def rules(self) -> tuple[Rule | TwoLevel, ...]:
        return tuple(phase.rule for phase in self.phases)

    @property
    def tau(self) -> int:
        return self.phases[0].rule.tau


def ticks_of_phase(rule: Rule | TwoLevel, merges: int, learners: int, tasks_per_tick: int) -> int:
    """The number of ticks until the last of these merges is due; with two levels, the ticks of z."""
    return -(-merges * rule.tasks_per_merge(learners) // tasks_per_tick)


def has_two_levels(rule: Rule | RuleSequence | TwoLevel | None) -> bool:
    """Whether there is a rule within hosts, and one between them."""
    return isinstance(rule.rules[0] if isinstance(rule, RuleSequence) else rule, TwoLevel)


def _is_rule(rule: object) -> bool:
    return isinstance(rule, Rule | TwoLevel)


def _taus(rule: Rule | TwoLevel) -> tuple[int, ...]:
    """τ of each level."""
    return (rule.within.tau, rule.between.tau) if isinstance(rule, TwoLevel) else (rule.tau,)


def _positive(merges: object) -> bool:
    return is_integer(merges) and merges >= 1  # type: ignore[operator]
