"""Simulation of learners under one rule: their vectors and z, task by task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossbow.solver import Pace, Schedule, SolverConf, Update
from crossbow.solver.adaptation import UNCORRECTED
from crossbow.solver.update import total
from crossbow.synch.arguments import Vector
from crossbow.synch.order import FinishOrder
from crossbow.synch.progress import ExchangeState, Masses, Merge, left_out, of_all
from crossbow.synch.rule import NOTHING, BarrierRule, FreeRule, PeerRule

STATE = ("velocity", "second_moment")
"""The solver's vectors, of each learner and of z."""


@dataclass(frozen=True)
class Trajectory:
    """Result of a simulation: base model and replicas. An event is a task that a learner has finished."""

    base: Vector
    """(merges, n): z after each merge of a tick, a contribution or a group; under a rule without a base model, the
    learners' mean after each event. Dropped contributions and the initial z are not included. For local variables, it
    has the mean at that time; under a rule with a barrier, the mean of what the learners sent."""
    replicas: Vector
    """(events, learners, n): the learners' weights after each event and its exchange; z under rules whose learners
    compute with z itself."""
    staleness: NDArray[np.int64]
    """(events,): Y of the contribution, 1 + the number of merges since its learner took z. 0 for events without a
    contribution, and for contributions that still waited for others of their merge at the end or at a restart."""
    dropped: NDArray[np.bool_]
    """(events,): whether the contribution was dropped."""
    events: NDArray[np.int64]
    """(events,): the learner that finished. The event of a learner that may not start, because of its rule or because
    a restart is due, is postponed until it may."""
    times: Vector
    """(events,): the time, with `speeds`; else 0, 1, 2, …"""


class Given(NamedTuple):
    """Arguments that all rules of a sequence share."""

    gradient: Callable[[Vector, int, int], Vector]
    """Function that returns a vector of the size of the weights."""
    learners: int
    solver: SolverConf
    tasks_per_epoch: float
    skip: float
    places: list[slice]
    """Slices of the variables."""
    local: tuple[int, ...]
    """Numbers of the local variables."""
    restart: bool
    """Whether all learners restart from z when the schedule steps down."""
    seed: int


class Simulation(ABC):
    """Common base for all rules: learners with vectors, which start and finish tasks."""

    def __init__(
        self,
        rule: Any,
        start: Vector,
        given: Given,
        first_task: int,
        number_of_tasks: int | None,
        merges_before: int,
    ) -> None:
        self.gradient, learners, solver, tasks_per_epoch, self.skip, self.places, self.local, restart, seed = given
        self.rule, self.solver, self.learners, self.seed = rule, solver, learners, seed
        self.schedule = Schedule(solver, tasks_per_epoch, restart=restart)
        zeros = {f"base_{name}": np.zeros_like(start) for name in STATE}
        self.base = {"base": start.copy(), **zeros, "base_step_count": np.zeros(1)}
        kinds = ("weights", "taken", "received", "gradient", *STATE)
        self.own = [
            {**{kind: np.zeros_like(start) for kind in kinds}, "step_count": np.zeros(1)} for _ in range(learners)
        ]
        for vectors in self.own:
            for kind in ("weights", "taken"):
                vectors[kind][...] = start
        if rule.reads_base:
            for vectors in self.own:
                vectors["weights"] = self.base["base"]
        self.steps = [0] * learners
        """Number of tasks that each learner has finished."""
        self.merges_before = merges_before
        self.by_merges = solver.learning_rate_step_unit == "merges"
        self.number_of_tasks = math.inf if number_of_tasks is None else number_of_tasks
        self.tasks = [0] * learners
        """Current or last task of each learner."""
        self.seen = [start] * learners
        """Weights of each learner at the beginning of that task."""
        self.running: set[int] = set()
        self.bases: list[Vector] = []
        self.first_task = self.started = first_task

    def run(self, order: FinishOrder) -> Trajectory:
        self.order = order
        replicas: list[Vector] = []
        self.events: list[int] = []
        self.staleness: list[int] = []
        self.dropped: list[bool] = []
        times: list[float] = []
        for learner in range(self.learners):
            self.start(learner)
        while (following := order.next(self.running)) is not None:
            time, learner = following
            times.append(time)
            self.events.append(learner)
            self.staleness.append(0)
            self.dropped.append(False)
            self.running.discard(learner)
            seen = self.seen[learner].copy()
            gradient = self.gradient(seen, learner, self.tasks[learner])
            own_part = 1.0 if self.rule.sends_gradient else self.clip(gradient)
            self.own[learner]["gradient"][...] = own_part * gradient
            self.steps[learner] += 1
            self.finish(learner)
            replicas.append(np.array([vectors["weights"] for vectors in self.own]))
        size = self.base["base"].size
        return Trajectory(
            np.array(self.bases).reshape(-1, size),
            np.array(replicas).reshape(-1, self.learners, size),
            np.array(self.staleness, np.int64),
            np.array(self.dropped, np.bool_),
            np.array(self.events, np.int64),
            np.array(times),
        )

    def start(self, learner: int) -> None:
        """Begin the learner's next task, if there is one."""
        if self.task_of(learner) >= self.number_of_tasks:
            return
        self.tasks[learner] = self.task_of(learner)
        self.started += 1
        self.seen[learner] = self.own[learner]["weights"].copy()
        self.running.add(learner)
        self.order.started(learner)

    def task_of(self, learner: int) -> int:
        """Number of the task that the learner begins."""
        return self.started

    @property
    def tasks_per_tick(self) -> int:
        return self.learners * int(self.rule.tau)

    def pace(self, learner: int) -> Pace:
        """Pace of the tick that contains the learner's task; or at the number of merges, if the schedule counts
        these."""
        tick = self.tasks[learner] // self.tasks_per_tick
        now = self.merges if self.by_merges else tick * self.tasks_per_tick
        since = tick - self.first_task // self.tasks_per_tick
        return self.schedule(now, since)

    def exchanges(self, learner: int) -> bool:
        """Whether the learner has done τ local steps."""
        return self.steps[learner] % int(self.rule.tau) == 0

    @property
    def time(self) -> int:
        """Time of the schedule if the next task begins a tick: tasks, or merges."""
        return self.merges if self.by_merges else self.started

    @property
    def merges(self) -> int:
        """Number of merges, counted as in the engine: from the first rule of a sequence on."""
        return self.merges_before + len(self.bases)

    def apply(
        self, update: Update, vectors: Mapping[str, Vector], *, local: Update = NOTHING, omitted: Collection[int] = ()
    ) -> None:
        """Apply `update` to the variables that are not omitted, and `local` to local variables. Both are one step."""
        count = update.count
        correction = UNCORRECTED if count is None else count.advance(vectors[count.name])
        for number, place in enumerate(self.places):
            if number not in omitted:
                cut = {name: vector[place] for name, vector in vectors.items()}
                (local if number in self.local else update).apply(cut, correction)

    def clip(self, gradient: Vector) -> float:
        """Factor of a clipped gradient, min(1, clip_gradient_norm / ‖g‖). The gradient is the learner's own or, under a
        rule that sends gradients, the mean of the merged ones; its norm is over all variables, as in the engine."""
        limit, norm = self.solver.clip_gradient_norm, float(np.linalg.norm(gradient))
        return 1.0 if limit is None or norm <= limit else limit / norm

    def restart(self) -> None:
        """w_i ← z, with zero velocity and second moment."""
        base = self.base["base"]
        for name in (*STATE, "step_count"):
            self.base[f"base_{name}"][...] = 0
            for own in self.own:
                own[name][...] = 0
        for own in self.own:
            own["weights"][...] = own["taken"][...] = base

    def keep_base(self) -> None:
        self.bases.append(self.base["base"].copy())

    @abstractmethod
    def finish(self, learner: int) -> None:
        """Do all that follows the end of a task."""


