"""The engine: a backend and a coordination, with a scheduler and a recovery.

The engine does not depend on the kind of devices, or on whether the rule has a barrier: see `docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from crossbow.cluster.process import join
from crossbow.cluster.ranks import Ranks
from crossbow.compile import Program
from crossbow.data import Dataset
from crossbow.data.bad_examples import BadExamples
from crossbow.data.loader import Loader
from crossbow.data.order import TrainingOrder
from crossbow.dataflow.graph import Graph
from crossbow.runtime.backend import Learner
from crossbow.runtime.building import (
    assemble,
    close_all,
    closed_on_error,
    new_backend,
    new_coordination,
    new_flow,
    new_setting,
)
from crossbow.runtime.clock import WorkClock
from crossbow.runtime.configuration import ModelConf, SystemConf
from crossbow.runtime.evaluation import Evaluation
from crossbow.runtime.observation import Observation
from crossbow.runtime.position import Position
from crossbow.runtime.recovery import Recovery
from crossbow.runtime.replica import Replica
from crossbow.runtime.reports import Reports
from crossbow.runtime.results import TestResult
from crossbow.runtime.scheduler import Callbacks, Scheduler
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.snapshot import Snapshot, Snapshots
from crossbow.runtime.summary import RunSummary, summarise
from crossbow.runtime.usage import Usage
from crossbow.solver import Schedule, SolverConf
from crossbow.synch import Collective
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, Phase


class Member(NamedTuple):
    """A learner and its vectors."""

    learner: Learner
    replica: Replica


class Engine:
    """Trains, tests and predicts on the caller's thread. Meanwhile, calls of other threads raise CrossbowError."""

    def __init__(
        self,
        training: Graph,
        check: Graph,
        data: Dataset,
        model: ModelConf,
        solver: SolverConf,
        system: SystemConf,
        collective: Collective | None = None,
        beside: int = 0,
        bad: Mapping[Phase, BadExamples] | None = None,
        recorder: Recorder | None = None,
        ranks: Ranks | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """beside: bytes of the machine's memory that other engines use at the same time. bad: the bad examples of each
        phase; None if a bad example is an error. recorder, sharing: those of several engines; None for new ones. ranks:
        by default those of this process. Raises GraphError or ConfigurationError, after ending all threads."""
        recorder, ranks = recorder or Recorder(), ranks or join()
        self.backend = new_backend(model.rule, system)
        setting = new_setting(data, model, solver, system, self.backend, bad or {}, recorder, ranks, collective)
        self.parts = assemble(training, check, self.backend, setting, beside)
        reports = Reports(self.parts.loaders, setting.tick_learners)
        self.coordination = new_coordination(self.parts, self.backend, reports, collective)
        self.position = Position(setting.clock.tasks_per_host_tick)
        self.flow = new_flow(reports, self.parts, self.coordination, sharing)
        self.recovery = Recovery(self.parts, self.backend, self.coordination, self.flow, self.position)
        schedule = Schedule(solver, self.tasks_per_epoch, restart=model.restart)
        core = self.coordination, self.flow, self.recovery, self.position
        self.scheduler = Scheduler(setting.clock, *core, schedule, setting.placement)
        self._snapshots = Snapshots(self.parts, self.backend, *core[:2], self.scheduler, self.recovery)
        self.observation = Observation(self.parts, self.coordination, self.recovery, self.flow)
        self._usage = Usage(self.recovery)
        self._evaluation = Evaluation(self.parts, self.backend, self.scheduler, self.flow, self._usage)
        with closed_on_error(self.close):
            self.recovery.restart()

    # Components

    @property
    def program(self) -> Program:
        """The training program."""
        return self.parts.program

    @property
    def check_program(self) -> Program | None:
        """The program for testing; None without a check set."""
        return self.parts.check_program

    @property
    def loader(self) -> Loader:
        """The loader of training batches."""
        return self.parts.training.loader

    @property
    def members(self) -> list[Member]:
        """The learners, each with its vectors."""
        return [Member(*each) for each in zip(self.coordination.learners, self.parts.replicas, strict=True)]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the machine's memory, by purpose."""
        return self.backend.host_memory(self.parts.needs)

    @property
    def clock(self) -> WorkClock:
        return self.parts.setting.clock

    @property
    def order(self) -> TrainingOrder:
        """The order of training examples."""
        return self.parts.order

    @property
    def tasks_per_epoch(self) -> float:
        """Batches in an epoch, N / B: not an integer if the batch size does not divide the number of examples."""
        return self.parts.order.tasks_per_epoch

    # Progress

    @property
    def tick(self) -> int:
        """Number of completed ticks; during a run, of submitted ticks."""
        return self.position.tick

    @property
    def tasks(self) -> int:
        """Number of completed tasks since the start."""
        return self.position.tasks

    @property
    def boundary(self) -> int:
        """Number of tasks up to the newest boundary between ticks of z: all completed tasks, except with two levels."""
        return self.position.tasks if self.clock.host_ticks is None else self.position.tasks_of_z

    @property
    def merges(self) -> int:
        """Number of merges into z since the start."""
        return self.scheduler.merges

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last tick; before the first tick, that of the next one."""
        return self.scheduler.last_learning_rate

    @property
    def bad_examples(self) -> Mapping[Phase, BadExamples]:
        """The examples that were left out, by phase."""
        return self.parts.setting.bad

    def summary(self) -> RunSummary:
        """A summary of the devices, the rule and the progress."""
        return summarise(self.backend, self.parts, self.position)

    # Training

    def run(self, until: int, callbacks: Callbacks) -> None:
        """Run ticks until `until` tasks are done, or up to the first tick boundary at which `callbacks.stop()` or
        `callbacks.pause()` is true.

        After a `stop` within a tick whose rest would take longer than SECONDS_TO_FINISH, the tick is abandoned. The
        learners then restart from its first base model or, without a barrier, from the current one.

        When `stop` is called in tick t, `on_result` has received at least the results of all ticks before
        t − TICKS_BEHIND. After an exception, the learners restart from the last complete base model.
        """
        with self._usage.busy("training", self.loader):
            self.recovery.keep()
            tasks = self.clock.whole_ticks(until - self.tasks)  # further batches would not be used
            self.loader.start(self.tasks, tasks, [result.task for result in self.flow.known_results])
            with self.flow.handing_on("training", self.tasks, callbacks.on_result):
                self.scheduler.train(until, self.loader, callbacks)
            self.recovery.check_base(self.learning_rate)

    def continue_from(self, other: Engine) -> None:
        """Continue from another engine's base model and progress."""
        self.flow.continue_from(other.flow)
        self.position.continue_from(other.position.place, other.merges, self.coordination.merges(other.tick))
        self.load(other.weights, "the base model")
        self.coordination.begin(self.tick)

    def snapshot(self) -> Snapshot:
        """A copy of everything that determines how training continues."""
        with self._usage.alone():
            return self._snapshots.take()

    def salvage(self) -> Snapshot:
        """A snapshot for ranks that continue after others have left or joined; see `Snapshots.salvage`."""
        with self._usage.alone():
            return self._snapshots.salvage()

    def restore(self, snapshot: Snapshot, source: str) -> bool:
        """Continue from a snapshot; see `Snapshots.restore`."""
        with self._usage.alone():
            return self._snapshots.restore(snapshot, source)

    # The base model

    @property
    def weights(self) -> dict[str, Array]:
        """A copy of the base model's variables and statistics, by name, in logical shape."""
        with self._usage.alone():
            return self.recovery.export()

    def load(self, variables: dict[str, Array], source: str) -> None:
        """Set the base model, and restart every learner from it. Raises DataError if it does not fit."""
        with self._usage.alone():
            self.recovery.set_base(self.recovery.read(variables, source))
            self.recovery.restart()

    def test(self) -> TestResult:
        """Test the base model on the check set. Raises CrossbowError if there is none."""
        return self._evaluation.test()

    def predict(self, images: Array) -> Array:
        """The base model's output for images (N, …): the input of the loss. Threads take turns."""
        with self._usage.alone():
            return self._evaluation.predict(images, self.recovery.base)

    # Access

    def check_process(self) -> None:
        """Raise CrossbowError in a forked process."""
        self._usage.check_process()

    def check_usable(self) -> None:
        """Raise CrossbowError while the learners are busy, and in a forked process."""
        self._usage.check_usable()

    def close(self) -> None:
        """End all threads. A thread that is training gets a CrossbowError. No effect in a forked process."""
        self.flow.refuse()
        if self._usage.close():
            self.parts.flags.raise_abort()
            self.flow.wake(self.tasks)
            close_all(self.coordination.members(), self.backend)
