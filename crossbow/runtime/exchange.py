"""What learners do with each other under a rule without a barrier: on the threads of those who have finished a task.

A learner that has done its local steps merges what it contributes into z, and gives those who may start what they start
with, as the rule's updates say. Bookkeeping is the simulator's (`crossbow.synch.progress`); vectors are combined by the
kernel library. One lock lets one learner at a time do so, unless the rule wants none.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from crossbow.compile import BoundStep
from crossbow.kernels.native import TaskList
from crossbow.runtime.coefficients import PacedUpdate, paced_update
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.tick import Averaging
from crossbow.solver import Pace, Update
from crossbow.solver.update import total
from crossbow.synch import FreeRule, PeerRule
from crossbow.synch.progress import Masses, Progress, left_out, of_all
from crossbow.synch.rule import NOTHING, Arrival
from crossbow.types import Array


class Combination(Protocol):
    """An update that is bound to vectors."""

    def run(self, pace: Pace) -> None:
        """With the numbers of now."""


@dataclass(frozen=True)
class HostCombination:
    """On the calling thread."""

    paced: PacedUpdate
    calls: TaskList

    def run(self, pace: Pace) -> None:
        self.paced.set(pace)
        self.calls.run()


Bind = Callable[[PacedUpdate], list[BoundStep]]
"""Gives the calls of an update, with its numbers in arrays that kernels read."""


class Site:
    """Where learners meet: what an exchange is done by, and behind what. Here by their own threads, at once."""

    def combination(self, paced: PacedUpdate, bind: Bind) -> Combination:
        """The update, bound to vectors."""
        steps = bind(paced)
        return HostCombination(paced, TaskList([step.call for step in steps], [step.operator for step in steps]))

    def exchange(self, learner: int, arrive: Callable[[], list[int]]) -> list[int]:
        """Do what comes of the learner's arrival. Returned, as by `arrive`: who may go on once it is done."""
        return arrive()

    def settle(self, work: Callable[[], None]) -> None:
        """Do the work behind everything that learners have done; return when it is done."""
        work()


