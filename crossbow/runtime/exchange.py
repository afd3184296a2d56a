"""Exchanges of learners without a barrier: on the threads of learners that have finished a task.

After its local steps, a learner merges its contribution into z and updates the variables of the learners that may
continue, as the rule's updates specify. The bookkeeping is the simulator's (`crossbow.synch.progress`); the kernel
library combines the vectors at a backend's `Meeting`. A lock admits one learner at a time, unless the rule works
without a lock.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from crossbow.clock import now
from crossbow.compile import BoundStep
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.backend import Combination, Meeting
from crossbow.runtime.coefficients import About, BoundUpdate, Formula
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.solver import Pace, SolverConf, Update
from crossbow.solver.update import total
from crossbow.synch import FreeRule, PeerRule
from crossbow.synch.progress import ExchangeState, Masses, left_out, of_all
from crossbow.synch.rule import NOTHING, Arrival
from crossbow.timeline.recorder import MERGE, Recorder, learner_track
from crossbow.types import Array


@dataclass(frozen=True)
class Participants:
    """The vectors that an exchange combines, and the arithmetic that combines them."""

    base: BaseModel
    replicas: Sequence[Replica]
    arithmetic: VectorArithmetic
    meeting: Meeting
    recorder: Recorder = field(default_factory=Recorder)
    mirrors: Sequence[Replica] = ()
    """On the rank that has z, those of other ranks' learners. They follow its own."""
    of_all: int | None = None
    """Number of learners of all ranks; None if there are no other ranks."""

    @property
    def learners(self) -> int:
        """Number of learners of all ranks."""
        return len(self.replicas) if self.of_all is None else self.of_all

    def bind(
        self,
        name: str,
        at: Callable[[Pace, About], Update],
        some: About,
        vectors: Mapping[str, Array],
        clipped: Mapping[str, float] | None = None,
        place: slice | None = None,
    ) -> Combination[About]:
        """Return an update of vectors, except the learners' local variables.

        some: an example of what the coefficients depend on besides the pace. clipped: the combination of gradients
        whose norm is limited, if any. place: the range of the vectors; None means the whole vectors.
        """
        arithmetic, ranges = self.arithmetic, self.arithmetic.ranges
        alone = Formula(lambda pace, about: NOTHING, some) if ranges.kept else None
        formula = Formula(at, some, ranges.multipliers, alone)
        used = {vector: vectors[vector] for vector in formula.form.vectors}
        where = place or slice(0, self.base.buffers[0].size)

        def bind(update: BoundUpdate) -> list[BoundStep]:
            steps, update = arithmetic.count(name, update, vectors)
            if clipped is not None:
                clipping, update = arithmetic.clip_by_norm(update, clipped, used)
                steps += clipping
            if used:
                cut = {vector: values[where] for vector, values in used.items()}
                steps += arithmetic.adjust(name, update, cut, where)
            return steps

        return self.meeting.combination(formula, bind)

    def means(self) -> list[BoundStep]:
        """Calls that compute z's local variables and statistics: the means of the learners', or this rank's part."""
        return [*self._mean_of_kept(), *self._mean_statistics()]

    def _mean_of_kept(self) -> list[BoundStep]:
        steps: list[BoundStep] = []
        terms = total("weights", [1 / self.learners] * len(self.replicas))
        for place in self.arithmetic.ranges.kept:
            vectors = {f"weights{i}": each.vectors()["weights"][place] for i, each in enumerate(self.replicas)}
            vectors["base"] = self.base.buffers[0][place]
            steps += self.arithmetic.fixed("mean", Update((("base", terms),)), vectors)
        return steps

    def _mean_statistics(self) -> list[BoundStep]:
        if not self.base.statistics[0].size:
            return []
        vectors = {f"observed{i}": replica.statistics[0] for i, replica in enumerate(self.replicas)}
        terms = total("observed", [1 / self.learners] * len(self.replicas))
        return self.arithmetic.combine_statistics(terms, {**vectors, "statistics": self.base.statistics[0]})


