"""Simulation of learners under a rule without a barrier."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from crossbow.solver import Pace, Update
from crossbow.solver.update import total
from crossbow.synch.arguments import Vector
from crossbow.synch.grouping import Grouping
from crossbow.synch.progress import ExchangeState, Masses, Merge, left_out, of_all
from crossbow.synch.rule import NOTHING, FreeRule, PeerRule
from crossbow.synch.simulated_mean import MeanByMass
from crossbow.synch.simulation import SimulatedState, Simulation
from crossbow.synch.trajectory import Trajectory


class _WithoutBarrier(Simulation):
    """Simulation of learners that begin a task as soon as the rule allows it. No task of a tick in which the schedule
    has stepped down begins before all other tasks have finished. Then all learners restart from z.

    If a learner is lost, the others continue. Its tasks since its last exchange are assigned again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        number, self.started = len(self.own), self.first_task
        """Number of the next task."""
        self.draws = [self.place.tick] * number
        """Number of each learner's next random draw in an exchange."""
        self.unmerged: list[list[int]] = [[] for _ in range(number)]
        """Tasks of each learner since its last exchange."""
        self.again: list[int] = []
        """Tasks of lost learners that must be assigned again, as a heap."""
        self.idle: set[int] = set()
        """Learners that were left without a task."""
        self.restart_due = False
        """Whether a restart is due, for which learners wait before they begin another task."""

    def run(self) -> Trajectory:
        self.restarts = self.schedule.restarts(self.time)
        """Number of restarts of the schedule so far."""
        made = super().run()
        self.settle()
        return made

    def set_members(self, members: Iterable[int]) -> None:
        super().set_members(members)
        self.step_at = lru_cache(maxsize=16)(partial(self.rule.local_step, self.solver))  # shared by equal paces

    def next_task(self, learner: int) -> int | None:
        if not self.tasks_left:
            self.idle.add(learner)
            return None
        self.idle.discard(learner)
        if self.again:
            task = heapq.heappop(self.again)
        else:
            task = self.started
            self.started += 1
        self.unmerged[learner].append(task)
        return task

    @property
    def tasks_left(self) -> bool:
        """Whether a learner may begin another task."""
        return bool(self.again) or self.started < self.number_of_tasks

    def pace(self, learner: int) -> Pace:
        ticks = max(0, self.tasks[learner] - self.first_task) // self.tasks_per_tick
        now = self.merges if self.by_merges else self.first_task + ticks * self.tasks_per_tick
        return self.pace_at(now, self.tick + ticks)

    @property
    def time(self) -> int:
        """Time of the schedule if the next task begins a tick: tasks, or merges."""
        return self.merges if self.by_merges else self.started

    @property
    def steps_down(self) -> bool:
        """Whether the next task begins a tick in which the schedule has stepped down."""
        in_tick = (self.started - self.first_task) % self.tasks_per_tick
        begins = in_tick == 0 and self.started < self.number_of_tasks
        return begins and self.schedule.restarts(self.time) > self.restarts

    def start(self, learner: int, delay: float = 0.0) -> None:
        self.restart_due = self.restart_due or self.steps_down
        if not self.restart_due:
            super().start(learner, delay)

    def after_message(self) -> None:
        self.restart_if_due()

    def restart_if_due(self) -> None:
        """Restart all learners, and let them start, if a restart is due and no task or message is under way."""
        if self.running or self.order.under_way or not self.restart_due:
            return
        self.restart_due = False
        self.settle()
        self.restart()
        for learner in self.members:
            self.start(learner, self.delay)

    def restart(self) -> None:
        super().restart()
        self.void_messages(self.members)
        for learner in self.members:
            self.steps[learner] = 0
            self.unmerged[learner].clear()
        self.restarts = self.schedule.restarts(self.time)

    def settle(self) -> None:
        """Set z's local variables to the learners' mean."""
        if not self.local:
            return
        weights = {f"weights{p}": self.own[learner]["weights"] for p, learner in enumerate(self.members)}
        mean = Update((("base", total("weights", [1 / self.learners] * self.learners)),))
        self.apply(NOTHING, {**weights, **self.base}, local=mean)

    def keep_base(self) -> None:
        self.settle()
        super().keep_base()

    @property
    def ends(self) -> bool:
        return not self.tasks_left and not self.running

    @property
    def end(self) -> SimulatedState:
        ticks = self.tick - (self.first_task - self.started) // self.tasks_per_tick
        return SimulatedState(self.base["base"], self.members, self.started, self.place.tick + ticks, self.merges)

    def count_ticks(self, lost: int | None = None) -> None:
        """Count the whole ticks of done tasks, before the members change. lost: the learner that is lost, with its
        tasks since its last exchange."""
        undone = [self.started, *self.again, *(self.tasks[each] for each in self.running)]
        undone += [] if lost is None else self.unmerged[lost]
        ticks = max(0, min(undone) - self.first_task) // self.tasks_per_tick
        self.first_task += ticks * self.tasks_per_tick
        self.tick += ticks

    def hand_out_again(self, learner: int) -> None:
        """Assign the lost learner's tasks again, first of all to learners without a task."""
        for task in self.unmerged[learner]:
            heapq.heappush(self.again, task)
        self.unmerged[learner].clear()
        self.idle.discard(learner)
        self.start_idle()
        self.restart_if_due()

    def start_idle(self) -> None:
        """Start learners without a task, if there are tasks again."""
        for learner in sorted(self.idle):
            if self.tasks_left:
                self.start(learner)