class BarrierSimulation(Simulation):
    """Simulation of a rule with a barrier: a tick ends when all learners have contributed."""

    rule: BarrierRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.base["base_next"] = self.base["base"].copy()
        self.sent: dict[int, Vector] = {}
        self.tick = self.first_task // self.tasks_per_tick

    def task_of(self, learner: int) -> int:
        return self.first_task + self.steps[learner] * self.learners + learner

    def finish(self, learner: int) -> None:
        rule, own, pace = self.rule, self.own[learner], self.pace(learner)
        synchronises = self.exchanges(learner)
        if synchronises and rule.sends != "new weights":
            self.sent[learner] = own[rule.sent_vector].copy()
        step, local = (rule.local_step(self.solver, pace, self.learners, synchronises=s) for s in (synchronises, False))
        self.apply(step, {**self.base, **own}, local=local)
        if not synchronises:
            self.start(learner)
            return
        if rule.sends == "new weights":
            self.sent[learner] = own["weights"].copy()
        self.staleness[-1] = 1
        if len(self.sent) == self.learners:
            self._end_tick(pace)

    def _end_tick(self, pace: Pace) -> None:
        base = self.base
        mean = sum((self.sent[i] / self.learners for i in range(self.learners)), np.zeros_like(base["base"]))
        if self.rule.sends_gradient:
            mean *= self.clip(mean)
        base["base_previous"] = base["base_next"]  # one memory, as in the engine
        kept = Update((("base_next", {"mean": 1.0}),))
        self.apply(self.rule.merge(self.solver, pace, self.learners), {**base, "mean": mean}, local=kept)
        reply = self.rule.reply(self.solver, pace, self.learners)
        for own in self.own:
            if not self.rule.reads_base:
                self.apply(reply, {**base, **own})
        base["base"], base["base_next"] = base["base_next"], base["base"]
        if self.rule.reads_base:
            for own in self.own:
                own["weights"] = base["base"]
        self.keep_base()
        self.tick += 1
        self.sent.clear()
        unit = 1 if self.by_merges else self.tasks_per_tick
        now = self.merges_before + len(self.bases) if self.by_merges else self.tick * self.tasks_per_tick
        if self.schedule.restarts(now) > self.schedule.restarts(now - unit):
            self.restart()
        for learner in range(self.learners):
            self.start(learner)

    def restart(self) -> None:
        super().restart()
        self.base["base_next"][...] = self.base["base"]


