"""Simulated hosts: two levels by hand, and compared with one level."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.synch import (
    BarrierRule,
    DiLoCo,
    ModelAveraging,
    PolyakRuppert,
    SynchronousEASGD,
    Trajectory,
    TwoLevel,
    simulate,
)
from tests.synch.test_members import drawn_changes
from tests.synch.trajectories import gradient

SOLVER = SolverConf(learning_rate=0.125, momentum=0.5)


def pull(weights: Any, learner: int, task: int) -> Any:
    return weights - np.array([task % 7 - 3, learner]) / 4


def run(rule: Any, **options: Any) -> Trajectory:
    return simulate(rule, **{"initial": [1.0, -2.0], "gradient": pull, "solver": SOLVER, **options})


def by_hand(rule: TwoLevel, hosts: list[int], tasks: int) -> Trajectory:
    """Hosts 0 and 1 have the examples of tests/synch/trajectories.py: gradients w, and 4 w − 4; γ = ¼, from 2 on."""
    first = hosts[0]
    return run(
        rule, initial=[2.0], gradient=lambda w, learner, task: [gradient(int(learner >= first), w[0])],
        learners=sum(hosts), hosts=hosts, events=[*range(sum(hosts))] * tasks, solver=SolverConf(learning_rate=0.25),
    )  # fmt: skip


def test_averages_between_two_hosts_under_sma() -> None:
    """Two learners of a host do the same: z_h ← 2 c, c = ½ (w − z_h).

    Host 0: w = 1.5, z_0 = 2; c = −¼, w = 1.375, z_0 = 1.5. Host 1: w = 1, z_1 = 2; c = −½, w = 1.5, z_1 = 1.
    z = 1.25: host 0 moves by −¼ to w = 1.125, and host 1 by ¼ to w = 1.75.
    Host 0: c = −.0625, w = .90625, z_0 = 1.125; c = −.109375, w = .7890625, z_0 = .90625.
    Host 1: c = .25, w = .75, z_1 = 1.75; c = −½, w = 1.5, z_1 = .75.
    z = .828125: host 0 moves by −.078125 to w = .7109375, and host 1 by .078125 to 1.578125.
    """
    made = by_hand(TwoLevel(SMA(), ModelAveraging(tau=2)), [2, 2], tasks=4)
    assert made.base.ravel().tolist() == [1.25, 0.828125]
    assert made.replicas[7].ravel().tolist() == [1.125, 1.125, 1.75, 1.75]
    assert made.replicas[15].ravel().tolist() == [0.7109375, 0.7109375, 1.578125, 1.578125]
    assert made.replicas[3].ravel().tolist() == [1.5, 1.5, 1, 1]


def test_sma_between_two_hosts() -> None:
    """0. z_h = 1.5, 1: c = −¼, −½: 1.75, 1.5; z = 2 − ¾.   1. 1.3125, 1: c = .03125, −.125: 1.28125, 1.125;
    z = 1.25 − .09375.
    """
    made = by_hand(TwoLevel(SSGD(), SMA(alpha=0.5)), [1, 1], tasks=2)
    assert made.base.ravel().tolist() == [1.25, 1.15625]
    assert made.replicas[3].ravel().tolist() == [1.28125, 1.125]


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=2, base_momentum=0.25), SSGD(), ModelAveraging(2)], ids=str)
def test_one_host_is_its_rule(rule: BarrierRule) -> None:
    """Bit for bit; z is that of every third tick."""
    common: dict[str, Any] = {"learners": 3, "events": [0, 1, 2] * rule.tau * 9}
    made, alone = run(TwoLevel(rule, ModelAveraging(tau=3)), hosts=[3], **common), run(rule, **common)
    np.testing.assert_array_equal(made.base, alone.base[2::3])
    np.testing.assert_array_equal(made.replicas, alone.replicas)
    np.testing.assert_array_equal(made.staleness, alone.staleness)


@pytest.mark.parametrize("rule", [ModelAveraging(3), DiLoCo(3), DiLoCo(2, 0.5, 0.0), PolyakRuppert(0.25, 3)], ids=str)
def test_hosts_with_one_learner_are_learners(rule: BarrierRule) -> None:
    """Under SGD with momentum, bit for bit."""
    common: dict[str, Any] = {"learners": 3, "speeds": [1.0, 2.0, 1.5], "events": 54}
    made, flat = run(TwoLevel(SSGD(), rule), hosts=[1, 1, 1], **common), run(rule, **common)
    np.testing.assert_array_equal(made.base, flat.base)
    np.testing.assert_array_equal(made.replicas, flat.replicas)
    np.testing.assert_array_equal(made.merge_times, flat.merge_times)


def test_local_variables_go_into_z_only() -> None:
    """Learners 0 to 2 of hosts {0, 1} and {2} go to 1, 2 and 3 in a task; the second variable is local.

    z_h = 1.5 and 3, so z = 2.25: the first variable of host 0 moves by ¾, of host 1 by −¾, and nothing else does.
    """
    made = run(
        TwoLevel(ModelAveraging(), ModelAveraging(tau=1)), initial=[0.0, 0.0], learners=3, hosts=[2, 1],
        gradient=lambda w, learner, task: w - (learner + 1), events=[0, 1, 2], variables=[1, 1], local_variables=[1],
        solver=SolverConf(learning_rate=1.0),
    )  # fmt: skip
    assert made.base.tolist() == [[2.25, 2.25]]
    assert made.replicas[-1].tolist() == [[2.25, 1], [2.25, 2], [2.25, 3]]


def test_only_messages_between_hosts_take_time() -> None:
    """A task takes 1, on the slower host 2, and a message ½: z after 4 ticks of the slower host, and ½."""
    rule = TwoLevel(SMA(), ModelAveraging(tau=4))
    common: dict[str, Any] = {"learners": 4, "hosts": [2, 2], "speeds": [1.0, 1.0, 0.5, 0.5], "events": 32}
    made, near = run(rule, **common, latency=0.5), run(rule, **common)
    assert near.merge_times.tolist() == [8, 16]
    assert made.merge_times.tolist() == [8.5, 17.5]
    assert near.events.tolist()[:8] == [0, 1, 0, 1, 2, 3, 0, 1]
    assert (near.times.tolist()[:8], near.dropped.any()) == ([1, 1, 2, 2, 2, 2, 3, 3], False)
    np.testing.assert_array_equal(made.base, near.base)


# Learners that leave and join.


def test_a_lost_host_and_a_new_one_by_hand() -> None:
    """w ← w − ½ (w − task), from 8; hosts of one learner, whose ticks change nothing, average every second one.

    Tasks 0, 1, 2: 4, 4.5, 5.   3, 4, 5: 3.5, 4.25, 5: z = 4.25 at 2.
    Host 1 is lost at 3.5, in the second task from there. The others begin again at 4.25, with the tasks of the tick:
    6 and 7: 5.125, 5.625.   8 and 9: 6.5625, 7.3125: z = 6.9375 at 5.5.
    Host 1 wants to join at 6. 10 and 11: 8.46875, 8.96875.   12 and 13: 10.234375, 10.984375: z = 10.609375 at 7.5.
    14, 15, 16: 12.3046875, 12.8046875, 13.3046875.   17, 18, 19: 14.65234375, 15.40234375, 16.15234375.
    """
    tasks: list[tuple[int, int]] = []

    def towards_task(weights: Any, learner: int, task: int) -> Any:
        tasks.append((learner, task))
        return weights - task

    made = run(
        TwoLevel(ModelAveraging(), ModelAveraging(tau=2)), initial=[8.0], gradient=towards_task, learners=3,
        hosts=[1, 1, 1], speeds=[1.0] * 3, events=23, solver=SolverConf(learning_rate=0.5),
        leave=[(3.5, 1)], join=[(6.0, 1)],
    )  # fmt: skip
    lost, later = [(0, 6), (1, 7), (2, 8)], [(0, 6), (2, 7), (0, 8), (2, 9), (0, 10), (2, 11), (0, 12), (2, 13)]
    assert tasks == [*((n % 3, n) for n in range(6)), *lost, *later, *(((n - 14) % 3, n) for n in range(14, 20))]
    assert made.merge_times.tolist() == [2, 5.5, 7.5, 9.5]
    np.testing.assert_allclose(made.base.ravel(), [4.25, 6.9375, 10.609375, 15.40234375], rtol=1e-15)
    np.testing.assert_array_equal(made.replicas[8, :, 0], [5.125, 5.625, 6.125])
    np.testing.assert_array_equal(made.replicas[9, :, 0], [5.125, np.nan, 4.25])
    np.testing.assert_array_equal(made.replicas[16, :, 0], [10.609375] * 3)


LEVELS = [
    TwoLevel(SMA(), ModelAveraging(tau=2)),
    TwoLevel(SMA(tau=2, base_momentum=0.25), DiLoCo(tau=2)),
    TwoLevel(SSGD(), SMA(tau=2, base_momentum=0.5)),
    TwoLevel(DiLoCo(tau=2), SynchronousEASGD(tau=1)),
    TwoLevel(ModelAveraging(), DiLoCo(tau=3, outer_momentum=0.5)),
]


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("hosts", [[2, 2], [1, 2, 1], [3, 1]], ids=str)
@pytest.mark.parametrize("rule", LEVELS, ids=str)
def test_all_begin_again_at_z(rule: TwoLevel, hosts: list[int], joins: bool) -> None:
    """As a new run with these learners, bit for bit: all velocities, those of z too, are gone. Learner 3 is lost in
    the third tick of z, with its host if it was alone, or joins at the end of the second one."""
    before = 3 if joins else 4
    change: dict[str, Any] = {"join": [(1.5 * rule.tau, 3)]} if joins else {"leave": [(2.5 * rule.tau, 3)]}
    made = run(rule, learners=before, hosts=hosts, speeds=[1.0] * 4, events=8 * 4 * rule.tau, **change)
    alone, first = hosts[-1] == 1, 2 * before * rule.tau
    left = hosts if joins else hosts[:-1] if alone else [*hosts[:-1], hosts[-1] - 1]
    rest = run(
        rule, learners=7 - before, hosts=left, initial=made.base[1], events=[*range(7 - before)] * rule.tau * 4,
        gradient=lambda weights, learner, task: pull(weights, learner, task + first),
    )  # fmt: skip
    np.testing.assert_array_equal(made.base[2:6], rest.base[:4])


def test_a_mean_over_ticks_goes_on_between_hosts() -> None:
    """As in one level: z is the mean over the ticks of the hosts' means, 4, then 2 and 1.5 of the one that is left."""
    made = run(
        TwoLevel(SSGD(), PolyakRuppert(tau=1)), initial=[8.0], gradient=lambda weights, learner, task: weights,
        learners=2, hosts=[1, 1], speeds=[1.0, 1.0], events=4, solver=SolverConf(learning_rate=0.5), leave=[(1.5, 0)],
    )  # fmt: skip
    assert made.base.ravel().tolist() == [4, (4 + 2) / 2, (4 + 2 + 1.5 - 0.5) / 3]


