"""A rule on vectors, in the order in which learners are said to finish: no threads, no time, no network.

It runs the very rules that the engine runs, by their own updates.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import SolverConf, is_integer, is_number, shown
from crossbow.solver import Pace, Schedule
from crossbow.synch.progress import Masses, Merge, Progress, check_skip, left_out, of_all
from crossbow.synch.rule import BarrierRule, FreeRule, PeerRule, Rule
from crossbow.synch.sequence import RuleSequence
from crossbow.types import ConfigurationError

Vector = NDArray[Any]
GradientOf = Callable[[Vector, int, int], Any]
"""Of weights, the learner's number and the task's."""


@dataclass(frozen=True)
class Trajectory:
    """What became of base model and replicas. An event is a task that a learner has finished."""

    base: Vector
    """(merges, n): z after each merge: of a tick, a contribution or a group; under a rule without a base model, the
    learners' mean after each event. What was dropped is no merge. The initial z is not among them."""
    replicas: Vector
    """(events, learners, n): what the learners hold after each event and all that came of it; z under rules whose
    learners compute with z itself."""
    staleness: NDArray[np.int64]
    """(events,): Y of the contribution, 1 + the merges since its learner took z. 0 of an event with no contribution, or
    with one that still waited at the end for others to be merged with."""
    dropped: NDArray[np.bool_]
    """(events,): whether the contribution was left out."""
    events: NDArray[np.int64]
    """(events,): who finished. A learner that may not start finishes nothing: its event is put off until it may."""
    times: Vector
    """(events,): when, with `speeds`; else 0, 1, 2, …"""


def simulate(
    rule: Rule | RuleSequence,
    *,
    initial: Any,
    gradient: GradientOf,
    learners: int,
    events: Sequence[int] | int | None = None,
    speeds: Sequence[float] | None = None,
    tasks: int | None = None,
    solver: SolverConf | None = None,
    tasks_per_epoch: float = 1.0,
    skip: float = 0.0,
    variables: Sequence[int] | None = None,
    seed: int = 0,
) -> Trajectory:
    """Run a rule, all learners starting from the weights `initial` (n,).

    gradient: `gradient(weights, learner, task)` of the weights that the learner took before the task; tasks are
    numbered as they start, and under a rule with a barrier task n is learner n mod k's.
    events: the order in which learners finish their tasks; or, with `speeds`, how many tasks are finished: None is all
    `tasks`.
    speeds: of each learner, in tasks per unit of time; who finishes at the same time does so in the learners' order.
    rule: of several in turn, each begins with all learners at z, when all tasks of the one before are finished.
    tasks: how many there are, as in a run of the engine: a learner that finds none left stops. None: enough.
    solver: its schedule is followed from tick to tick, a tick being k · τ tasks; where it steps down under a rule with
    a barrier, the learners restart. tasks_per_epoch: for a schedule in epochs.
    skip: the probability with which each variable is left out of a merge, as `ModelConf.skip`. variables: their sizes,
    in order; None is one. seed: of what is drawn.

    Raises ConfigurationError.

    >>> from crossbow.synch import SSGD
    >>> halve = simulate(SSGD(), initial=[8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 1, 1, 0],
    ...                  solver=SolverConf(learning_rate=0.5))
    >>> halve.base.tolist()
    [[4.0], [2.0]]
    """
    start = np.array(initial, np.float64)
    if start.ndim != 1:
        raise ConfigurationError(f"simulate: initial must be a vector. Received: one of shape {start.shape}")
    if not is_integer(learners) or learners < 1:
        raise ConfigurationError(f"simulate: learners must be an integer ≥ 1. Received: learners={shown(learners)}")
    order, speeds = _order(learners, events, speeds, tasks), [1.0] * learners if speeds is None else list(speeds)

    def run(rule: Rule, start: Vector, first: int, tasks: int | None, merges: int = 0) -> Trajectory:
        kinds = ((BarrierRule, _Barrier), (FreeRule, _Free), (PeerRule, _Peers))
        of_kind = next(of_kind for kind, of_kind in kinds if isinstance(rule, kind))
        settled = rule.settled(speeds)
        made = of_kind(settled, start, gradient, learners, first, tasks, solver or SolverConf(), tasks_per_epoch, seed)
        made.merges_before, made.skip = merges, skip
        made.variables = [start.size] if variables is None else list(variables)
        check_skip(skip, settled, made.solver)
        return made.run(order)

    if isinstance(rule, Rule):
        return run(rule, start, 0, tasks)
    if isinstance(rule, RuleSequence):
        return _in_turn(rule, start, learners, tasks, run)
    raise ConfigurationError(f"simulate: rule must be one of crossbow.synch, as SMA(). Received: {shown(rule)}")


