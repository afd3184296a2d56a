"""The engine of a context: a single engine, or a sequence of engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks
from crossbow.compile import Program
from crossbow.data import Dataset
from crossbow.data.bad_examples import BadExamples
from crossbow.data.order import TrainingOrder
from crossbow.dataflow.graph import Graph
from crossbow.runtime.building import check_served
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.device import parse_devices
from crossbow.runtime.engine import Engine
from crossbow.runtime.engines import Engines
from crossbow.runtime.observation import Observation
from crossbow.runtime.phases import Phases, engines_of
from crossbow.runtime.results import TestResult
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.summary import RunSummary
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.runtime.tuning import Tuning
from crossbow.solver import SolverConf
from crossbow.synch import Collective, Rule, RuleSequence, TwoLevel
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, Phase

FIXED = 0
"""Instead of a number of learners: the auto-tuner is off."""


def new_engine(
    training: Graph,
    check: Graph,
    data: Dataset,
    model: ModelConf,
    solver: SolverConf,
    system: SystemConf,
    collective: Collective | None = None,
    recorder: Recorder | None = None,
    ranks: Ranks | None = None,
    number: int = 0,
) -> TrainingEngine:
    """Create the engine for a model's rule and a system's learners. recorder: records its timeline. ranks: by default
    the ranks of this process. number: number of the model; see `Ranks.next_model`. Raises GraphError or
    ConfigurationError.
    """
    check_served(model.rule, system)
    ranks = ranks or join()
    sharing = Sharing(ranks, number) if ranks.several else None
    bad = new_bad_examples(data, ranks) if system.on_bad_record == "skip" else None

    def make(changed_model: ModelConf, changed_system: SystemConf, beside: int) -> Engine:
        confs = changed_model, solver, changed_system
        return Engine(training, check, data, *confs, collective, beside, bad, recorder, ranks, sharing)

    def with_rule(rule: Rule | TwoLevel, beside: int) -> Engine:
        return make(dataclasses.replace(model, rule=rule), system, beside)

    def with_learners(learners: int, beside: int) -> Engine:
        return make(model, dataclasses.replace(system, learners_per_device=learners), beside)

    if isinstance(model.rule, RuleSequence):
        engines = engines_of(model.rule, with_rule)
        return ChangingEngine(engines, Phases(model.rule, engines))
    begin, first = number_to_begin_with(system, ranks), make(model, system, 0)
    if begin == FIXED:
        return first
    engines = Engines(begin, first, with_learners)
    return ChangingEngine(engines, Tuning(engines))


def number_to_begin_with(system: SystemConf, ranks: Ranks) -> int:
    """The number of learners on each device with which the auto-tuner begins, or `FIXED`. All ranks must call this;
    they get the same number."""
    if system.deterministic:
        return FIXED
    wanted = system.learners_per_device
    own = sorted({device.learners(wanted) for device in parse_devices(system.devices)}) if wanted == "auto" else [FIXED]
    found = {number for of_rank in ranks.gather(own) for number in of_rank}
    return found.pop() if len(found) == 1 else FIXED  # devices may have different numbers of cores


def new_bad_examples(data: Dataset, ranks: Ranks) -> dict[Phase, BadExamples]:
    """The bad examples of each phase, initially none."""
    numbers = None if data.share is None else data.share.numbers(ranks.rank)
    found = {Phase.TRAIN: BadExamples(len(data.train), numbers)}
    if data.check is not None:
        found[Phase.CHECK] = BadExamples(len(data.check))
    return found


class Course(Protocol):
    """Decides which of several engines trains."""

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Train until `until` tasks are done; see `Engine.run`."""

    def state(self) -> dict[str, Any]:
        """The decisions so far, as JSON values: the engine that trains, and the state that determines when another one
        follows."""

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Continue from the decisions of a course of the same kind; other states are ignored. The current engine's own
        state must be restored afterwards. Returns whether the rule and its phase are then the same as in the state."""

    def describe(self, summary: RunSummary) -> RunSummary:
        """The summary of the current engine, with the decisions of this course."""


class ChangingEngine:
    """Several engines, one of which is current; see `Engine`."""

    def __init__(self, engines: Engines, course: Course) -> None:
        self.engines, self.course = engines, course

    @property
    def now(self) -> Engine:
        """The current engine."""
        return self.engines.now

    @property
    def program(self) -> Program:
        return self.now.program

    @property
    def check_program(self) -> Program | None:
        return self.now.check_program

    @property
    def clock(self) -> WorkClock:
        return self.now.clock

    @property
    def order(self) -> TrainingOrder:
        return self.now.order

    @property
    def tasks_per_epoch(self) -> float:
        return self.now.tasks_per_epoch

    @property
    def tick(self) -> int:
        return self.now.tick

    @property
    def tasks(self) -> int:
        return self.now.tasks

    @property
    def boundary(self) -> int:
        return self.now.boundary

    @property
    def learning_rate(self) -> float:
        return self.now.learning_rate

    @property
    def weights(self) -> dict[str, Array]:
        return self.now.weights

    @property
    def observation(self) -> Observation:
        return self.now.observation

    @property
    def bad_examples(self) -> Mapping[Phase, BadExamples]:
        return self.now.bad_examples

    def summary(self) -> RunSummary:
        return self.course.describe(self.now.summary())

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Run the engines one after the other; see `Engine.run`."""
        self.course.run(until, callbacks)

    def snapshot(self) -> Snapshot:
        return self._with_course(self.now.snapshot())

    def salvage(self) -> Snapshot:
        return self._with_course(self.now.salvage())

    def _with_course(self, snapshot: Snapshot) -> Snapshot:
        return dataclasses.replace(snapshot, state={**snapshot.state, "course": self.course.state()})

    def restore(self, snapshot: Snapshot, source: str) -> bool:
        same_phase = self.course.restore(snapshot.state.get("course", {}))
        whole = self.now.restore(snapshot, source)
        if not same_phase:
            self.now.position.begin_phase()
        return whole

    def test(self) -> TestResult:
        return self.now.test()

    def predict(self, images: Array) -> Array:
        return self.now.predict(images)

    def load(self, variables: dict[str, Array], source: str) -> None:
        self.now.load(variables, source)

    def check_process(self) -> None:
        self.now.check_process()

    def check_usable(self) -> None:
        self.now.check_usable()

    def close(self) -> None:
        self.engines.close()