class FreeSimulation(_WithoutBarrier):
    """Simulation of learners that exchange with z one by one, or in groups."""

    rule: FreeRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.progress = ExchangeState(self.rule, self.learners)
        self.last_event: dict[int, int] = {}
        self.vectors = [{**self.base, **own} for own in self.own]
        """The vectors of z and of each learner; z stays in its memory."""

    def set_members(self, members: Iterable[int]) -> None:
        super().set_members(members)
        self.reply_at = lru_cache(maxsize=16)(partial(self.rule.reply, self.solver))

    def restart(self) -> None:
        super().restart()
        self.progress.restart()

    def finish(self, learner: int) -> None:
        self.step_at(self.pace(learner)).apply(self.own[learner])
        if self.exchanges(learner):
            self.last_event[learner] = len(self.events) - 1
            self.send(learner, partial(self._arrive, learner))
        else:
            self.start(learner)
        self.restart_if_due()

    def _arrive(self, learner: int) -> None:
        self._merge(self.progress.arrive(self.position[learner]))
        self._let_go()

    def _let_go(self) -> None:
        for position in self.progress.let_go():
            learner = self.members[position]
            self.apply(self.reply_at(self.pace(learner)), self.vectors[learner])
            self.moved.add(learner)
            self.start(learner, self.delay)

    def _merge(self, merge: Merge | None) -> None:
        if merge is None:
            return
        contributors = [self.members[position] for position in merge.contributors]
        learner = self.members[merge.arrival.learner]
        for each in contributors:
            self.staleness[self.last_event[each]] = merge.arrival.staleness
            self.dropped[self.last_event[each]] = merge.dropped
            self.unmerged[each].clear()
        if merge.dropped:
            return
        gradients = [self.own[each]["gradient"] for each in contributors]
        update = self.rule.merge(self.solver, self.pace(learner), merge.arrival)
        if self.rule.sends_gradient and self.solver.clip_gradient_norm is not None:
            update = update.expand("gradient", {"gradient": self.clip(np.mean(gradients, axis=0))})
        update = of_all(update, len(contributors))
        draws = left_out(self.skip, len(self.places), learner, self.draws[learner], self.seed) if self.skip else []
        self.draws[learner] += 1
        vectors = self.vectors[learner]
        if len(gradients) > 1:
            vectors = vectors | {f"gradient{n}": gradient for n, gradient in enumerate(gradients)}
        self.apply(update, vectors, omitted=[number for number, out in enumerate(draws) if out])
        self.keep_base()

    def leave(self, learner: int) -> None:
        position = self.position[learner]
        self.count_ticks(learner)
        self.drop_member(learner)
        self.progress.leave(position)
        self._go_on()
        self.hand_out_again(learner)

    def join(self, learner: int) -> None:
        self.count_ticks()
        self.add_member(learner)
        self.progress.join(self.position[learner])
        self._go_on()
        self.start(learner, self.delay)
        self.start_idle()

    def _go_on(self) -> None:
        """Continue with the rule for the present learners. Those whose group was incomplete arrive once more."""
        if isinstance(self.rule, Grouping):
            for position in self.progress.follow(self.rule):
                self._merge(self.progress.arrive(position))
        self.progress.rule = self.rule
        self._let_go()


@dataclass
class Letter:
    """A message between learners that is under way."""

    weights: Vector
    mass: float
    receiver: int