def _in_turn(
    sequence: RuleSequence,
    start: Vector,
    learners: int,
    tasks: int | None,
    run: Callable[[Rule, Vector, int, int | None, int], Trajectory],
) -> Trajectory:
    """The trajectories of the rules in turn, one behind the other."""
    per_tick, parts, first = learners * sequence.tau, list[Trajectory](), 0
    for rule, end in sequence.ends(learners, per_tick):
        last = end * per_tick if tasks is None else min(end * per_tick, tasks)
        parts.append(run(rule, start, first, last, sum(len(part.base) for part in parts)))
        if len(parts[-1].base):
            start = parts[-1].base[-1]
        if len(parts[-1].events) < last - first or last == tasks:
            break
        first = last
    return Trajectory(*(np.concatenate(columns) for columns in zip(*map(astuple, parts), strict=True)))


def _order(
    learners: int, events: Sequence[int] | int | None, speeds: Sequence[float] | None, tasks: int | None
) -> _Order:
    if tasks is not None and (not is_integer(tasks) or tasks < 0):
        raise ConfigurationError(f"simulate: tasks must be an integer ≥ 0 or None. Received: tasks={shown(tasks)}")
    if speeds is None:
        if events is None or is_integer(events) or not all(is_integer(i) and 0 <= i < learners for i in events):  # type: ignore[union-attr]
            raise ConfigurationError(
                f"simulate: events must be learners' numbers, 0 to {learners - 1}, or a count with speeds=. "
                f"Received: {shown(events)}"
            )
        return _Scripted(list(events))  # type: ignore[arg-type]
    if len(speeds) != learners or not all(is_number(speed) and speed > 0 for speed in speeds):
        raise ConfigurationError(f"simulate: speeds must be {learners} numbers > 0. Received: {shown(speeds)}")
    events = tasks if events is None else events
    if not is_integer(events) or events < 0:  # type: ignore[operator]
        raise ConfigurationError(f"simulate: events must be how many, with speeds=. Received: {shown(events)}")
    return _Timed([1 / speed for speed in speeds], events)  # type: ignore[arg-type]


class _Order(ABC):
    """Who finishes next."""

    @abstractmethod
    def started(self, learner: int) -> None:
        """The learner has begun a task."""

    @abstractmethod
    def next(self, running: set[int]) -> tuple[float, int] | None:
        """When, and which of those running; None in the end."""


class _Scripted(_Order):
    """In the order that is said; what those who do not run would finish is put off."""

    def __init__(self, events: list[int]) -> None:
        self._events, self._count = events, 0

    def started(self, learner: int) -> None:
        pass

    def next(self, running: set[int]) -> tuple[float, int] | None:
        for place, learner in enumerate(self._events):
            if learner in running:
                del self._events[place]
                self._count += 1
                return float(self._count - 1), learner
        return None


class _Timed(_Order):
    """By a virtual clock."""

    def __init__(self, seconds: Sequence[float], events: int) -> None:
        self._seconds, self._left, self._now = seconds, events, 0.0
        self._ends: list[tuple[float, int]] = []

    def started(self, learner: int) -> None:
        heapq.heappush(self._ends, (self._now + self._seconds[learner], learner))

    def next(self, running: set[int]) -> tuple[float, int] | None:
        if not self._left or not self._ends:
            return None
        self._left -= 1
        self._now, learner = heapq.heappop(self._ends)
        return self._now, learner


class _Simulation(ABC):
    """What all rules have in common: learners with vectors, which start and finish tasks."""

    def __init__(
        self,
        rule: Any,
        start: Vector,
        gradient: GradientOf,
        learners: int,
        first_task: int,
        number_of_tasks: int | None,
        solver: SolverConf,
        tasks_per_epoch: float,
        seed: int,
    ) -> None:
        self.rule, self.solver, self.learners, self.seed = rule, solver, learners, seed
        self.gradient, self.schedule = gradient, Schedule(solver, tasks_per_epoch)
        self.base = {"base": start.copy(), "base_velocity": np.zeros_like(start)}
        kinds = ("weights", "taken", "received", "gradient", "velocity")
        self.own = [{kind: np.zeros_like(start) for kind in kinds} for _ in range(learners)]
        for vectors in self.own:
            for kind in ("weights", "taken"):
                vectors[kind][...] = start
        if rule.reads_base:
            for vectors in self.own:
                vectors["weights"] = self.base["base"]
        self.steps = [0] * learners
        """Tasks that each learner has finished."""
        self.merges_before, self.skip, self.variables = 0, 0.0, [start.size]
        self.by_merges = solver.learning_rate_step_unit == "merges"
        self.number_of_tasks = math.inf if number_of_tasks is None else number_of_tasks
        self.tasks = [0] * learners
        """The task that each is in, or was in last."""
        self.seen = [start] * learners
        """The weights with which it began it."""
        self.running: set[int] = set()
        self.bases: list[Vector] = []
        self.first_task = self.started = first_task

    def run(self, order: _Order) -> Trajectory:
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
            self.own[learner]["gradient"][...] = self.gradient(seen, learner, self.tasks[learner])
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
        """The learner begins its next task, if there is one."""
        if self.task_of(learner) >= self.number_of_tasks:
            return
        self.tasks[learner] = self.task_of(learner)
        self.started += 1
        self.seen[learner] = self.own[learner]["weights"].copy()
        self.running.add(learner)
        self.order.started(learner)

    def task_of(self, learner: int) -> int:
        """The number of the task that the learner begins."""
        return self.started

    @property
    def tasks_per_tick(self) -> int:
        return self.learners * int(self.rule.tau)

    def pace(self, learner: int) -> Pace:
        """That of the tick which the learner's task is in; or of so many merges, where the schedule goes by them."""
        tick = self.tasks[learner] // self.tasks_per_tick
        now = self.merges_before + len(self.bases) if self.by_merges else tick * self.tasks_per_tick
        pace: Pace = self.rule.at(self.schedule(now), tick, self.schedule.time(now))
        return pace

    @property
    def exchanges(self) -> Callable[[int], bool]:
        """Whether the learner has done τ local steps."""
        return lambda learner: self.steps[learner] % int(self.rule.tau) == 0

    def keep_base(self) -> None:
        self.bases.append(self.base["base"].copy())

    @abstractmethod
    def finish(self, learner: int) -> None:
        """All that comes of a task."""


