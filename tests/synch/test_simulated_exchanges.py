"""Simulated exchanges: messages that take time, and learners that leave and join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow import SolverConf
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    Gossip,
    Grouping,
    Hogwild,
    PartiallySynchronous,
    Rule,
    Trajectory,
    WeedOut,
    simulate,
)
from tests.combinations import one_in

HALVING = SolverConf(learning_rate=0.5)


def run(rule: Rule, **options: Any) -> Trajectory:
    """Of the gradient g(w) = w, from 8 on, with γ = ½."""
    defaults: dict[str, Any] = {"initial": [8.0], "gradient": lambda w, learner, task: w, "solver": HALVING}
    return simulate(rule, **{**defaults, **options})


def test_contributions_and_replies_take_time() -> None:
    """Learner 0 needs 1 for a task, learner 1 needs 2, and a message ½ = ¼ + 2/8.

    1: 0 at 8, Δ = −4; 1.5: z = 4; 0 begins at 2.   2: 1 at 8, Δ = −4; 2.5: z = 0, Y = 2; 1 begins at 3.
    3: 0 at 4, Δ = −2; 3.5: z = −2, Y = 2; 0 begins at 4.   5: 0 at −2, Δ = 1; 5.5: z = −1.
    5: 1 at 0, Δ = 0; 5.5: Y = 3, two merges of 0 later.
    """
    made = run(AsynchronousSGD(), learners=2, speeds=[1.0, 0.5], events=5, latency=0.25, bandwidth=8, bytes=2)
    assert made.events.tolist() == [0, 1, 0, 0, 1]
    assert made.times.tolist() == [1, 2, 3, 5, 5]
    assert made.merge_times.tolist() == [1.5, 2.5, 3.5, 5.5, 5.5]
    assert made.base.ravel().tolist() == [4, 0, -2, -1, -1]
    assert made.staleness.tolist() == [1, 2, 2, 1, 3]
    assert made.replicas[:, :, 0].tolist() == [[4, 8], [4, 4], [2, 0], [-1, 0], [-1, 0]]


def test_a_learner_that_reads_z_reads_it_as_the_reply_has_it() -> None:
    """As above, with gradients: 8, 8, 4 (at 1.5), 0 (at 3.5 z is −2), and 0 as of 2.5."""
    made = run(Hogwild(), learners=2, speeds=[1.0, 0.5], events=5, latency=0.5)
    assert made.base.ravel().tolist() == [4, 0, -2, -1, -1]


def test_a_learner_does_not_wait_for_one_that_was_lost() -> None:
    """s = 0: learner 0 has finished at 1, and waits for learner 1's task until that is lost at 2."""
    made = run(SSP(bound=0), learners=2, speeds=[1.0, 0.1], events=3, leave=[(2.0, 1)])
    assert (made.events.tolist(), made.times.tolist()) == ([0, 0, 0], [1, 3, 4])
    made = run(Default(), learners=3, speeds=[1.0, 0.1, 0.5], events=4, leave=[(5.0, 1)])
    assert (made.events.tolist(), made.times.tolist()) == ([0, 2, 0, 2], [1, 2, 6, 7])


def test_a_group_is_complete_without_a_lost_learner() -> None:
    """One group. Learners 0 and 2 wait for learner 1, until 1.05: z = 8 − ½ · 8; then the mean of two again."""
    made = run(Grouping(), learners=3, speeds=[1.0, 0.9, 1.0], events=4, leave=[(1.05, 1)])
    assert made.base.ravel().tolist() == [4, 2]
    assert made.merge_times.tolist() == [1.05, 2.05]
    assert made.staleness.tolist() == [1, 1, 1, 1]


def test_given_groups_are_fitted_after_a_loss_and_a_join() -> None:
    """Groups {0, 2} and {1} at first and from 3.5 on; two groups of one learner in between.

    1: 0 waits.   1: 1: z = 8 − ½ · 8 = 4.   1: 2 with 0: Y = 2, z = 4 − ½ · 16/4 = 2.   1.5: 1 is lost.
    2: 0 at 2: z = 1.   2: 2 at 2: Y = 2, z = 1 − ½ · 2/2 = ½.
    3: 0 at 1: Y = 2, z = ½ − ½ · ½ = ¼.   3: 2 at ½: Y = 2, z = ¼ − ½ · ¼ = ⅛.   3.5: 1 joins at ⅛.
    4: 0 waits.   4: 2 at ⅛ with 0 at ¼: Y = 2, z = ⅛ − ½ · ⅜/4 = 5/64.   4.5: 1 at ⅛: Y = 2, z = 5/64 − ½ · ⅛/2.
    """
    made = run(
        Grouping(((0, 2), (1,))), learners=3, speeds=[1.0] * 3, events=10, leave=[(1.5, 1)], join=[(3.5, 1)]
    )  # fmt: skip
    assert made.events.tolist() == [0, 1, 2, 0, 2, 0, 2, 0, 2, 1]
    assert made.merge_times.tolist() == [1, 1, 2, 2, 3, 3, 4, 4.5]
    assert made.base.ravel().tolist() == [4, 2, 1, 0.5, 0.25, 0.125, 5 / 64, 3 / 64]
    assert made.staleness.tolist() == [2, 1, 2, 1, 2, 2, 2, 2, 2, 2]