class Exchange(ABC):
    """The learners' meeting place."""

    def __init__(self, participants: Participants, tau: int) -> None:
        """tau: a learner's tasks between two exchanges."""
        self._participants, self._tau = participants, tau
        self._own, self._learners = len(participants.replicas), participants.learners
        self._lock = threading.Lock()
        self._draws = [0] * self._learners
        """Number of each learner's next random draw in an exchange."""
        self._steps = [0] * self._own
        self.free: deque[int] = deque()
        """The learners that may begin a task, in the order in which they became free. Any thread takes from it."""
        self._means = participants.means()

    def finished(self, learner: int, pace: Pace) -> None:
        """Do everything that follows a learner's task and local step. Called on the learner's thread."""
        self._steps[learner] += 1
        if self._steps[learner] % self._tau:
            self.free.append(learner)
        else:
            self._exchange(learner, pace)

    def _exchange(self, learner: int, pace: Pace) -> None:
        self._let_go(self._participants.meeting.exchange(learner, lambda: self._arrive(learner, pace)))

    def _let_go(self, going: Sequence[int]) -> None:
        """Let learners continue that have exchanged."""
        self.free.extend(going)

    def _record(self, learner: int, begin: int, going: list[int]) -> None:
        """Record the end of a learner's exchange, which lets others continue. begin: when it had the lock."""
        if self._participants.recorder.on:
            self._participants.recorder.event(learner_track(learner), MERGE, begin, going=going)

    def begin(self, tick: int) -> None:
        """Start afresh at this tick, with random draws that differ from those of earlier ticks."""
        self._draws = [tick] * self._learners

    def restart(self) -> None:
        """Let all learners begin: they have copied z."""
        self._steps = [0] * self._own
        self.free.clear()
        self.free.extend(range(self._own))

    def state(self) -> dict[str, Any]:
        """What the next exchanges depend on, except vectors, as JSON values. No task may be running."""
        return {"draws": self._draws, "steps": self._steps, "free": list(self.free)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same rule."""
        self._draws, self._steps = list(state["draws"]), list(state["steps"])
        self.free.clear()
        self.free.extend(state["free"])

    def settle(self) -> None:
        """Compute the parts of the base model that only readers need: its statistics, the mean of the learners'. No
        task may be running."""
        self._participants.meeting.settle(self._settle)

    def _settle(self) -> None:
        for step in self._means:
            step.call()

    def keep_part(self) -> tuple[float, float]:
        """After the loss of a rank, compute what `settle` computes, without the other ranks. No task may be running.

        Returns two numbers by which the parts of several ranks make a whole: the mass of this rank's part of z, and the
        part of all learners that it has, for their local variables and statistics. The sum of the parts divided by the
        sum of the numbers is the mean of those that are left."""
        Exchange.settle(self)
        return self._mass, self._own / self._learners

    @property
    @abstractmethod
    def _mass(self) -> float:
        """The mass of this rank's part of z, 1 if it has all of it."""

    def rest(self, learner: int) -> None:  # noqa: B027 - on one rank, a learner without a task takes the next one
        """Across ranks, let no learner wait for this one, which gets no task until others have ended theirs. learner:
        its number on this rank."""

    def begin_session(self) -> None:  # noqa: B027 - learners of one rank send no messages
        """Exchange messages with other ranks from now on, until `settle`. Called before each task."""

    def give_up(self) -> None:  # noqa: B027
        """After a failure, exchange no more messages."""

    def arrivals(self) -> tuple[int, int, int] | None:
        """Numbers of complete and of dropped contributions, and the sum of their staleness; None without a base
        model."""
        return None

    @property
    @abstractmethod
    def merges(self) -> int:
        """Number of contributions that were merged. Dropped contributions do not count. Across ranks, it is known on
        all of them when nothing is running."""

    @property
    def own_merges(self) -> int:
        """Those that this rank counts. Their sum over the ranks is `merges`."""
        return self.merges

    @abstractmethod
    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        """Exchange after a learner's τ local steps. Returns the learners that may continue."""


class BaseExchange(Exchange):
    """Exchanges between a learner and the base model."""

    def __init__(
        self,
        participants: Participants,
        rule: FreeRule,
        solver: SolverConf,
        variables: Sequence[slice] = (),
        *,
        skip: float = 0.0,
        seed: int = 0,
    ) -> None:
        """skip: the probability that a merge leaves out a variable. variables: the range of each in a vector."""
        super().__init__(participants, rule.tau)
        self._solver, self._skip, self._seed = solver, skip, seed
        self._clips = solver.clip_gradient_norm is not None and rule.sends_gradient
        self._places = list(variables) if skip else [slice(0, participants.base.buffers[0].size)]
        self._replicas = (*participants.replicas, *participants.mirrors)
        self.progress = ExchangeState(rule, self._learners)
        self._set_rule(rule)
        self._replies = [self._reply(replica) for replica in self._replicas]
        nobody = contextlib.nullcontext()
        self._merging: AbstractContextManager[object] = self._lock if rule.locks else nobody
        """Held while z changes."""
        self._counting: AbstractContextManager[object] = nobody if rule.locks else self._lock
        """Held while counters change."""
        self.restart()

    def _set_rule(self, rule: FreeRule) -> None:
        self._rule, learners = rule, self._learners
        self._merges = [self._merge(learner) for learner in range(learners)]

    def follow(self, rule: FreeRule, pace: Pace) -> None:
        """Continue with another rule of this class; z, its velocity and the learners stay as they are. Learners that
        waited under the old rule arrive under the new one, which merges every complete set now. No task may be
        running."""
        waiting = self.progress.follow(rule)
        self._set_rule(rule)
        for learner in waiting:
            self._exchange(learner, pace)

    def begin(self, tick: int) -> None:
        super().begin(tick)
        self.progress.forget()

    def restart(self) -> None:
        super().restart()
        self.progress.restart()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "progress": self.progress.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.progress.restore(state["progress"])

    @property
    def _mass(self) -> float:
        return 1.0

    @property
    def merges(self) -> int:
        return self.progress.merges

    def arrivals(self) -> tuple[int, int, int]:
        progress = self.progress
        return progress.arrivals, progress.dropped, progress.staleness

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        with self._merging:
            begin = now()
            with self._counting:
                merge = self.progress.arrive(learner)
            if merge is not None and not merge.dropped:
                for combination in self._not_left_out(learner):
                    combination.run(pace, merge.arrival)
            going = self._reply_to_waiting(pace)
            self._record(learner, begin, going)
        return going

    def _reply_to_waiting(self, pace: Pace) -> list[int]:
        """Give z to the learners that may continue. Returns them."""
        with self._counting:
            going = self.progress.let_go()
        for each in going:
            self._replies[each].run(pace, None)
        return going

    def _not_left_out(self, learner: int) -> Sequence[Combination[Arrival]]:
        combinations, number = self._merges[learner], self._draws[learner]
        self._draws[learner] += 1
        if not self._skip:
            return combinations
        omitted = left_out(self._skip, len(combinations), learner, number, self._seed)
        return [combination for combination, out in zip(combinations, omitted, strict=True) if not out]

    def _merge(self, learner: int) -> list[Combination[Arrival]]:
        """The updates of z at the learner's arrival, range by range."""
        rule, solver, replicas = self._rule, self._solver, self._replicas
        group = rule.contributors(learner, self._learners)

        def at(pace: Pace, arrival: Arrival) -> Update:
            return of_all(rule.merge(solver, pace, arrival), len(group))

        gradients = {f"gradient{n}": replicas[each].gradient for n, each in enumerate(group)}
        names = tuple(gradients) if len(group) > 1 else ("gradient",)
        clipped = {name: 1 / len(group) for name in names} if self._clips else None
        vectors = {**self._vectors(replicas[learner]), **gradients}
        some = Arrival(learner, self._learners, len(group))
        return [self._participants.bind("merge", at, some, vectors, clipped, place) for place in self._places]

    def _reply(self, replica: Replica) -> Combination[None]:
        def at(pace: Pace, _: None) -> Update:
            return self._rule.reply(self._solver, pace)

        return self._participants.bind("reply", at, None, self._vectors(replica))

    def _vectors(self, replica: Replica) -> dict[str, Array]:
        return {**self._participants.base.vectors(0), **replica.vectors()}


class PeerExchange(Exchange):
    """Exchanges between pairs of learners."""

    def __init__(self, participants: Participants, rule: PeerRule, *, seed: int = 0, first: int = 0) -> None:
        """first: number of the first learner among those of all ranks."""
        super().__init__(participants, rule.tau)
        self._rule, self._seed, self._met, self._first = rule, seed, 0, first
        self.masses = Masses(self._learners, self._own)
        own = [replica.vectors() for replica in participants.replicas]
        self._receive = [self._mix(each) for each in own]
        self._send = {
            (sender, peer): self._mix({"weights": own[peer]["received"], "received": own[sender]["weights"]})
            for sender, peer in itertools.permutations(range(self._own), 2)
        }
        self._mean = participants.bind(
            "mean",
            lambda pace, mean: mean,
            self.masses.mean,
            {
                **participants.base.vectors(0),
                **{f"{kind}{i}": each[kind] for i, each in enumerate(own) for kind in ("weights", "received")},
            },
        )
        self.restart()

    def restart(self) -> None:
        super().restart()
        self.masses = Masses(self._learners, self._own)

    def state(self) -> dict[str, Any]:
        masses = {"own": self.masses.own, "coming": self.masses.coming}
        return {**super().state(), "met": self._met, "masses": masses}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._met = state["met"]
        self.masses.restore(**state["masses"])

    def _settle(self) -> None:
        self._mean.run(Pace(0.0, 0.0), self.masses.mean)
        super()._settle()

    @property
    def _mass(self) -> float:
        return self.masses.total

    @property
    def merges(self) -> int:
        return self._met  # there is no z: the number of exchanges

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        peer = self._rule.peer(self._first + learner, self._learners, self._draws[learner], self._seed)
        self._draws[learner] += 1
        with self._lock:
            begin = now()
            self._met += 1
            if self.masses.coming[learner]:
                self._receive[learner].run(pace, self.masses.receive(learner))
            if peer is not None:
                self._give(learner, peer - self._first, pace)
            self._record(learner, begin, [learner])
        return [learner]

    def _give(self, learner: int, peer: int, pace: Pace) -> None:
        """Send a learner's weights to a peer. Both are numbered from this rank's first learner."""
        self._send[learner, peer].run(pace, self.masses.send(learner, peer, self._rule.part_sent()))

    def _mix(self, vectors: Mapping[str, Array]) -> Combination[tuple[float, float]]:
        """An update of vectors whose coefficients depend on the two masses."""
        return self._participants.bind("mix", lambda pace, masses: self._rule.mix(*masses), (0.5, 0.5), vectors)