class Exchange(ABC):
    """The learners' meeting place."""

    def __init__(self, averaging: Averaging, base: BaseModel, replicas: Sequence[Replica], site: Site) -> None:
        self._averaging, self._base, self._replicas, self._site = averaging, base, replicas, site
        self._lock = threading.Lock()
        self._draws = [0] * len(replicas)
        """The number of each learner's next draw of what is random in an exchange."""
        self.free: deque[int] = deque()
        """The learners that may begin a task, in the order in which they could. Any thread takes from it."""
        self._settling = self._settle_steps()

    def finished(self, learner: int, pace: Pace) -> None:
        """The learner has done a task and its local step: all that comes of it. On the learner's thread."""
        self._steps[learner] += 1
        if self._steps[learner] % self._averaging.rule.tau:
            self.free.append(learner)
        else:
            self._exchange(learner, pace)

    def _exchange(self, learner: int, pace: Pace) -> None:
        self.free.extend(self._site.exchange(learner, lambda: self._arrive(learner, pace)))

    def begin(self, tick: int) -> None:
        """Go on at that tick as if nothing had been before, with other draws than earlier ticks had."""
        self._draws = [tick] * len(self._replicas)

    def restart(self) -> None:
        """All have taken z, and may begin."""
        self._steps = [0] * len(self._replicas)
        self.free.clear()
        self.free.extend(range(len(self._replicas)))

    def settle(self) -> None:
        """What only those who look at the base model need: its statistics, the mean of the learners'. Nothing may be
        running."""
        self._site.settle(self._settle)

    def _settle(self) -> None:
        for step in self._settling:
            step.call()

    @property
    @abstractmethod
    def merges(self) -> int:
        """How often what learners send was merged; dropped contributions do not count."""

    @abstractmethod
    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        """The learner has done τ local steps: exchange, and say who may go on."""

    def _settle_steps(self) -> list[BoundStep]:
        return [*self._mean_of_kept(), *self._mean_statistics()]

    def _mean_of_kept(self) -> list[BoundStep]:
        """z of the variables that every learner keeps to itself."""
        steps: list[BoundStep] = []
        for place in self._averaging.kept:
            vectors = {f"weights{i}": each.vectors()["weights"][place] for i, each in enumerate(self._replicas)}
            vectors["base"] = self._base.buffers[0][place]
            update = Update((("base", total("weights", [1 / len(self._replicas)] * len(self._replicas))),))
            steps += self._averaging.combine("mean", update, vectors, self._averaging.array(update.coefficients))
        return steps

    def _mean_statistics(self) -> list[BoundStep]:
        if not self._base.statistics[0].size:
            return []
        vectors = {f"observed{i}": replica.statistics[0] for i, replica in enumerate(self._replicas)}
        terms = total("observed", [1 / len(self._replicas)] * len(self._replicas))
        return self._averaging.combine_statistics(terms, {**vectors, "statistics": self._base.statistics[0]})

    def _bind(
        self,
        name: str,
        at: Callable[[Pace], Update],
        vectors: Mapping[str, Array],
        clipped: Mapping[str, float] | None = None,
        place: slice | None = None,
    ) -> Combination:
        """An update of vectors, but for what every learner keeps to itself. clipped: the combination of gradients whose
        norm is limited, if any. place: of the vectors; None is all."""
        averaging, paced = self._averaging, paced_update(at, self._averaging.multipliers)
        if averaging.kept:
            paced = replace(paced, alone=paced_update(lambda pace: NOTHING, averaging.multipliers))
        used = {vector: vectors[vector] for vector in paced.update.vectors}
        where = place or slice(0, self._base.buffers[0].size)

        def bind(paced: PacedUpdate) -> list[BoundStep]:
            steps: list[BoundStep] = []
            if clipped is not None:
                squares = averaging.array([0.0])
                clipping, shortened = averaging.clip(paced, tuple(clipped), squares)
                steps, paced = [*averaging.square(clipped, used, squares), *clipping], shortened
            if used:
                cut = {vector: values[where] for vector, values in used.items()}
                steps += averaging.adjust(name, paced, cut, where)
            return steps

        return self._site.combination(paced, bind)