class PeerSimulation(_WithoutBarrier):
    """Simulation of learners that exchange with each other."""

    rule: PeerRule

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.masses, self.met = Masses(self.learners), 0
        self.letters: dict[int, Letter] = {}
        """Messages that are under way, by their terms of the mean."""
        self.waiting: set[int] = set()
        """Learners with messages that have arrived."""
        number, size = self.rows["weights"].shape
        self.mean = MeanByMass(2 * number, size)
        """z: first a term for the weights of each learner, 0 if it is absent, then one for the messages that have
        reached each learner, and then one for each message that is under way."""
        self._weigh(self.members)

    @property
    def merges(self) -> int:
        return self.place.merges + self.met

    def restart(self) -> None:
        super().restart()
        self.masses = Masses(self.learners)
        self.letters.clear()
        self.waiting.clear()
        self.mean.clear()
        self._weigh(self.members)

    def finish(self, learner: int) -> None:
        self.step_at(self.pace(learner)).apply(self.own[learner])
        if self.exchanges(learner):
            self._exchange(learner)
        self._weigh([learner])
        self.base["base"][...] = self.mean.value()
        self.keep_base()
        self.start(learner)
        self.restart_if_due()

    def _exchange(self, learner: int) -> None:
        rule, own, position = self.rule, self.own[learner], self.position[learner]
        self.staleness[-1] = 1
        self.unmerged[learner].clear()
        if learner in self.waiting:
            self.waiting.discard(learner)
            self.apply(rule.mix(*self.masses.receive(position)), own)
            self.mean.reset(self._received(learner))
        peer = rule.peer(position, self.learners, self.draws[learner], self.seed)
        self.draws[learner] += 1
        self.met += 1
        if peer is not None:
            receiver = self.members[peer]
            letter = Letter(own["weights"].copy(), self.masses.take(position, rule.part_sent()), receiver)
            term = self.mean.add(letter.mass, letter.weights)
            self.letters[term] = letter
            self.send(receiver, partial(self._arrive, term))

    def _arrive(self, term: int) -> None:
        letter = self._remove(term)
        mix = self.rule.mix(*self.masses.bring(self.position[letter.receiver], letter.mass))
        self.apply(mix, {"weights": self.own[letter.receiver]["received"], "received": letter.weights})
        self.waiting.add(letter.receiver)
        self._weigh_received(letter.receiver)

    def _remove(self, term: int) -> Letter:
        self.mean.remove(term)
        return self.letters.pop(term)

    def _weigh(self, learners: Iterable[int]) -> None:
        """Set the terms of these learners, whose weights or masses have changed."""
        for learner in learners:
            self.mean.set(learner, self.masses.own[self.position[learner]], self.rows["weights"][learner])

    def _weigh_received(self, learner: int) -> None:
        """Set the term of the messages that have reached the learner, which has changed."""
        mass = self.masses.coming[self.position[learner]]
        self.mean.set(self._received(learner), mass, self.rows["received"][learner])

    def _received(self, learner: int) -> int:
        """The number of the term for the messages that have reached the learner."""
        return len(self.own) + learner

    def leave(self, learner: int) -> None:
        """The masses of the others, and of the messages to them, are scaled up to a sum of 1."""
        position = self.position[learner]
        self.count_ticks(learner)
        for term in [term for term, letter in self.letters.items() if letter.receiver == learner]:
            self._remove(term)
        for term in (learner, self._received(learner)):
            self.mean.reset(term)
        self.waiting.discard(learner)
        self.drop_member(learner)
        self.masses.leave(position)
        self._scale(1 / (self.masses.total + sum(letter.mass for letter in self.letters.values())))
        self.hand_out_again(learner)

    def join(self, learner: int) -> None:
        """The learner begins with the weights of z and a mass of 1/k; the masses of the others are scaled down to a
        total of 1."""
        self.base["base"][...] = self.mean.value()
        self.settle()  # messages have no local variables
        part = 1 / (self.learners + 1)
        self._scale(1 - part)
        self.count_ticks()
        self.add_member(learner)
        self.masses.join(self.position[learner], part)
        self._weigh([learner])
        self.start(learner, self.delay)
        self.start_idle()

    def _scale(self, factor: float) -> None:
        self.masses.scale(factor)
        for term, letter in self.letters.items():
            letter.mass *= factor
            self.mean.set(term, letter.mass, letter.weights)
        self._weigh(self.members)
        for learner in self.waiting:
            self._weigh_received(learner)