class _Barrier(_Simulation):
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
        step = rule.local_step(self.solver, pace, self.learners, synchronises=synchronises)
        step.apply({**self.base, **own})
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
        base["base_previous"] = base["base_next"]  # one memory, as in the engine
        self.rule.merge(self.solver, pace, self.learners).apply({**base, "mean": mean})
        reply = self.rule.reply(self.solver, pace, self.learners)
        for own in self.own:
            if not self.rule.reads_base:
                reply.apply({**base, **own})
        base["base"], base["base_next"] = base["base_next"], base["base"]
        if self.rule.reads_base:
            for own in self.own:
                own["weights"] = base["base"]
        self.keep_base()
        self.tick += 1
        self.sent.clear()
        unit = 1 if self.by_merges else self.tasks_per_tick
        now = self.merges_before + len(self.bases) if self.by_merges else self.tick * self.tasks_per_tick
        if self.schedule.drops(now) > self.schedule.drops(now - unit):
            self._restart()
        for learner in range(self.learners):
            self.start(learner)

    def _restart(self) -> None:
        base = self.base["base"]
        self.base["base_next"][...] = base
        self.base["base_velocity"][...] = 0
        for own in self.own:
            own["weights"][...] = base
            own["velocity"][...] = 0


class _Free(_Simulation):
    rule: FreeRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.progress = Progress(self.rule, self.learners)
        self.last_event = [0] * self.learners
        self.merged = [0] * self.learners

    def finish(self, learner: int) -> None:
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
            self.rule.reply(self.solver, pace).apply({**self.base, **self.own[going]})
            self.start(going)

    def _merge(self, merge: Merge, pace: Pace) -> None:
        for each in merge.contributors:
            self.staleness[self.last_event[each]] = merge.arrival.staleness
            self.dropped[self.last_event[each]] = merge.dropped
        if merge.dropped:
            return
        update = of_all(self.rule.merge(self.solver, pace, merge.arrival), len(merge.contributors))
        gradients = {f"gradient{n}": self.own[each]["gradient"] for n, each in enumerate(merge.contributors)}
        vectors = {**self.base, **self.own[merge.arrival.learner], **gradients}
        learner = merge.arrival.learner
        omitted = left_out(self.skip, len(self.variables), learner, self.merged[learner], self.seed)
        self.merged[learner] += 1
        ends = np.cumsum(self.variables)
        for end, size, out in zip(ends, self.variables, omitted, strict=True):
            if not out:
                update.apply({name: vector[end - size : end] for name, vector in vectors.items()})
        self.keep_base()


class _Peers(_Simulation):
    rule: PeerRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.masses = Masses(self.learners)

    def finish(self, learner: int) -> None:
        rule, own, tau = self.rule, self.own[learner], self.rule.tau
        rule.local_step(self.solver, self.pace(learner)).apply(own)
        if self.exchanges(learner):
            self.staleness[-1] = 1
            if self.masses.coming[learner]:
                rule.mix(*self.masses.receive(learner)).apply(own)
            peer = rule.peer(learner, self.learners, self.steps[learner] // tau - 1, self.seed)
            if peer is not None:
                mix = rule.mix(*self.masses.send(learner, peer, rule.part_sent()))
                mix.apply({"weights": self.own[peer]["received"], "received": own["weights"]})
        every = {f"{kind}{i}": self.own[i][kind] for i in range(self.learners) for kind in ("weights", "received")}
        self.masses.mean.apply({**every, **self.base})
        self.keep_base()
        self.start(learner)
