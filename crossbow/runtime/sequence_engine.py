"""The engine of a sequence of rules: one engine after the other, each going on from where the last one was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from crossbow.compile import Program
from crossbow.conf import ModelConf, SolverConf, SystemConf
from crossbow.data import Dataset
from crossbow.dataflow.graph import Graph
from crossbow.runtime.engine import Engine, OnResult, check_rule
from crossbow.runtime.free_engine import FreeEngine
from crossbow.runtime.results import TestResult
from crossbow.synch import Collective, Rule, RuleSequence, has_barrier
from crossbow.types import Array


def new_engine(
    training: Graph,
    check: Graph,
    data: Dataset,
    model: ModelConf,
    solver: SolverConf,
    system: SystemConf,
    collective: Collective | None = None,
) -> Engine | SequenceEngine:
    """The engine for a model's rule. Raises GraphError or ConfigurationError."""
    if isinstance(model.rule, RuleSequence):
        return SequenceEngine(model.rule, training, check, data, model, solver, system, collective)
    kind = Engine if has_barrier(model.rule) else FreeEngine
    return kind(training, check, data, model, solver, system, collective)


class SequenceEngine:
    """An `Engine` whose rule changes from phase to phase. What it consists of, `parts`, changes with it."""

    def __init__(
        self,
        sequence: RuleSequence,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None,
    ) -> None:
        def make(rule: Rule) -> Engine:
            kind = Engine if has_barrier(rule) else FreeEngine
            return kind(training, check, data, dataclasses.replace(model, rule=rule), solver, system, collective)

        for rule in sequence.rules:
            check_rule(rule, system)
        self._make = make
        self._now = make(sequence.phases[0].rule)
        try:
            sequence.check_learners(self._now.parts.learners)
        except BaseException:
            self._now.close()
            raise
        self._phases = sequence.ends(self._now.parts.learners, self._now.clock.tasks_per_tick)
        _, self._end = next(self._phases)

    def run(self, until: int, stop: Callable[[], bool], on_result: OnResult) -> None:
        """As `Engine.run`, through as many phases as there are until then."""
        while self.tick < until:
            if self.tick >= self._end:
                self._change()
            end = min(until, self._end)
            self._now.run(end, stop, on_result)
            if self.tick < end:
                return

    def _change(self) -> None:
        """The next phase: an engine with its rule, which starts from this one's base model."""
        before, (rule, end) = self._now, next(self._phases)
        following = self._make(rule)
        following.continue_from(before)
        self._now, self._end = following, end
        before.close()

    # The engine of now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    @property
    def tick(self) -> int:
        return self._now.tick

    @property
    def program(self) -> Program:
        return self._now.program

    @property
    def weights(self) -> dict[str, Array]:
        return self._now.weights

    def check_usable(self) -> None:
        self._now.check_usable()

    def load(self, variables: dict[str, Array], source: str) -> None:
        self._now.load(variables, source)

    def test(self) -> TestResult:
        return self._now.test()

    def predict(self, images: Array) -> Array:
        return self._now.predict(images)

    def close(self) -> None:
        self._now.close()
