"""Simulated hosts: two levels by hand, and compared with one level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.synch import (
    BarrierRule,
    DiLoCo,
    ModelAveraging,
    PolyakRuppert,
    Trajectory,
    TwoLevel,
    simulate,
)
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


def test_tasks_are_numbered_through_all_hosts() -> None:
    """As on one machine: task n is that of learner n mod k."""
    tasks: dict[int, list[int]] = {learner: [] for learner in range(5)}

    def note(weights: Any, learner: int, task: int) -> Any:
        tasks[learner].append(task)
        return weights

    run(TwoLevel(SMA(tau=2), ModelAveraging(1)), gradient=note, learners=5, hosts=[2, 3], speeds=[1.0] * 5, tasks=30)
    assert tasks == {learner: list(range(learner, 30, 5)) for learner in range(5)}
