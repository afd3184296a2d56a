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


class Phases:
    """Trains through the phases of a rule sequence."""

    def __init__(self, sequence: RuleSequence, engines: Engines) -> None:
        self._sequence, self._engines = sequence, engines
        now = engines.now
        self._ends = sequence.ends(now.parts.setting.learners, now.clock.tasks_per_tick)
        self._host_ticks = now.clock.ticks
        (_, self._end), self._following = next(self._ends), next(self._ends)
        self._phase = 0
        """Number of the current phase, from the beginning of training."""

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Train until the given number of tasks is done, through as many phases as necessary."""
        engines = self._engines
        while engines.now.tasks < until:
            if engines.now.tick >= self._end * self._host_ticks:
                self._change()
            now = engines.now
            end = min(until, now.tasks + (self._end * self._host_ticks - now.tick) * now.clock.tasks_per_host_tick)
            now.run(end, callbacks)
            if now.tasks < end:
                return

    def describe(self, summary: RunSummary) -> RunSummary:
        """The summary of the current engine, with the whole sequence."""
        return dataclasses.replace(summary, rule=self._sequence)

    def state(self) -> dict[str, Any]:
        return {"phase": self._phase, "sequence": repr(self._sequence)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue in a phase of the same sequence; another sequence begins with its first phase."""
        if state.get("sequence") != repr(self._sequence):
            return
        while self._phase < state["phase"]:
            rule = self._following[0]
            self._count()
            self._engines.select(self._sequence.rules.index(rule))

    def _change(self) -> None:
        """Begin the next phase: its rule's engine starts from the base model."""
        self._engines.go_on_with(self._sequence.rules.index(self._following[0]))
        self._engines.now.position.begin_phase()
        self._count()

    def _count(self) -> None:
        self._phase += 1
        (_, self._end), self._following = self._following, next(self._ends)


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
