"""Engines that change: what trains is one engine after the other, each going on from where the last one was."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

from crossbow.compile import Program
from crossbow.data import Dataset
from crossbow.dataflow.graph import Graph
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.engine import Engine, OnResult
from crossbow.runtime.free_engine import FreeEngine
from crossbow.runtime.learner import Completed
from crossbow.runtime.results import AnyDecision, TestResult
from crossbow.runtime.summary import RunSummary
from crossbow.runtime.tuner import Tuner, TunerDecision
from crossbow.solver import SolverConf
from crossbow.synch import Collective, Rule, RuleSequence, has_barrier
from crossbow.types import Array, ConfigurationError, CrossbowError

CLOSED = "the context was closed while training"
WARMING_TICKS = 2
"""Of learners that have never trained, before anything is measured."""


def new_engine(
    training: Graph,
    check: Graph,
    data: Dataset,
    model: ModelConf,
    solver: SolverConf,
    system: SystemConf,
    collective: Collective | None = None,
) -> AnyEngine:
    """The engine for a model's rule and a system's learners. Raises GraphError or ConfigurationError."""

    def make(changed_model: ModelConf = model, changed_system: SystemConf = system, beside: int = 0) -> Engine:
        kind = Engine if has_barrier(changed_model.rule) else FreeEngine
        return kind(training, check, data, changed_model, solver, changed_system, collective, beside)

    def with_rule(rule: Rule, beside: int) -> Engine:
        return make(dataclasses.replace(model, rule=rule), system, beside)

    def with_learners(learners: int, beside: int) -> Engine:
        return make(model, dataclasses.replace(system, learners_per_device=learners), beside)

    if isinstance(model.rule, RuleSequence):
        return SequenceEngine(model.rule, with_rule)
    if system.learners_per_device != "auto" or system.deterministic:
        return make()
    first = make()
    counts = {first.parts.device_of.count(device) for device in range(len(first.parts.devices))}
    if len(counts) > 1:  # devices with different numbers of cores
        return first
    return TunedEngine(first, with_learners, counts.pop())


class ChangingEngine:
    """An `Engine`, as what trains now is. What it consists of, `parts`, changes with that."""

    def __init__(self, kind: Any, first: Engine, make: Callable[[Any, int], Engine]) -> None:
        """first: what trains to begin with, of that kind. make: gives the engine of another, beside others that have so
        many bytes of memory."""
        self._kind, self._make, self._closed = kind, make, False
        self._engines = {kind: first}
        """By kind: what trains now, and what is kept beside it."""

    @property
    def _now(self) -> Engine:
        """What trains."""
        return self._engines[self._kind]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    @property
    def on_decision(self) -> Callable[[AnyDecision], None]:
        """See `Engine`. What trains next tells the same."""
        return self._now.on_decision

    @on_decision.setter
    def on_decision(self, tell: Callable[[AnyDecision], None]) -> None:
        self._now.on_decision = tell

    @property
    def tick(self) -> int:
        return self._now.tick

    @property
    def program(self) -> Program:
        return self._now.program

    @property
    def weights(self) -> dict[str, Array]:
        return self._now.weights

    def summary(self) -> RunSummary:
        return self._now.summary()

    def check_process(self) -> None:
        self._now.check_process()

    def check_usable(self) -> None:
        self._now.check_usable()

    def load(self, variables: dict[str, Array], source: str) -> None:
        self._now.load(variables, source)

    def test(self) -> TestResult:
        return self._now.test()

    def predict(self, images: Array) -> Array:
        return self._now.predict(images)

    def _add(self, kind: Any) -> None:
        """Make the engine of a kind. Raises ConfigurationError, also where it has no room beside those that there are;
        CrossbowError after `close`."""
        gc.collect()  # closed engines, whose parts may know each other: their memory is not counted
        self._engines[kind] = self._make(kind, sum(sum(each.parts.memory.values()) for each in self._engines.values()))
        if self._closed:
            self.close()
            raise CrossbowError(CLOSED)

    def _drop(self, kind: Any) -> None:
        self._engines.pop(kind).close()

    def _go_on_with(self, kind: Any) -> None:
        """Let the engine of a kind train from now on, from the base model of what trains now. Where that fails, nothing
        has changed. Raises CrossbowError after `close`."""
        self._engines[kind].continue_from(self._now)
        self._kind = kind
        if self._closed:
            raise CrossbowError(CLOSED)

    def close(self) -> None:
        self._closed = True
        for engine in list(self._engines.values()):
            engine.close()


AnyEngine = Engine | ChangingEngine


class SequenceEngine(ChangingEngine):
    """An engine whose rule changes from phase to phase.

    The engines of all rules are made before the first phase begins, and kept: what would be refused of a later phase is
    refused then, and a change costs no more than a restart.
    """

    def __init__(self, sequence: RuleSequence, make: Callable[[Rule, int], Engine]) -> None:
        """make: gives the engine of a rule. Raises GraphError or ConfigurationError."""
        rules = self._rules = sequence.rules
        self._sequence = sequence
        super().__init__(0, make(rules[0], 0), lambda number, beside: make(rules[number], beside))
        try:
            for number, rule in enumerate(rules):
                if rules.index(rule) == number > 0:
                    self._add(number)
        except BaseException:
            self.close()
            raise
        self._phases = sequence.ends(self._now.parts.learners, self._now.clock.tasks_per_tick)
        (_, self._end), self._following = next(self._phases), next(self._phases)

    def run(self, until: int, stop: Callable[[], bool], on_result: OnResult) -> None:
        """As `Engine.run`, through as many phases as there are until then."""
        while self._now.tasks < until:
            if self.tick >= self._end:
                self._change()
            end = min(until, self._now.tasks + (self._end - self.tick) * self._now.clock.tasks_per_tick)
            self._now.run(end, stop, on_result)
            if self._now.tasks < end:
                return

    def summary(self) -> RunSummary:
        return dataclasses.replace(super().summary(), rule=self._sequence)

    def _change(self) -> None:
        """The next phase: its rule's engine, which starts from the base model."""
        rule, end = self._following
        self._go_on_with(self._rules.index(rule))
        self._now.first_tick = self.tick
        self._end, self._following = end, next(self._phases)


