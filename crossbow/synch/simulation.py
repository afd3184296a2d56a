"""Simulation of learners under one rule: their vectors and z, task by task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from crossbow.solver import Pace, Schedule, SolverConf, Update
from crossbow.solver.adaptation import UNCORRECTED
from crossbow.synch.arguments import Vector
from crossbow.synch.order import FinishOrder
from crossbow.synch.rule import NOTHING
from crossbow.synch.sequence import ticks_of_phase
from crossbow.synch.trajectory import Move, ReplicaLog, Trajectory

STATE = ("velocity", "second_moment")
"""The solver's vectors, of each learner and of z."""


class Given(NamedTuple):
    """Arguments that all rules of a sequence share."""

    gradient: Callable[[Vector, int, int], Vector]
    """Function that returns a vector of the size of the weights."""
    tasks: float
    """Number of tasks; ∞ if it is unlimited."""
    speeds: list[float]
    """Speed of every learner, including those that join later."""
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
    delay: float
    """Duration of a message: a contribution to z, the reply to it, or a message to another learner."""
    hosts: list[range]
    """With two levels, the learners of each host, including those that join later."""


class SimulatedState(NamedTuple):
    """The state with which a rule begins, and from which the next rule of a sequence continues."""

    base: Vector
    """z."""
    members: tuple[int, ...]
    """The present learners."""
    task: int = 0
    """Number of the first task."""
    tick: int = 0
    """Number of previous ticks; with two levels, of a host."""
    merges: int = 0
    """Number of previous merges, as the engine counts them; with two levels, of a host."""


