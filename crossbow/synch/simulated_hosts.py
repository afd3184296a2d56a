"""Simulation of two levels: hosts with learners under one rule, and another rule between the hosts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from crossbow.solver import Pace
from crossbow.synch.arguments import Vector
from crossbow.synch.members import present_hosts
from crossbow.synch.order import FinishOrder
from crossbow.synch.rule import MEAN
from crossbow.synch.sequence import ticks_of_phase
from crossbow.synch.simulated_ticks import BarrierSimulation
from crossbow.synch.simulation import Given, SimulatedState, new_log
from crossbow.synch.trajectory import Move, Trajectory
from crossbow.synch.two_level import RESTING, TwoLevel


class HostOrder(FinishOrder):
    """The order in which the learners of one host finish, by their numbers within the host."""

    def __init__(self, order: FinishOrder, running: set[int], learners: Sequence[int]) -> None:
        """running: the running learners of all hosts. learners: the numbers of the host's learners among those of all
        hosts."""
        self._order, self._running, self._learners = order, running, learners

    def started(self, learner: int, delay: float = 0.0) -> None:
        number = self._learners[learner]
        self._running.add(number)
        self._order.started(number, delay)

    def next(self, running: set[int]) -> tuple[float, int] | None:
        raise AssertionError("the hosts share one order")


class HostSimulation(BarrierSimulation):
    """Simulation of the present learners of one host. After τ ticks it waits for the other hosts."""

    def __init__(
        self,
        learners: Sequence[int],
        first: int,
        every: int,
        ticks: int,
        tick: int,
        exchange: Callable[[HostSimulation], None],
        *arguments: Any,
    ) -> None:
        """learners: the numbers of the host's learners among those of all hosts. first: number of present learners
        before them, every: of all hosts. ticks: τ of the rule between hosts. tick: the first tick, counted from the
        start of the phase. exchange: called when the host begins to wait."""
        self.numbers, self.first, self.every, self.ticks, self.exchange = learners, first, every, ticks, exchange
        super().__init__(*arguments)
        self.tick = tick

    def set_members(self, members: Iterable[int]) -> None:
        super().set_members(members)
        self.tasks_per_tick = self.every * int(self.rule.tau)

    def next_task(self, learner: int) -> int | None:
        task = self.first_task + self.steps[learner] * self.every + self.first + learner
        return task if task < self.number_of_tasks else None

    def begin_tick(self) -> None:
        if self.tick % self.ticks:
            super().begin_tick()
        else:
            self.exchange(self)

    def go_on(self, base: Vector, delay: float) -> None:
        """Move to this base model, and begin the next tick after a delay."""
        moved = base - self.base["base"]
        self.base["base"][...] = base
        self.base["base_next"] += moved
        for learner in self.members:
            if not self.rule.reads_base:
                self.own[learner]["weights"] += moved
            self.moved.add(learner)
        for learner in self.members:
            self.steps[learner] = 0
            self.start(learner, delay)

    def share_with(self, other: HostSimulation) -> None:
        """Use the same paces and local steps as another host, which are computed once."""
        self.pace_at, self.steps_at = other.pace_at, other.steps_at

    def take_moves(self) -> list[Move]:
        """The changes, with the learners' numbers among those of all hosts."""
        return [([self.numbers[learner] for learner in who], weights) for who, weights in super().take_moves()]