def test_more_groups_than_learners_are_left() -> None:
    """As the same number of groups of one learner."""
    common: dict[str, Any] = {"learners": 3, "speeds": [1.0, 1.5, 2.5], "events": 30, "leave": [(2.25, 1)]}
    made, single = run(Grouping(3), **common), run(AsynchronousSGD("1/staleness", "gradient"), **common)
    np.testing.assert_array_equal(made.base, single.base)
    assert run(Grouping(((0,), (1,), (2,))), **common).base.tolist() == single.base.tolist()


def test_ticks_are_counted_from_the_change_on() -> None:
    """γ decays with the first task of a tick. With three learners tick 0 has tasks 0 to 2; when learner 1 is lost in
    task 4, tick 1 has tasks 3 and 4, tick 2 tasks 5 and 6. Learner 0 does 0, 3, 4 and 7, learner 2 does 2, 5, 6, 8."""
    made = run(
        AsynchronousSGD(), learners=3, speeds=[1.0] * 3, gradient=lambda w, learner, task: 0 * w + 1, events=9,
        solver=SolverConf(learning_rate=0.5, policy="exp", gamma=0.5 ** (1 / 3)), leave=[(1.5, 1)],
    )  # fmt: skip
    steps = -np.diff(made.base.ravel(), prepend=8.0)
    rates = [0.5 * 0.5 ** (first / 3) for first in (0, 0, 0, 3, 5, 3, 5, 7, 7)]
    np.testing.assert_allclose(steps, rates, atol=1e-12)


def test_a_learner_that_joins_is_not_behind_the_others() -> None:
    """s = 1: learner 0 has finished two tasks when learner 1 joins at 2.5, with a clock of 2 as well. So learner 0 may
    finish two more before it waits."""
    made = run(SSP(bound=1), learners=1, speeds=[1.0, 0.1], events=6, join=[(2.5, 1)])
    assert made.events.tolist() == [0, 0, 0, 0, 1, 0]
    assert made.times.tolist() == [1, 2, 3, 4, 12.5, 13.5]


FREE: list[Rule] = [
    AsynchronousSGD(),
    AsynchronousSGD("1/staleness", "gradient"),
    SSP(1),
    PartiallySynchronous(2),
    Default(),
    EASGD(0.25),
    Hogwild(),
]
GROUPS = [Grouping(), Grouping(2), Grouping(((0, 2), (1,)))]
ELSE: list[Rule] = [*FREE, WeedOut(), *GROUPS, Gossip(1.0), EASGD(tau=2), Default(tau=3)]
speeds = st.lists(st.sampled_from([0.5, 1.0, 1.5, 4.0]), min_size=4, max_size=4)
moments = st.lists(st.floats(0.1, 8), min_size=3, max_size=3)


@pytest.mark.parametrize("rule", FREE, ids=str)
@given(speeds, moments, st.sampled_from([0.0, 0.3, 2.0]))
@settings(max_examples=15)
def test_every_task_is_merged_once(rule: Rule, speeds: list[float], moments: list[float], latency: float) -> None:
    """Also those that a lost learner had begun: they are handed out again."""
    computed: list[int] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        computed.append(task)
        return weights - task

    made = run(
        rule, gradient=note, learners=3, speeds=speeds, tasks=20, events=100, latency=latency,
        leave=[(moments[0], 1), (moments[1], 0)], join=[(moments[2], 3)],
    )  # fmt: skip
    assert len(made.base) == 20
    assert set(computed) == set(range(20))
    assert len(computed) - 20 <= 4  # what a lost learner had finished and sent, or was at