@pytest.mark.parametrize("latency", [0.0, 0.25, 2.0])
@pytest.mark.parametrize("rule", [ModelAveraging(3), DiLoCo(3), PolyakRuppert(0.25, 3)], ids=str)
def test_lost_hosts_with_one_learner_are_lost_learners(rule: BarrierRule, latency: float) -> None:
    """Bit for bit, with messages on their way that are lost."""
    common: dict[str, Any] = {
        "learners": 4, "speeds": [1.0, 2.0, 1.5, 3.0], "events": 60, "latency": latency,
        "leave": [(2.75, 1), (7.0, 3)],
    }  # fmt: skip
    made, flat = run(TwoLevel(SSGD(), rule), hosts=[1] * 4, **common), run(rule, **common)
    for name in ("base", "replicas", "times", "merge_times"):
        np.testing.assert_array_equal(getattr(made, name), getattr(flat, name))


def test_a_host_is_there_while_it_has_learners() -> None:
    """Of hosts {0, 1} and {2}, learner 1 leaves, then 0. Learner 0 comes back, and then the next one, of a third."""
    counts: list[int] = []

    class Counting(ModelAveraging):
        def merge(self, solver: SolverConf, pace: Any, learners: int) -> Any:
            counts.append(learners)
            return super().merge(solver, pace, learners)

    made = run(
        TwoLevel(SMA(), Counting(tau=1)), learners=3, hosts=[2, 1, 1], speeds=[1.0] * 4, events=3 + 2 + 1 + 2 + 3,
        leave=[(1.5, 1), (3.0, 0)], join=[(3.75, 0), (4.75, 3)],
    )  # fmt: skip
    assert counts == [2, 2, 1, 2, 3]
    assert made.merge_times.tolist() == [1, 2.5, 4, 5, 6]
    there = [np.flatnonzero(~np.isnan(row[:, 0])).tolist() for row in made.replicas[[2, 3, 5, 7]]]
    assert there == [[0, 1, 2], [0, 2], [0, 2], [0, 2, 3]]