class Simulation(ABC):
    """Common base for all rules: learners with vectors, which start and finish tasks."""

    def __init__(self, rule: Any, merges: int | None, place: SimulatedState, given: Given, order: FinishOrder) -> None:
        """merges: length of the rule's phase; None for a rule without an end."""
        start = place.base
        self.given, self.order, self.given_rule, self.merges_of_phase = given, order, rule, merges
        self.gradient, self.solver, self.skip, self.seed = given.gradient, given.solver, given.skip, given.seed
        self.places, self.local, self.delay = given.places, given.local, given.delay
        self.schedule = Schedule(given.solver, given.tasks_per_epoch, restart=given.restart)
        self.pace_at = lru_cache(maxsize=16)(self.schedule)  # learners of a tick share the pace
        zeros = {f"base_{name}": np.zeros_like(start) for name in STATE}
        self.base = {"base": start.copy(), **zeros, "base_step_count": np.zeros(1)}
        number = len(given.speeds)
        kinds = ("weights", "taken", "received", "gradient", *STATE)
        self.rows = {kind: np.zeros((number, start.size)) for kind in kinds} | {"step_count": np.zeros((number, 1))}
        """The vectors of all learners, one per row."""
        self.own = [{kind: rows[learner] for kind, rows in self.rows.items()} for learner in range(number)]
        for kind in ("weights", "taken"):
            self.rows[kind][...] = start
        if rule.reads_base:
            for vectors in self.own:
                vectors["weights"] = self.base["base"]
        self.place, self.first_task, self.tick = place, place.task, 0
        """The number of a tick, counted from the start of the phase, and that of its first task: of the current tick
        or, without a barrier, of the one in which the members last changed."""
        self.set_members(place.members)
        self.steps = [0] * number
        """Number of tasks that each learner has finished."""
        self.by_merges = self.solver.learning_rate_step_unit == "merges"
        self.tasks: dict[int, int] = {}
        """Current or last task of each learner."""
        self.seen: dict[int, Vector] = {}
        """Weights of each learner at the beginning of that task."""
        self.running: set[int] = set()
        self.sendings = Counter[int]()
        """Number of times that messages from or to each learner became invalid, because it was lost or restarted."""
        self.bases: list[Vector] = []
        self.merge_times: list[float] = []
        self.events: list[int] = []
        self.staleness: list[int] = []
        self.dropped: list[bool] = []
        self.log = new_log(place, number)
        self.moved: set[int] = set()
        """Learners whose weights have changed since the last event."""
        self.gone: list[Move] = []
        """Learners that have left since the last event, with NaN for weights."""
        self.logged = 0, self.members
        """Number of merges and members when z was last logged, if the learners compute with z itself."""

    def set_members(self, members: Iterable[int]) -> None:
        """Set the present learners, the rule, whose defaults depend on their number and speeds, and the end of the
        phase: a phase has as many ticks as if there had been this number of learners from its beginning."""
        self.members = tuple(sorted(members))
        self.learners = len(self.members)
        self.position = {learner: position for position, learner in enumerate(self.members)}
        """Each learner's number among the present ones."""
        given = self.given_rule.fitted(self.learners)
        self.rule: Any = given.settled([self.given.speeds[learner] for learner in self.members])
        self.tasks_per_tick = self.learners * int(self.rule.tau)
        self.number_of_tasks = self.given.tasks
        """Number of the first task that does not belong to the phase."""
        if self.merges_of_phase is not None:
            ticks = ticks_of_phase(given, self.merges_of_phase, self.learners, self.tasks_per_tick)
            end = self.first_task + (ticks - self.tick) * self.tasks_per_tick
            self.number_of_tasks = min(self.given.tasks, end)

    def run(self) -> Trajectory:
        times: list[float] = []
        self.begin()
        while (following := self.order.next(self.running)) is not None:
            time, learner = following
            times.append(time)
            self.end_task(learner)
            self.log.moves.append(self.take_moves())
        size = self.base["base"].size
        return Trajectory(
            np.array(self.bases).reshape(-1, size),
            np.array(self.staleness, np.int64),
            np.array(self.dropped, np.bool_),
            np.array(self.events, np.int64),
            np.array(times),
            np.array(self.merge_times),
            (self.log,),
        )

    def begin(self, delay: float = 0.0) -> None:
        """Start all learners after this delay."""
        for learner in self.members:
            self.start(learner, delay)

    def end_task(self, learner: int) -> None:
        """Compute the gradient of the learner's task, and finish the task."""
        self.events.append(learner)
        self.staleness.append(0)
        self.dropped.append(False)
        self.running.discard(learner)
        if not self.rule.reads_base:
            self.moved.add(learner)
        gradient = self.gradient(self.seen.pop(learner), learner, self.tasks[learner])
        factor = 1.0 if self.rule.sends_gradient else self.clip(gradient)
        self.own[learner]["gradient"][...] = gradient if factor == 1 else factor * gradient
        self.steps[learner] += 1
        self.finish(learner)

    def take_moves(self) -> list[Move]:
        """The changes of the learners' weights since the last call."""
        moves, self.gone = self.gone, []
        who = [learner for learner in self.moved if learner in self.position]
        self.moved.clear()
        if self.rule.reads_base:
            if who or self.logged != (len(self.bases), self.members):
                moves.append((self.members, self.base["base"].copy()))
            self.logged = len(self.bases), self.members
        elif who:
            moves.append((who, np.array([self.own[learner]["weights"] for learner in who])))
        return moves

    def start(self, learner: int, delay: float = 0.0) -> None:
        """Begin the learner's next task after this delay, if there is a task. It sees its weights as they are now."""
        task = self.next_task(learner)
        if task is None:
            return
        self.tasks[learner] = task
        self.seen[learner] = self.own[learner]["weights"].copy()
        self.running.add(learner)
        self.order.started(learner, delay)

    def send(self, learner: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when a message from or to this learner arrives, unless the learner is lost or restarts
        before."""
        sending = self.sendings[learner]

        def unless_lost() -> None:
            if sending == self.sendings[learner]:
                arrive()
            self.after_message()

        self.order.send(self.delay, unless_lost if self.delay else arrive)

    def after_message(self) -> None:  # noqa: B027 - most rules have nothing to do
        """Called when a message has arrived, or was lost, after a delay."""

    def void_messages(self, learners: Iterable[int]) -> None:
        """Discard the messages from or to these learners that are under way."""
        for learner in learners:
            self.sendings[learner] += 1

    def drop_member(self, learner: int) -> None:
        """Remove a learner with its task and its messages."""
        self.running.discard(learner)
        self.moved.discard(learner)
        self.void_messages([learner])
        self.set_members(set(self.members) - {learner})
        self.gone.append(((learner,), np.full_like(self.base["base"], np.nan)))

    def add_member(self, learner: int) -> None:
        """Add a learner, which takes z, with zero velocity."""
        self.set_members({*self.members, learner})
        self.steps[learner] = 0
        self.take_base([learner])

    @abstractmethod
    def next_task(self, learner: int) -> int | None:
        """Number of the task that the learner begins now; None if there is none."""

    @abstractmethod
    def pace(self, learner: int) -> Pace:
        """Pace of the tick that contains the learner's task; or at the number of merges, if the schedule counts
        these."""

    def exchanges(self, learner: int) -> bool:
        """Whether the learner has done τ local steps."""
        return self.steps[learner] % int(self.rule.tau) == 0

    @property
    def merges(self) -> int:
        """Number of merges since the first rule of a sequence, as the engine counts them."""
        return self.place.merges + len(self.bases)

    def apply(
        self, update: Update, vectors: Mapping[str, Vector], *, local: Update = NOTHING, omitted: Collection[int] = ()
    ) -> None:
        """Apply `update` to the variables that are not omitted, and `local` to local variables. Both are one step."""
        if len(self.places) == 1 and not self.local and not omitted:
            update.apply(vectors)
            return
        count = update.count
        correction = UNCORRECTED if count is None else count.advance(vectors[count.name])
        for number, place in enumerate(self.places):
            if number not in omitted:
                cut = {name: vector[place] for name, vector in vectors.items()}
                (local if number in self.local else update).apply(cut, correction)

    def clip(self, gradient: Vector) -> float:
        """Factor of a clipped gradient, min(1, clip_gradient_norm / ‖g‖). The gradient is the learner's own or, under a
        rule that sends gradients, the mean of the merged ones; its norm is over all variables, as in the engine."""
        limit = self.solver.clip_gradient_norm
        if limit is None:
            return 1.0
        norm = float(np.linalg.norm(gradient))
        return 1.0 if norm <= limit else limit / norm

    def restart(self) -> None:
        """w_i ← z, with zero velocity and second moment."""
        for name in (*STATE, "step_count"):
            self.base[f"base_{name}"][...] = 0
        self.take_base(self.members)

    def take_base(self, learners: Iterable[int]) -> None:
        """w_i ← z, with zero velocity and second moment, for these learners."""
        for learner in learners:
            own = self.own[learner]
            own["weights"][...] = own["taken"][...] = self.base["base"]
            for name in (*STATE, "step_count"):
                own[name][...] = 0
            self.moved.add(learner)

    def keep_base(self) -> None:
        self.bases.append(self.base["base"].copy())
        self.merge_times.append(self.order.now)

    @property
    @abstractmethod
    def ends(self) -> bool:
        """Whether all tasks are done."""

    @property
    @abstractmethod
    def end(self) -> SimulatedState:
        """The state from which the next rule of a sequence continues."""

    @abstractmethod
    def finish(self, learner: int) -> None:
        """Continue after the end of a task: exchange if it is due, and begin the next task."""

    @abstractmethod
    def leave(self, learner: int) -> None:
        """Continue without this learner."""

    @abstractmethod
    def join(self, learner: int) -> None:
        """Continue with one more learner."""


def new_log(place: SimulatedState, learners: int) -> ReplicaLog:
    """A log of the weights of so many learners, of which the present ones begin at z."""
    start = np.full((learners, place.base.size), np.nan)
    start[list(place.members)] = place.base
    return ReplicaLog(start)