class BaseExchange(Exchange):
    """Learners that meet a base model."""

    def __init__(
        self,
        averaging: Averaging,
        rule: FreeRule,
        base: BaseModel,
        replicas: Sequence[Replica],
        site: Site,
        skip: float,
        variables: Sequence[slice],
        seed: int,
    ) -> None:
        """skip: the probability with which each of the variables, which lie there, is left out of a merge."""
        super().__init__(averaging, base, replicas, site)
        self._skip, self._seed = skip, seed
        self._places = list(variables) if skip else [slice(0, base.buffers[0].size)]
        self.progress = Progress(rule, len(replicas))
        self._set_rule(rule)
        self._replies = [self._reply(replica) for replica in replicas]
        nobody = contextlib.nullcontext()
        self._merging: AbstractContextManager[object] = self._lock if rule.locks else nobody
        """Held while z is changed."""
        self._counting: AbstractContextManager[object] = nobody if rule.locks else self._lock
        """Held while numbers are."""
        self.restart()

    def _set_rule(self, rule: FreeRule) -> None:
        self._rule, learners = rule, len(self._replicas)
        self._arrivals = [Arrival(i, learners, len(rule.contributors(i, learners))) for i in range(learners)]
        self._merges = [self._merge(learner) for learner in range(learners)]

    def follow(self, rule: FreeRule, pace: Pace) -> None:
        """Go on by another rule of this class, with z, its velocity and the learners as they are. Those that waited
        under the old rule arrive under the new one: what that has complete is merged now. Nothing may be running."""
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

    @property
    def merges(self) -> int:
        return self.progress.merges

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        with self._merging:
            with self._counting:
                merge = self.progress.arrive(learner)
            if merge is not None and not merge.dropped:
                self._arrivals[learner] = merge.arrival
                for combination in self._not_left_out(learner):
                    combination.run(pace)
            with self._counting:
                going = self.progress.let_go()
            for each in going:
                self._replies[each].run(pace)
        return going

    def _not_left_out(self, learner: int) -> Sequence[Combination]:
        combinations, number = self._merges[learner], self._draws[learner]
        self._draws[learner] += 1
        if not self._skip:
            return combinations
        omitted = left_out(self._skip, len(combinations), learner, number, self._seed)
        return [combination for combination, out in zip(combinations, omitted, strict=True) if not out]

    def _merge(self, learner: int) -> list[Combination]:
        """What the learner's arrival does to z, place by place."""
        rule, solver, learners = self._rule, self._averaging.solver, len(self._replicas)
        group = rule.contributors(learner, learners)

        def at(pace: Pace) -> Update:
            return of_all(rule.merge(solver, pace, self._arrivals[learner]), len(group))

        gradients = {f"gradient{n}": self._replicas[each].gradient for n, each in enumerate(group)}
        names = tuple(gradients) if len(group) > 1 else ("gradient",)
        clipped = {name: 1 / len(group) for name in names} if self._averaging.clips == "mean" else None
        vectors = {**self._vectors(self._replicas[learner]), **gradients}
        return [self._bind("merge", at, vectors, clipped, place) for place in self._places]

    def _reply(self, replica: Replica) -> Combination:
        return self._bind("reply", lambda pace: self._rule.reply(self._averaging.solver, pace), self._vectors(replica))

    def _vectors(self, replica: Replica) -> dict[str, Array]:
        return {**self._base.vectors(0), **replica.vectors()}


class PeerExchange(Exchange):
    """Learners that meet each other."""

    def __init__(
        self, averaging: Averaging, rule: PeerRule, base: BaseModel, replicas: Sequence[Replica], site: Site, seed: int
    ) -> None:
        self._rule, self._seed, self._met = rule, seed, 0
        self.masses = Masses(len(replicas))
        self._now = (0.5, 0.5)
        """The masses of what is being mixed."""
        super().__init__(averaging, base, replicas, site)
        own = [replica.vectors() for replica in replicas]
        self._receive = [self._mix(each) for each in own]
        self._send = {
            (sender, peer): self._mix({"weights": own[peer]["received"], "received": own[sender]["weights"]})
            for sender, peer in itertools.permutations(range(len(replicas)), 2)
        }
        self._mean = self._bind(
            "mean",
            lambda pace: self.masses.mean,
            {
                **base.vectors(0),
                **{f"{kind}{i}": each[kind] for i, each in enumerate(own) for kind in ("weights", "received")},
            },
        )
        self.restart()

    def restart(self) -> None:
        super().restart()
        self.masses = Masses(len(self._replicas))

    def _settle(self) -> None:
        self._mean.run(Pace(0.0, 0.0))
        super()._settle()

    @property
    def merges(self) -> int:
        return self._met  # there is no z: how often learners have come to exchange

    def _arrive(self, learner: int, pace: Pace) -> list[int]:
        peer = self._rule.peer(learner, len(self._replicas), self._draws[learner], self._seed)
        self._draws[learner] += 1
        with self._lock:
            self._met += 1
            if self.masses.coming[learner]:
                self._now = self.masses.receive(learner)
                self._receive[learner].run(pace)
            if peer is not None:
                self._now = self.masses.send(learner, peer, self._rule.part_sent())
                self._send[learner, peer].run(pace)
        return [learner]

    def _mix(self, vectors: Mapping[str, Array]) -> Combination:
        return self._bind("mix", lambda pace: self._rule.mix(*self._now), vectors)