class TwoLevelSimulation:
    """Simulation of two levels.

    If a learner is lost, the tick of z begins again: all hosts restart from z, with zero velocities, also of z, and
    share the tick's tasks. A learner joins at the end of a tick of z, when all hosts restart in the same way, or when
    all others have been lost. A host without learners is absent.
    """

    def __init__(
        self, rule: TwoLevel, merges: int | None, place: SimulatedState, given: Given, order: FinishOrder
    ) -> None:
        """merges: length of the rule's phase, in merges of a host; None for a rule without an end."""
        self.rule, self.merges_of_phase, self.place, self.given, self.order = rule, merges, place, given, order
        self.base = {kind: place.base.copy() for kind in ("base", "base_next")}
        self.base["base_velocity"] = np.zeros_like(place.base)
        self.first_task = place.task
        """Number of the first task of the current tick of z."""
        self.running: set[int] = set()
        self.joining: list[int] = []
        self.regroupings = 0
        """Number of times that learners have left or joined. Earlier messages are lost."""
        self.changed: dict[HostSimulation, None] = {}
        """Hosts whose learners' weights may have changed since the last event."""
        self.gone: list[Move] = []
        """Learners that have left since then, with NaN for weights."""
        self.bases: list[Vector] = []
        self.merge_times: list[float] = []
        self.log = new_log(place, len(given.speeds))
        self._set_members(place.members)

    def _set_members(self, members: Iterable[int]) -> None:
        """Set the present learners, and make new hosts of them, which begin at z."""
        self.members = tuple(sorted(members))
        learners, every = present_hosts(self.given.hosts, self.members), len(self.members)
        self.between: Any = self.rule.between.settled([1.0] * len(learners))
        self.tasks_per_tick = every * self.rule.tau
        self.number_of_tasks = self.given.tasks
        """Number of the first task that does not belong to the phase."""
        if self.merges_of_phase is not None:
            ticks = ticks_of_phase(self.rule, self.merges_of_phase, every, self.tasks_per_tick) - len(self.bases)
            self.number_of_tasks = min(self.given.tasks, self.first_task + ticks * self.tasks_per_tick)
        ends = itertools.accumulate(map(len, learners))
        self.hosts = [self._new_host(own, end - len(own)) for own, end in zip(learners, ends, strict=True)]
        for host in self.hosts:
            host.share_with(self.hosts[0])
        self.sent: dict[HostSimulation, Vector] = {}
        self.host_of = {learner: (host, own) for host in self.hosts for own, learner in enumerate(host.numbers)}
        """The host of each learner, and the learner's number within the host."""

    def _new_host(self, learners: Sequence[int], first: int) -> HostSimulation:
        tau, place = self.rule.between.tau, self.end
        place = place._replace(members=tuple(range(len(learners))))
        return HostSimulation(
            learners, first, len(self.members), tau, tau * len(self.bases), self._send, self.rule.within, None, place,
            self._given_of(learners), HostOrder(self.order, self.running, learners),
        )  # fmt: skip

    def _given_of(self, learners: Sequence[int]) -> Given:
        """The arguments for a host's learners, whose messages to each other take no time."""

        def gradient(weights: Vector, learner: int, task: int) -> Vector:
            return self.given.gradient(weights, learners[learner], task)

        speeds = [self.given.speeds[learner] for learner in learners]
        return self.given._replace(gradient=gradient, tasks=self.number_of_tasks, speeds=speeds, delay=0.0)

    @property
    def ends(self) -> bool:
        """Whether all tasks are done."""
        return self.first_task >= self.number_of_tasks

    @property
    def end(self) -> SimulatedState:
        """The state of the last z, from which hosts, or the next rule of a sequence, continue."""
        ticks = len(self.bases) * self.rule.between.tau
        tick, merges = self.place.tick + ticks, self.place.merges + ticks
        return SimulatedState(self.base["base"], self.members, self.first_task, tick, merges)

    def run(self) -> Trajectory:
        events: list[int] = []
        times: list[float] = []
        exchanged: list[int] = []
        for host in self.hosts:
            host.begin()
        while (following := self.order.next(self.running)) is not None:
            time, learner = following
            host, number = self.host_of[learner]
            self.running.discard(learner)
            self.changed[host] = None
            host.end_task(number)
            events.append(learner)
            times.append(time)
            exchanged.append(host.staleness[-1])
            self.log.moves.append(self._take_moves())
        return Trajectory(
            np.array(self.bases).reshape(-1, self.place.base.size),
            np.array(exchanged, np.int64),
            np.zeros(len(events), np.bool_),
            np.array(events, np.int64),
            np.array(times),
            np.array(self.merge_times),
            (self.log,),
        )

    def _take_moves(self) -> list[Move]:
        """The changes of the learners' weights since the last call."""
        moves = [*self.gone, *(move for host in self.changed for move in host.take_moves())]
        self.gone.clear()
        self.changed.clear()
        return moves

    def _send(self, host: HostSimulation) -> None:
        self.order.send(self.given.delay, partial(self._arrive, host, host.base["base"].copy(), self.regroupings))

    def _arrive(self, host: HostSimulation, sent: Vector, regroupings: int) -> None:
        if regroupings != self.regroupings:
            return
        self.sent[host] = sent
        if len(self.sent) == len(self.hosts):
            self._end_tick()

    def _end_tick(self) -> None:
        rule, base, hosts = self.between, self.base, len(self.hosts)
        pace = self._pace()
        base["base_previous"] = base["base_next"]  # one memory, as in the engine
        mean = sum((self.sent[host] / hosts for host in self.hosts), np.zeros_like(self.place.base))
        nothing = np.zeros_like(self.place.base)
        own = [{"weights": self.sent[host], "gradient": nothing, "velocity": nothing.copy()} for host in self.hosts]
        apply = self.hosts[0].apply
        if rule.sends != "new weights":  # the step that synchronises has the pull towards z; the host has stepped
            for vectors in own:
                apply(rule.local_step(RESTING, pace, hosts, synchronises=True), {**base, **vectors})
        apply(rule.merge(RESTING, pace, hosts), {**base, "mean": mean}, local=MEAN)
        for vectors in own:
            apply(rule.reply(RESTING, pace, hosts), {**base, **vectors})
        base["base"], base["base_next"] = base["base_next"], base["base"]
        self.first_task += self.tasks_per_tick
        self.bases.append(base["base"].copy())
        self.merge_times.append(self.order.now)
        self.sent.clear()
        if self.joining:
            self._regroup({*self.members, *self.joining})
            return
        for host, vectors in zip(self.hosts, own, strict=True):
            self.changed[host] = None
            host.go_on(vectors["weights"], self.given.delay)

    def _pace(self) -> Pace:
        """Pace of the rule between hosts: its ticks are those of z, its times those of the hosts."""
        return self.hosts[0].pace(0)._replace(tick=len(self.bases))

    def leave(self, learner: int) -> None:
        """Continue without this learner."""
        if learner in self.joining:
            self.joining.remove(learner)
            return
        others = set(self.members) - {learner}
        self.gone.append(((learner,), np.full_like(self.place.base, math.nan)))
        self._regroup(others or self.joining)

    def join(self, learner: int) -> None:
        """Continue with one more learner from the next z on."""
        self.joining.append(learner)

    def _regroup(self, members: Iterable[int]) -> None:
        """Restart with these learners from z."""
        self.regroupings += 1
        self.running.clear()
        self.base["base_next"][...] = self.base["base"]
        self.base["base_velocity"][...] = 0
        self.changed.clear()
        self._set_members(members)
        self.joining = [learner for learner in self.joining if learner not in self.members]
        for host in self.hosts:
            host.moved.update(host.members)
            self.changed[host] = None
            host.begin(self.given.delay)
