"""Simulation of two levels: hosts with learners under one rule, and another rule between the hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from crossbow.solver import Pace
from crossbow.synch.arguments import Vector
from crossbow.synch.order import FinishOrder
from crossbow.synch.rule import MEAN
from crossbow.synch.simulated_ticks import BarrierSimulation
from crossbow.synch.simulation import Given
from crossbow.synch.trajectory import Move, ReplicaLog, Trajectory
from crossbow.synch.two_level import RESTING, TwoLevel


class HostOrder(FinishOrder):
    """The order in which the learners of one host finish, by their numbers within the host."""

    def __init__(self, order: FinishOrder, running: set[int], first: int) -> None:
        """running: the running learners of all hosts. first: the number of the host's first learner among the learners
        of all hosts."""
        self._order, self._running, self._first = order, running, first

    def started(self, learner: int, delay: float = 0.0) -> None:
        self._running.add(self._first + learner)
        self._order.started(self._first + learner, delay)

    def next(self, running: set[int]) -> tuple[float, int] | None:
        raise AssertionError("the hosts share one order")


class HostSimulation(BarrierSimulation):
    """Simulation of the learners of one host. After τ ticks it waits for the other hosts."""

    def __init__(self, ticks: int, every: int, first: int, exchange: Callable[[int], None], *arguments: Any) -> None:
        """ticks: τ of the rule between hosts. every: total number of learners of all hosts. first: number of this
        host's first learner. exchange: called with `first` when the host begins to wait."""
        self.ticks, self.every, self.first, self.exchange = ticks, every, first, exchange
        super().__init__(*arguments)

    @property
    def tasks_per_tick(self) -> int:
        return self.every * int(self.rule.tau)

    def next_task(self, learner: int) -> int | None:
        task = self.first_task + self.steps[learner] * self.every + self.first + learner
        return task if task < self.number_of_tasks else None

    def begin_tick(self) -> None:
        if self.tick % self.ticks:
            super().begin_tick()
        else:
            self.exchange(self.first)

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


class TwoLevelSimulation:
    """Simulation of two levels."""

    def __init__(
        self,
        rule: TwoLevel,
        start: Vector,
        given: Given,
        order: FinishOrder,
        hosts: Sequence[range],
        first_task: int,
        number_of_tasks: int | None,
        merges_before: int,
    ) -> None:
        """merges_before: number of merges of a host under the earlier rules of a sequence."""
        self.given, self.order, self.start = given, order, start
        self.between: Any = rule.between.settled([1.0] * len(hosts))
        self.base = {kind: start.copy() for kind in ("base", "base_next")}
        self.base["base_velocity"] = np.zeros_like(start)
        self.running: set[int] = set()
        self.sent: dict[int, Vector] = {}
        self.hosts: dict[int, HostSimulation] = {}
        """Hosts by the number of their first learner."""
        self.host_of: list[HostSimulation] = []
        """The host of each learner."""
        self.bases: list[Vector] = []
        self.merge_times: list[float] = []
        for learners in hosts:
            first = learners.start
            host = HostSimulation(
                rule.between.tau, given.learners, first, self._send, rule.within, start,
                self._given_of(learners), HostOrder(order, self.running, first), first_task, number_of_tasks,
                merges_before,
            )  # fmt: skip
            self.hosts[first] = host
            self.host_of += [host] * len(learners)

    @property
    def merges(self) -> int:
        """Number of merges of a host since the first rule of a sequence."""
        return self._any_host.merges

    @property
    def _any_host(self) -> HostSimulation:
        return next(iter(self.hosts.values()))

    def _given_of(self, learners: range) -> Given:
        """The arguments for a host's learners, whose messages to each other take no time."""

        def gradient(weights: Vector, learner: int, task: int) -> Vector:
            return self.given.gradient(weights, learners[learner], task)

        speeds = [self.given.speeds[learner] for learner in learners]
        return self.given._replace(gradient=gradient, learners=len(learners), speeds=speeds, delay=0.0)

    def run(self) -> Trajectory:
        events: list[int] = []
        times: list[float] = []
        exchanged: list[int] = []
        log = ReplicaLog(np.tile(self.start, (self.given.learners, 1)))
        for host in self.hosts.values():
            host.begin()
        while (following := self.order.next(self.running)) is not None:
            time, learner = following
            host = self.host_of[learner]
            self.running.discard(learner)
            host.end_task(learner - host.first)
            events.append(learner)
            times.append(time)
            exchanged.append(host.staleness[-1])
            log.moves.append([move for each in self.hosts.values() for move in _numbered(each)])
        return Trajectory(
            np.array(self.bases).reshape(-1, self.start.size),
            np.array(exchanged, np.int64),
            np.zeros(len(events), np.bool_),
            np.array(events, np.int64),
            np.array(times),
            np.array(self.merge_times),
            (log,),
        )

    def _send(self, host: int) -> None:
        sent = self.hosts[host].base["base"].copy()
        self.order.send(self.given.delay, partial(self._arrive, host, sent))

    def _arrive(self, host: int, sent: Vector) -> None:
        self.sent[host] = sent
        if len(self.sent) == len(self.hosts):
            self._end_tick()

    def _end_tick(self) -> None:
        rule, base, hosts = self.between, self.base, len(self.hosts)
        pace = self._pace()
        base["base_previous"] = base["base_next"]  # one memory, as in the engine
        mean = sum((self.sent[i] / hosts for i in self.hosts), np.zeros_like(self.start))
        nothing = np.zeros_like(self.start)
        own = {i: {"weights": self.sent[i], "gradient": nothing, "velocity": nothing.copy()} for i in self.hosts}
        apply = self._any_host.apply
        if rule.sends != "new weights":  # the step that synchronises has the pull towards z; the host has stepped
            for vectors in own.values():
                apply(rule.local_step(RESTING, pace, hosts, synchronises=True), {**base, **vectors})
        apply(rule.merge(RESTING, pace, hosts), {**base, "mean": mean}, local=MEAN)
        for vectors in own.values():
            apply(rule.reply(RESTING, pace, hosts), {**base, **vectors})
        base["base"], base["base_next"] = base["base_next"], base["base"]
        self.bases.append(base["base"].copy())
        self.merge_times.append(self.order.now)
        self.sent.clear()
        for i, host in self.hosts.items():
            host.go_on(own[i]["weights"], self.given.delay)

    def _pace(self) -> Pace:
        """Pace of the rule between hosts: its ticks are those of z, its times those of the hosts."""
        return self._any_host.pace(0)._replace(tick=len(self.bases))


def _numbered(host: HostSimulation) -> list[Move]:
    """The host's changes, with the learners' numbers among those of all hosts."""
    return [([host.first + learner for learner in learners], weights) for learners, weights in host.take_moves()]