class _WithoutBarrier(Simulation):
    """Learners that begin a task when they may. No task of a tick in which the schedule has stepped down begins before
    all other tasks have finished. Then all learners restart from z."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.draws = [self.first_task // self.tasks_per_tick] * self.learners
        """Number of each learner's next random draw in an exchange."""

    def run(self, order: FinishOrder) -> Trajectory:
        self.restarts = self.schedule.restarts(self.time)
        """Number of restarts of the schedule so far."""
        made = super().run(order)
        self.settle()
        return made

    @property
    def steps_down(self) -> bool:
        """Whether the next task begins a tick in which the schedule has stepped down."""
        begins = self.started % self.tasks_per_tick == 0 and self.started < self.number_of_tasks
        return begins and self.schedule.restarts(self.time) > self.restarts

    def start(self, learner: int) -> None:
        if not self.steps_down:
            super().start(learner)

    def finish(self, learner: int) -> None:
        self.exchange(learner)
        if not self.running and self.steps_down:
            self.settle()
            self.restart()
            for each in range(self.learners):
                self.start(each)

    def restart(self) -> None:
        super().restart()
        self.steps = [0] * self.learners
        self.restarts = self.schedule.restarts(self.time)

    def settle(self) -> None:
        """Set z's local variables to the learners' mean."""
        weights = {f"weights{i}": own["weights"] for i, own in enumerate(self.own)}
        mean = Update((("base", total("weights", [1 / self.learners] * self.learners)),))
        self.apply(NOTHING, {**weights, **self.base}, local=mean)

    def keep_base(self) -> None:
        self.settle()
        super().keep_base()

    @abstractmethod
    def exchange(self, learner: int) -> None:
        """Do all that follows the end of a task, except for a restart."""


class FreeSimulation(_WithoutBarrier):
    """Simulation of learners that exchange with z one by one, or in groups."""

    rule: FreeRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.progress = ExchangeState(self.rule, self.learners)
        self.last_event = [0] * self.learners

    def restart(self) -> None:
        super().restart()
        self.progress.restart()

    def exchange(self, learner: int) -> None:
        own, pace = self.own[learner], self.pace(learner)
        self.rule.local_step(self.solver, pace).apply(own)
        if not self.exchanges(learner):
            self.start(learner)
            return
        self.last_event[learner] = len(self.events) - 1
        merge = self.progress.arrive(learner)
        if merge is not None:
            self._merge(merge, pace)
        for going in self.progress.let_go():
            self.apply(self.rule.reply(self.solver, pace), {**self.base, **self.own[going]})
            self.start(going)

    def _merge(self, merge: Merge, pace: Pace) -> None:
        for each in merge.contributors:
            self.staleness[self.last_event[each]] = merge.arrival.staleness
            self.dropped[self.last_event[each]] = merge.dropped
        if merge.dropped:
            return
        gradients = {f"gradient{n}": self.own[each]["gradient"] for n, each in enumerate(merge.contributors)}
        update = self.rule.merge(self.solver, pace, merge.arrival)
        if self.rule.sends_gradient:
            part = self.clip(np.mean(list(gradients.values()), axis=0))
            update = update.expand("gradient", {"gradient": part})
        update = of_all(update, len(merge.contributors))
        vectors = {**self.base, **self.own[merge.arrival.learner], **gradients}
        learner = merge.arrival.learner
        draws = left_out(self.skip, len(self.places), learner, self.draws[learner], self.seed)
        self.draws[learner] += 1
        self.apply(update, vectors, omitted=[number for number, out in enumerate(draws) if out])
        self.keep_base()


class PeerSimulation(_WithoutBarrier):
    """Simulation of learners that exchange with each other."""

    rule: PeerRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.masses, self.met = Masses(self.learners), 0

    @property
    def merges(self) -> int:
        return self.merges_before + self.met

    def restart(self) -> None:
        super().restart()
        self.masses = Masses(self.learners)

    def exchange(self, learner: int) -> None:
        rule, own = self.rule, self.own[learner]
        rule.local_step(self.solver, self.pace(learner)).apply(own)
        if self.exchanges(learner):
            self.staleness[-1] = 1
            if self.masses.coming[learner]:
                self.apply(rule.mix(*self.masses.receive(learner)), own)
            peer = rule.peer(learner, self.learners, self.draws[learner], self.seed)
            self.draws[learner] += 1
            self.met += 1
            if peer is not None:
                mix = rule.mix(*self.masses.send(learner, peer, rule.part_sent()))
                self.apply(mix, {"weights": self.own[peer]["received"], "received": own["weights"]})
        every = {f"{kind}{i}": self.own[i][kind] for i in range(self.learners) for kind in ("weights", "received")}
        self.masses.mean.apply({**every, **self.base})
        self.keep_base()
        self.start(learner)