class TunedEngine(ChangingEngine):
    """An engine whose number of learners is found while it trains (`Tuner`).

    The learners of a number start from the base model, as after a restart. Those of the numbers that are being compared
    are kept until there is a decision.
    """

    def __init__(self, first: Engine, make: Callable[[int, int], Engine], learners: int) -> None:
        """first: with so many learners on each device, to begin with. make: gives the engine with another number."""
        super().__init__(learners, first, make)
        self._images, self._seconds = 0, 0.0
        """Of the window so far."""
        self.decisions: list[TunerDecision] = []
        """The tuner's so far."""
        self.tuner = Tuner(learners, self._decided)

    def summary(self) -> RunSummary:
        return dataclasses.replace(super().summary(), tuning=not self.tuner.settled)

    def _decided(self, decision: TunerDecision) -> None:
        self.decisions.append(decision)
        self.on_decision(decision)

    def run(self, until: int, stop: Callable[[], bool], on_result: OnResult) -> None:
        """As `Engine.run`, window by window."""
        while self._now.tasks < until and not stop():
            if not self._change(self.tuner.learners, until, stop, on_result):
                continue
            before = self._now.tasks
            self._window(until, stop, on_result)
            if self._now.tasks == before:
                return  # a tick was left

    def _change(self, learners: int, until: int, stop: Callable[[], bool], on_result: OnResult) -> bool:
        """Let so many learners train from now on; whether they can."""
        compared = self.tuner.compared
        for other in self._engines.keys() - compared - {self._kind}:
            self._drop(other)
        if learners in self._engines:
            self._switch(learners)
            return True
        if self._kind not in compared and (kept := compared & self._engines.keys()):
            self._switch(min(kept))  # so that what is compared no longer is gone before there is another
        try:
            self._add(learners)
        except ConfigurationError as error:  # they do not fit, or the rule does not allow so many
            self.tuner.refused(str(error))
            return False
        self._switch(learners)
        warm = self._now.tasks + WARMING_TICKS * self._now.clock.tasks_per_tick
        self._now.run(min(until, warm), stop, on_result)
        return True

    def _switch(self, learners: int) -> None:
        """Go on with the engine that there is for so many."""
        before = self._kind
        if learners == before:
            return
        self._go_on_with(learners)
        if before not in self.tuner.compared:
            self._drop(before)
        self._images, self._seconds = 0, 0.0

    def _window(self, until: int, stop: Callable[[], bool], on_result: OnResult) -> None:
        """Train until the window is over, which may have begun in an earlier call, and tell the tuner how fast that
        was. Where nothing is compared, training goes on without a break."""
        tuner, began = self.tuner, time.perf_counter()

        def count(result: Completed) -> None:
            self._images += result.examples
            on_result(result)

        def passed() -> None:
            nonlocal began
            now = time.perf_counter()
            self._seconds, began = self._seconds + now - began, now

        def over() -> bool:
            passed()
            return self._images > 0 and self._seconds >= tuner.window_seconds

        def look() -> bool:
            if over():
                self._tell()
            return stop() or not tuner.settled

        if tuner.settled:
            self._now.run(until, look, count)
            passed()
        else:
            self._now.run(until, lambda: stop() or over(), count)
            if over():
                self._tell()

    def _tell(self) -> None:
        """The tuner about a window."""
        rate, self._images, self._seconds = self._images / self._seconds, 0, 0.0
        self.tuner.add(rate)
