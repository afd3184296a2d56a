"""Rule sequences: one engine for each rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from crossbow.runtime.engine import Engine
from crossbow.runtime.engines import Engines
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.summary import RunSummary
from crossbow.synch import Rule, RuleSequence, TwoLevel
from crossbow.synch.sequence import ticks_of_phase


class Phases:
    """Trains through the phases of a rule sequence."""

    def __init__(self, sequence: RuleSequence, engines: Engines) -> None:
        self._sequence, self._engines = sequence, engines
        now = engines.now
        rules, of_now = sequence.rules, (now.parts.setting.learners, now.clock.tasks_per_tick)
        # Rules with groups are resolved for the present learners.
        given = [engines.of(rules.index(rule)).parts.setting.given_rule for rule in rules]
        merges = [phase.merges for phase in sequence.phases]
        self._lengths = [ticks_of_phase(*each, *of_now) * now.clock.ticks for each in zip(given, merges, strict=True)]
        """Length of each phase in ticks; with two levels, in ticks of the hosts."""
        self._phase = 0
        """Number of the current phase, counted from the beginning of training."""

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Train until the given number of tasks is done, through all phases that this needs."""
        engines = self._engines
        while engines.now.tasks < until:
            if self._left <= 0:
                self._change()
            now = engines.now
            end = min(until, now.tasks + self._left * now.clock.tasks_per_host_tick)
            now.run(end, callbacks)
            if now.tasks < end:
                return

    def describe(self, summary: RunSummary) -> RunSummary:
        """The summary of the current engine, with the whole sequence."""
        return dataclasses.replace(summary, rule=self._sequence)

    def state(self) -> dict[str, Any]:
        return {"phase": self._phase, "sequence": repr(self._sequence)}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Continue in a phase of the same sequence; another sequence begins with its first phase."""
        if state.get("sequence") != repr(self._sequence):
            return False
        self._phase = state["phase"]
        self._engines.select(self._kind(self._phase))
        return True

    @property
    def _left(self) -> int:
        """Number of remaining ticks of the current phase. Earlier ticks count as if they had had the present number of
        learners, although ranks may have left or joined. It may be negative."""
        return self._lengths[self._phase % len(self._lengths)] - self._engines.now.position.ticks_of_phase

    def _change(self) -> None:
        """Begin the next phase: its rule's engine starts from the base model."""
        self._engines.go_on_with(self._kind(self._phase + 1))
        self._engines.now.position.begin_phase()
        self._phase += 1

    def _kind(self, phase: int) -> int:
        """The kind of a phase's engine: the number of its rule."""
        rules = self._sequence.rules
        return rules.index(rules[phase % len(rules)])


def engines_of(sequence: RuleSequence, make: Callable[[Rule | TwoLevel, int], Engine]) -> Engines:
    """The engines of all rules, created before the first phase and kept: an invalid phase is rejected at once, and a
    change costs no more than a restart. Raises GraphError or ConfigurationError."""
    rules = sequence.rules
    engines = Engines(0, make(rules[0], 0), lambda number, beside: make(rules[number], beside))
    try:
        for number, rule in enumerate(rules):
            if rules.index(rule) == number > 0:
                engines.add(number)
    except BaseException:
        engines.close()
        raise
    return engines