def test_all_tasks_are_finished_though_some_are_done_twice() -> None:
    """τ = 2. Learner 0 has finished task 0 when it is lost at 1½, in its second one, task 2. Learner 1 does both."""
    computed: list[tuple[int, int]] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        computed.append((learner, task))
        return weights

    made = run(
        AsynchronousSGD(tau=2), gradient=note, learners=2, speeds=[1.0, 1.0], tasks=12, leave=[(1.5, 0)]
    )  # fmt: skip
    assert computed == [(0, 0), (1, 1), (1, 3), (1, 0), (1, 2), *((1, task) for task in range(4, 12))]
    assert len(made.base) == 6


@pytest.mark.slow
@one_in(7)
@pytest.mark.parametrize("rule", ELSE, ids=str)
@given(speeds, moments, st.sampled_from([0.0, 0.3, 2.0]))
@settings(max_examples=15)
def test_training_goes_on(rule: Rule, speeds: list[float], moments: list[float], latency: float) -> None:
    """To the last event, also if the learning rate steps down while messages are under way or a learner is lost."""
    solver = SolverConf(learning_rate=0.5, policy="step", gamma=0.5, step_size=7, momentum=0.5)
    made = run(
        rule, learners=3, speeds=speeds, events=120, latency=latency, solver=solver,
        leave=[(moments[0], 1), (moments[1], 0)], join=[(moments[2], 3)],
    )  # fmt: skip
    assert len(made.events) == 120
    assert np.isfinite(made.base).all()
    assert np.isnan(made.replicas[-1]).ravel().tolist() == [True, True, False, False]


def test_a_letter_takes_time() -> None:
    """Two learners, p = 1, no momentum: both send ¼ of their mass at 1, and at 2, when what was sent at 1 has arrived.

    1: w = 4, 4, masses ¼, and two letters with 4.   1.5: they arrive.   2: w_0 = ½ · 2 + ½ · 4 = 3, and so w_1.
    """
    made = run(Gossip(1.0), learners=2, speeds=[1.0, 1.0], events=4, latency=0.5)
    assert made.base.ravel().tolist() == [6, 4, 3.5, 3]
    assert made.replicas[:, :, 0].tolist() == [[4, 8], [4, 4], [3, 4], [3, 3]]
    assert run(Gossip(1.0), learners=2, speeds=[1.0, 1.0], events=4, latency=1.5).replicas[3].tolist() == [[2], [2]]


def test_a_learner_that_joins_sends_after_tau_tasks() -> None:
    """Learner 0's tasks end at 1, 2, …, those of learner 1, which joins at 1½, at 2½, 3½, …"""
    made = run(EASGD(tau=2), learners=1, speeds=[1.0, 1.0], events=8, join=[(1.5, 1)])
    assert made.times.tolist() == [1, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert made.merge_times.tolist() == [2, 3.5, 4]


def test_masses_are_one_again_after_a_loss_and_a_join() -> None:
    """Nothing is sent. z is the mean of 4, 6 and 7, then of 4 and 6 with w_0 = 2, then the same with a third at z."""
    factors = (0.5, 0.25, 0.125)
    made = run(
        Gossip(0.0), gradient=lambda w, learner, task: 2 * factors[learner] * w * (task < 4), learners=3,
        speeds=[1.0, 1.0, 1.0], events=6, leave=[(1.5, 2)], join=[(2.5, 2)],
    )  # fmt: skip
    np.testing.assert_allclose(made.base.ravel(), [20 / 3, 6, 17 / 3, 4, 4, 4], atol=1e-15)


@given(speeds, moments, st.sampled_from([0.0, 0.3, 2.0]))
def test_equal_weights_stay_equal(speeds: list[float], moments: list[float], latency: float) -> None:
    """So the masses, also of letters under way, and of those that were lost, are 1 together."""
    made = run(
        Gossip(1.0), gradient=lambda w, learner, task: 0 * w, learners=3, speeds=speeds, events=40, latency=latency,
        leave=[(moments[0], 1), (moments[1], 0)], join=[(moments[2], 3)],
    )  # fmt: skip
    np.testing.assert_allclose(made.base, 8, atol=1e-12)


@pytest.mark.parametrize("latency", [0.0, 0.5])
def test_a_learner_that_joins_gossip_has_the_mean_of_local_variables(latency: float) -> None:
    """Without gradients all values stay the same, although messages do not contain local ones."""
    made = simulate(
        Gossip(probability=1), initial=[5.0, 5.0], gradient=lambda weights, learner, task: 0 * weights, learners=3,
        speeds=[1, 1.3, 1.7, 1], events=60, variables=[1, 1], local_variables=[1], latency=latency, join=[(3.0, 3)],
    )  # fmt: skip
    np.testing.assert_allclose(made.base, 5.0, rtol=1e-12)