def test_who_waits_to_join_goes_on_when_all_others_are_lost() -> None:
    """Learner 1 of host 0 begins at 0.75 with the first tasks; learner 2, of host 1, had changed its mind."""
    rule = TwoLevel(SSGD(), ModelAveraging(tau=2))
    made = run(
        rule, learners=1, hosts=[2, 1], speeds=[1.0] * 3, events=6, join=[(0.25, 1), (0.5, 2)],
        leave=[(0.625, 2), (0.75, 0)],
    )  # fmt: skip
    plain = run(
        rule, learners=1, hosts=[1], events=[0] * 6, gradient=lambda weights, learner, task: pull(weights, 1, task)
    )
    assert made.events.tolist() == [1] * 6
    assert made.times.tolist() == [1.75, 2.75, 3.75, 4.75, 5.75, 6.75]
    np.testing.assert_array_equal(made.base, plain.base)


@pytest.mark.slow
@pytest.mark.parametrize("rule", LEVELS, ids=str)
def test_all_tasks_are_finished_whoever_leaves_and_joins(rule: TwoLevel) -> None:
    computed = set[int]()

    def note(weights: Any, learner: int, task: int) -> Any:
        computed.add(task)
        return weights

    for seed in range(20):
        learners, changes, known = drawn_changes(seed)
        speeds = [random.Random(learner).choice([0.5, 1.0, 4.0]) for learner in range(known)]
        hosts = [min(2, known - first) for first in range(0, known, 2)]
        common: dict[str, Any] = {"learners": learners, "hosts": hosts, "speeds": speeds, **changes}
        for latency in (0.0, 0.3):
            assert len(run(rule, events=40, latency=latency, **common).events) == 40
            computed.clear()
            run(rule, tasks=20, gradient=note, latency=latency, **common)
            assert computed == set(range(20))


def test_tasks_are_numbered_through_all_hosts() -> None:
    """As on one machine: task n is that of learner n mod k."""
    tasks: dict[int, list[int]] = {learner: [] for learner in range(5)}

    def note(weights: Any, learner: int, task: int) -> Any:
        tasks[learner].append(task)
        return weights

    run(TwoLevel(SMA(tau=2), ModelAveraging(1)), gradient=note, learners=5, hosts=[2, 3], speeds=[1.0] * 5, tasks=30)
    assert tasks == {learner: list(range(learner, 30, 5)) for learner in range(5)}
