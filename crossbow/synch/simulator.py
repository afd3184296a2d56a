"""Simulation of a rule on vectors, in a given order of finishing: without threads, time or network.

It uses the same rule objects and updates as the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import cycle, product
from typing import Any

from crossbow.conf import plain
from crossbow.solver import SolverConf
from crossbow.synch.arguments import (
    GradientOf,
    check_kinds,
    check_numbers,
    checked,
    delay_of,
    hosts_of,
    local_of,
    places_of,
    refused,
    start_of,
)
from crossbow.synch.members import Change, changes_of, memberships, numbers_of, present_hosts
from crossbow.synch.order import FinishOrder, order_of, speeds_of
from crossbow.synch.progress import check_local_variables, check_skip
from crossbow.synch.rule import BarrierRule, FreeRule, PeerRule, Rule
from crossbow.synch.sequence import RuleSequence, has_two_levels
from crossbow.synch.simulated_exchanges import FreeSimulation, PeerSimulation
from crossbow.synch.simulated_hosts import TwoLevelSimulation
from crossbow.synch.simulated_ticks import BarrierSimulation
from crossbow.synch.simulation import Given, SimulatedState, Simulation
from crossbow.synch.trajectory import Trajectory, joined
from crossbow.synch.two_level import TwoLevel

MOST_NUMBERS = 2**30
"""Maximum number of weights of all learners together, where each learner counts as 1,000 more for its other state. A
mistyped number is rejected before it fills the memory."""


def simulate(
    rule: Rule | RuleSequence | TwoLevel,
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
    local_variables: Collection[int] = (),
    restart: bool = True,
    seed: int = 0,
    latency: float = 0.0,
    bandwidth: float | None = None,
    bytes: float | None = None,
    leave: Sequence[tuple[float, int]] = (),
    join: Sequence[tuple[float, int]] = (),
    hosts: Sequence[int] | None = None,
) -> Trajectory:
    """Run a rule, with all learners starting from the weights `initial` (n,).

    rule: for a sequence, each rule begins with all learners at z, when all tasks of the previous rule are finished.
    gradient: `gradient(weights, learner, task)` returns (n,), for the weights (n,) that the learner had before the
    task. Tasks are numbered in the order in which they start; under a rule with a barrier, task n belongs to learner
    n mod k.
    events: the order in which learners finish their tasks; or, with `speeds`, the number of tasks to finish. None means
    all `tasks`, and those that are done again after a loss.
    speeds: speed of each learner, in tasks per unit of time. Learners that finish at the same time do so in learner
    order. Learners that join have speeds, too.
    tasks: number of tasks, as in a run of the engine; a learner stops if no task is left. None is unlimited.
    solver: its schedule is evaluated for every tick, which is k · τ tasks. When it steps down, the learners restart;
    without a barrier, no task of that tick begins before all running tasks have finished, in the order of `events` or
    `speeds`. Gradients are clipped as in training: if they are sent, the mean of the merged ones; else each learner's
    own.
    tasks_per_epoch: for a schedule in epochs.
    skip: probability with which each variable is skipped in a merge, as `ModelConf.skip`.
    variables: their sizes, in order; None is one variable.
    local_variables: numbers, from 0, of the variables that every learner keeps to itself, as
    `ModelConf.local_variables`.
    restart: as `ModelConf.restart`.
    seed: seed of the random draws.
    latency, bandwidth, bytes: a contribution reaches z `latency + bytes / bandwidth` after the task that it ends, and
    the reply takes as long. Under a rule without a base model, a message to another learner takes this time, and no
    learner waits for it. A reply contains z as it is when the reply is sent. bandwidth: bytes per unit of time for each
    message by itself; None is unlimited. bytes: None is 4 for each element. Needs `speeds`.
    leave: pairs (time, learner). The learner is lost, with its task and its messages. Under a rule with a barrier, the
    others restart from z with zero velocity, and share the tasks of the incomplete tick. Without a barrier, they
    continue, and the learner's tasks since its last exchange are assigned again; without a base model, the masses are
    scaled to 1 again. With two levels, all hosts restart from the last z, with zero velocities, also of z, and share
    the tasks since then; a host without learners is absent. The rule's defaults and groups follow the number of
    learners; a phase of a sequence has as many ticks as if there had been this number from its beginning. Needs
    `speeds`.
    join: pairs (time, learner). A learner with the next number, or one that has left, begins with z and zero velocity:
    under a rule with a barrier after the current tick, or when all others are lost, else at once. With two levels, it
    joins after the current tick of z, and all hosts restart from z as after a loss. Needs `speeds`.
    hosts: with two levels, the number of learners of each host, including those that join; they are numbered from host
    to host. Only messages between hosts take time. `Trajectory.base` is z between the hosts.

    Raises ConfigurationError for invalid arguments, and if `gradient` does not return a vector of n real numbers.

    >>> from crossbow.synch import SSGD
    >>> halve = simulate(SSGD(), initial=[8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 1, 1, 0],
    ...                  solver=SolverConf(learning_rate=0.5))
    >>> halve.base.tolist()
    [[4.0], [2.0]]
    """
    learners, tasks, tasks_per_epoch, skip, restart, seed = plain(
        (learners, tasks, tasks_per_epoch, skip, restart, seed)
    )
    events, speeds, variables, local_variables = map(plain, (events, speeds, variables, local_variables))
    latency, bandwidth, bytes, leave, join, hosts = map(plain, (latency, bandwidth, bytes, leave, join, hosts))
    check_kinds(rule, gradient, solver, restart)
    check_numbers(learners, tasks_per_epoch, skip, seed)
    start, solver = start_of(initial), solver or SolverConf()
    most = MOST_NUMBERS // (start.size + 1000)
    if learners > most:
        raise refused("learners", learners, f"at most {most} for vectors of size {start.size}")
    places = places_of(start.size, variables)
    local = local_of(local_variables, len(places))
    delay, changes = delay_of(latency, bandwidth, bytes, start.size), changes_of(learners, leave, join)
    if speeds is None and (delay or changes):
        raise refused("speeds", speeds, "given with a latency, a bandwidth, or learners that leave or join")
    number = numbers_of(learners, changes)
    of_hosts = hosts_of(hosts, number, two_level=has_two_levels(rule))
    said = speeds_of(number, speeds)
    order, speeds = order_of(learners, events, said, tasks), said or [1.0] * learners
    given = Given(
        checked(gradient, start.size), math.inf if tasks is None else tasks, speeds, solver, tasks_per_epoch, skip,
        places, local, restart, seed, delay, of_hosts,
    )  # fmt: skip
    together = memberships(learners, changes)
    _check_rules(rule.rules if isinstance(rule, RuleSequence) else (rule,), given, together)
    turns = _Turns(rule, given, order)
    for change in changes:
        order.change(change.time, partial(turns.change, change))
    return turns.run(SimulatedState(start, together[0]))


def _check_rules(rules: Sequence[Rule | TwoLevel], given: Given, together: Sequence[tuple[int, ...]]) -> None:
    """Reject rules that do not support the other arguments, or the numbers of learners that are present at first and
    after each change. Raises ConfigurationError."""
    for each, (changes, members) in product(rules, enumerate(together)):
        if isinstance(each, TwoLevel):
            groups = present_hosts(given.hosts, members)
            each.between.check_learners(len(groups))
            within: Rule = each.within
        else:
            groups, within = [members], each.fitted(len(members)) if changes else each
        for learners in groups:
            settled = within.settled([given.speeds[learner] for learner in learners])
            settled.check_solver(given.solver)
            check_skip(given.skip, settled, given.solver)
            check_local_variables(given.local, settled)


class _Turns:
    """The rules of a sequence in turn, or a single rule."""

    def __init__(self, rule: Rule | RuleSequence | TwoLevel, given: Given, order: FinishOrder) -> None:
        self._given, self._order = given, order
        self._phases: Iterable[tuple[Rule | TwoLevel, int | None]] = (
            cycle(rule.phases) if isinstance(rule, RuleSequence) else [(rule, None)]
        )

    def run(self, place: SimulatedState) -> Trajectory:
        """Begin with the first rule at this place. Returns the concatenated trajectories of all."""
        parts = list[Trajectory]()
        for rule, merges in self._phases:
            self._now = _new_simulation(rule, merges, place, self._given, self._order)
            parts.append(self._now.run())
            place = self._now.end
            if not self._now.ends or place.task >= self._given.tasks:
                break
        return joined(parts)

    def change(self, change: Change) -> None:
        """Let a learner leave or join the current rule."""
        (self._now.join if change.joins else self._now.leave)(change.learner)


def _new_simulation(
    rule: Rule | TwoLevel, merges: int | None, place: SimulatedState, given: Given, order: FinishOrder
) -> Simulation | TwoLevelSimulation:
    """The simulation of a rule, by its kind."""
    if isinstance(rule, TwoLevel):
        return TwoLevelSimulation(rule, merges, place, given, order)
    kinds = ((BarrierRule, BarrierSimulation), (FreeRule, FreeSimulation), (PeerRule, PeerSimulation))
    of_kind: type[Simulation] = next(of_kind for kind, of_kind in kinds if isinstance(rule, kind))
    return of_kind(rule, merges, place, given, order)
