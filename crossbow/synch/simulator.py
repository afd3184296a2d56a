"""Simulation of a rule on vectors, in a given order of finishing: without threads, time or network.

It uses the same rule objects and updates as the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from crossbow.conf import plain
from crossbow.solver import SolverConf
from crossbow.synch.arguments import (
    GradientOf,
    Vector,
    check_kinds,
    check_numbers,
    checked,
    local_of,
    places_of,
    start_of,
)
from crossbow.synch.order import order_of, speeds_of
from crossbow.synch.progress import check_local_variables, check_skip
from crossbow.synch.rule import BarrierRule, FreeRule, PeerRule, Rule
from crossbow.synch.sequence import RuleSequence
from crossbow.synch.simulation import BarrierSimulation, FreeSimulation, Given, PeerSimulation, Trajectory


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
    local_variables: Collection[int] = (),
    restart: bool = True,
    seed: int = 0,
) -> Trajectory:
    """Run a rule, with all learners starting from the weights `initial` (n,).

    rule: for a sequence, each rule begins with all learners at z, when all tasks of the previous rule are finished.
    gradient: `gradient(weights, learner, task)` returns (n,), for the weights (n,) that the learner had before the
    task. Tasks are numbered in the order in which they start; under a rule with a barrier, task n belongs to learner
    n mod k.
    events: the order in which learners finish their tasks; or, with `speeds`, the number of tasks to finish, where None
    is all `tasks`.
    speeds: of each learner, in tasks per unit of time. Learners that finish at the same time do so in learner order.
    tasks: number of tasks, as in a run of the engine; a learner that finds none left stops. None is unlimited.
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
    seed: of the random draws.

    Raises ConfigurationError, also if `gradient` does not return a vector of n real numbers.

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
    check_kinds(rule, gradient, solver, restart)
    check_numbers(learners, tasks_per_epoch, skip, seed)
    start, solver = start_of(initial), solver or SolverConf()
    places = places_of(start.size, variables)
    local = local_of(local_variables, len(places))
    said = speeds_of(learners, speeds)
    order, speeds = order_of(learners, events, said, tasks), said or [1.0] * learners
    for each in (rule,) if isinstance(rule, Rule) else rule.rules:
        settled = each.settled(speeds)
        settled.check_solver(solver)
        check_skip(skip, settled, solver)
        check_local_variables(local, settled)
    given = Given(checked(gradient, start.size), learners, solver, tasks_per_epoch, skip, places, local, restart, seed)

    def run(
        rule: Rule, start: Vector, first: int, tasks: int | None, merges: int = 0
    ) -> tuple[Trajectory, Vector, int]:
        kinds = ((BarrierRule, BarrierSimulation), (FreeRule, FreeSimulation), (PeerRule, PeerSimulation))
        of_kind = next(of_kind for kind, of_kind in kinds if isinstance(rule, kind))
        made = of_kind(rule.settled(speeds), start, given, first, tasks, merges)
        return made.run(order), made.base["base"], made.merges

    return run(rule, start, 0, tasks)[0] if isinstance(rule, Rule) else _in_turn(rule, start, learners, tasks, run)


def _in_turn(
    sequence: RuleSequence,
    start: Vector,
    learners: int,
    tasks: int | None,
    run: Callable[[Rule, Vector, int, int | None, int], tuple[Trajectory, Vector, int]],
) -> Trajectory:
    """The concatenated trajectories of the rules in turn."""
    per_tick, parts, first, merges = learners * sequence.tau, list[Trajectory](), 0, 0
    for rule, end in sequence.ends(learners, per_tick):
        last = end * per_tick if tasks is None else min(end * per_tick, tasks)
        part, start, merges = run(rule, start, first, last, merges)
        parts.append(part)
        if len(parts[-1].events) < last - first or last == tasks:
            break
        first = last
    return Trajectory(*(np.concatenate(columns) for columns in zip(*map(astuple, parts), strict=True)))
