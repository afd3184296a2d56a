"""The simulator: rules without a barrier by hand, what holds for them whatever the order, and the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.solver import Pace, solver_step
from crossbow.synch import (
    EASGD,
    RULES,
    SSP,
    AsynchronousSGD,
    Default,
    DiLoCo,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    Rule,
    RuleSequence,
    Trajectory,
    WeedOut,
    simulate,
)
from crossbow.synch.progress import Masses
from tests.combinations import one_in
from tests.synch import free_trajectories
from tests.synch.trajectories import START, gradient

SIZE = 3
SOLVERS = st.builds(SolverConf, momentum=st.sampled_from([0.0, 0.5]), weight_decay=st.sampled_from([0.0, 0.01]))


@pytest.mark.parametrize("case", free_trajectories.ALL, ids=lambda case: case.name)
def test_rules_without_a_barrier_follow_the_hand(case: free_trajectories.Trajectory) -> None:
    made = simulate(
        case.rule,
        initial=[START],
        gradient=lambda weights, learner, task: [gradient(learner % 2, weights[0])],
        learners=case.learners,
        events=case.events,
        solver=case.solver,
    )
    np.testing.assert_allclose(made.base[:, 0], case.base, rtol=0, atol=1e-12)
    np.testing.assert_allclose(made.replicas[:, :, 0], case.replicas, rtol=0, atol=1e-12)
    assert made.staleness.tolist() == list(case.staleness)
    assert np.flatnonzero(made.dropped).tolist() == list(case.dropped)


def test_every_rule_without_a_barrier_was_worked_by_hand() -> None:
    from tests.synch import trajectories

    worked = {type(case.rule) for case in [*trajectories.ALL, *free_trajectories.ALL]}
    assert worked == set(RULES.values())


# Whatever the order.


def noise(seed: int, *, until: int = 10**9) -> Callable[[Any, int, int], Any]:
    """Gradients of a task, those of a quadratic with a minimum of its own; none from some task on."""

    def gradient_of(weights: Any, learner: int, task: int) -> Any:
        minimum = np.random.default_rng([seed, 2, task]).standard_normal(SIZE)
        return (weights - minimum) * (task < until)

    return gradient_of


def run(rule: Rule | RuleSequence, learners: int, events: Any, seed: int = 0, **options: Any) -> Trajectory:
    initial = np.random.default_rng([seed, 1]).standard_normal(SIZE)
    options = {"gradient": noise(seed), "solver": SolverConf(learning_rate=0.1), **options}
    return simulate(rule, initial=initial, learners=learners, events=events, **options)


ALONE = [
    SSGD(),
    ModelAveraging(tau=3),
    DiLoCo(tau=2, outer_learning_rate=1, outer_momentum=0),
    Default(tau=2),
    Hogwild(),
    AsynchronousSGD(),
    AsynchronousSGD(weight="1/staleness", tau=2),
    AsynchronousSGD(sends="gradient"),
    SSP(),
    PartiallySynchronous(),
    WeedOut(),
    Gossip(probability=1),
    Grouping(),
]


@one_in(2)
@pytest.mark.parametrize("rule", ALONE, ids=str)
@given(seed=st.integers(0, 100), solver=SOLVERS)
@settings(max_examples=20)
def test_one_learner_is_plain_sgd(rule: Rule, seed: int, solver: SolverConf) -> None:
    made = run(rule, 1, [0] * 6, seed, solver=solver)
    plain = {"weights": np.random.default_rng([seed, 1]).standard_normal(SIZE), "velocity": np.zeros(SIZE)}
    for task in range(6):
        step = solver_step(solver, Pace(solver.learning_rate, solver.momentum))
        step.apply({**plain, "gradient": noise(seed)(plain["weights"], 0, task)})
        np.testing.assert_allclose(made.replicas[task, 0], plain["weights"], atol=1e-12)
    np.testing.assert_allclose(made.base[-1], plain["weights"], atol=1e-12)


orders = st.integers(2, 5).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k - 1), min_size=1, max_size=60))
)


def clocks(made: Trajectory, learners: int) -> Any:
    """(events + 1, learners): how many tasks each had finished after so many events."""
    finished = made.events[:, None] == np.arange(learners)
    return np.concatenate([np.zeros((1, learners), int), np.cumsum(finished, axis=0)])


@given(orders, st.integers(0, 4))
def test_ssp_never_exceeds_its_bound(order: tuple[int, list[int]], bound: int) -> None:
    """Nobody is in a task that is more than s ahead of the slowest: so nobody has finished more than s + 1 more."""
    learners, events = order
    counts = clocks(run(SSP(bound), learners, events), learners)
    assert np.all(np.ptp(counts, axis=1) <= bound + 1)


@pytest.mark.parametrize("bound", [0, 1, 5])
def test_ssp_blocks_nobody_within_its_bound(bound: int) -> None:
    assert run(SSP(bound), 3, [1] * 20).events.tolist() == [1] * (bound + 1)
    assert run(AsynchronousSGD(), 3, [1] * 20).events.tolist() == [1] * 20


@given(orders, st.integers(1, 5))
def test_partially_synchronous_learners_never_drift_further_apart(order: tuple[int, list[int]], most: int) -> None:
    """And from a barrier on, all have the same weights."""
    learners, events = order
    made = run(PartiallySynchronous(most), learners, events)
    counts, start = clocks(made, learners), 0
    for event, replicas in enumerate(made.replicas, start=1):
        drift = np.ptp(counts[event] - counts[start])
        assert drift <= most
        if all(np.array_equal(replica, replicas[0]) for replica in replicas):
            start = event


def test_a_barrier_that_has_begun_is_gone_through_with() -> None:
    """m = 2, three learners: when 0 is two ahead it waits; though the drift is 1 after the others' next, they wait."""
    made = run(PartiallySynchronous(2), 3, [0, 0, 1, 1, 0, 2, 2, 1])
    assert made.events.tolist() == [0, 0, 1, 2, 1, 0, 2, 1]
    assert np.ptp(made.replicas[3], axis=0).tolist() == [0] * SIZE


@given(orders)
def test_weed_out_of_nothing_is_asynchronous_sgd(order: tuple[int, list[int]]) -> None:
    learners, events = order
    np.testing.assert_array_equal(
        run(WeedOut(window=60), learners, events).replicas, run(AsynchronousSGD(), learners, events).replicas
    )


@given(orders)
def test_groups_of_one_are_asynchronous_sgd_by_staleness(order: tuple[int, list[int]]) -> None:
    learners, events = order
    single, other = Grouping(tuple((i,) for i in range(learners))), AsynchronousSGD("1/staleness", "gradient")
    np.testing.assert_allclose(run(single, learners, events).base, run(other, learners, events).base, atol=1e-12)


@pytest.mark.slow
@given(orders, SOLVERS)
def test_one_group_is_synchronous_sgd(order: tuple[int, list[int]], solver: SolverConf) -> None:
    learners, _ = order
    events = [*range(learners)] * 4
    one = run(Grouping((tuple(range(learners)),)), learners, events, solver=solver)
    np.testing.assert_allclose(one.base, run(SSGD(), learners, events, solver=solver).base, atol=1e-12)


@given(orders)
def test_default_adds_up_what_model_averaging_averages(order: tuple[int, list[int]]) -> None:
    """In one tick: the sum of the moves is k times their mean."""
    learners, _ = order
    start = np.random.default_rng([0, 1]).standard_normal(SIZE)
    total, mean = (run(rule, learners, range(learners)).base[-1] - start for rule in (Default(), ModelAveraging()))
    np.testing.assert_allclose(total, learners * mean, atol=1e-12)


@given(orders, st.floats(0.01, 1))
def test_an_elastic_exchange_keeps_the_sum(order: tuple[int, list[int]], alpha: float) -> None:
    """Without gradients Σ w_i + z stays: what one loses the other gains."""
    learners, events = order
    made = run(EASGD(alpha), learners, [*range(learners), *events], gradient=noise(0, until=learners))
    totals = made.replicas.sum(axis=1)[learners - 1 :] + made.base[learners - 1 :]
    np.testing.assert_allclose(totals, np.broadcast_to(totals[0], totals.shape), atol=1e-12)


@given(orders, st.floats(0.1, 1), st.integers(0, 100))
def test_gossip_keeps_the_mean_by_mass(order: tuple[int, list[int]], probability: float, seed: int) -> None:
    """Messages on their way included: without gradients z stays, whoever sends to whom."""
    learners, events = order
    made = run(Gossip(probability), learners, [*range(learners), *events], gradient=noise(0, until=learners), seed=seed)
    quiet = made.base[learners - 1 :]
    np.testing.assert_allclose(quiet, np.broadcast_to(quiet[0], quiet.shape), atol=1e-12)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_masses_are_one_together(learners: int, messages: list[tuple[int, int]]) -> None:
    masses = Masses(learners)
    for sender, receiver in messages:
        if sender % learners != receiver % learners:
            masses.send(sender % learners, receiver % learners, 0.5)
        else:
            masses.receive(receiver % learners)
        assert sum(masses.own) + sum(masses.coming) == pytest.approx(1, abs=1e-12)
        assert min(masses.own) > 0
        assert sum(masses.mean.coefficients) == pytest.approx(1, abs=1e-12)


# Tasks, ticks and the clock.


def test_tasks_are_numbered_as_they_start() -> None:
    seen: list[tuple[int, int]] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        seen.append((learner, task))
        return weights

    run(AsynchronousSGD(), 2, [1, 1, 0, 1], gradient=note)
    assert seen == [(1, 1), (1, 2), (0, 0), (1, 3)]


def test_under_a_barrier_task_n_is_learner_n_mod_ks() -> None:
    seen: list[tuple[int, int]] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        seen.append((learner, task))
        return weights

    made = run(SMA(tau=2), 2, [1, 1, 1, 0, 0, 0], gradient=note)
    assert seen == [(1, 1), (1, 3), (0, 0), (0, 2), (1, 5), (0, 4)]  # the third 1 waits for the tick's end
    assert made.events.tolist() == [1, 1, 0, 0, 1, 0]


def test_a_virtual_clock() -> None:
    """Learner 0 is twice as fast; of two that finish at the same time the first is first."""
    made = run(AsynchronousSGD(), 2, 6, speeds=[2.0, 1.0])
    assert made.events.tolist() == [0, 0, 1, 0, 0, 1]
    assert made.times.tolist() == [0.5, 1, 1, 1.5, 2, 2]
    made = run(SSGD(), 2, 4, speeds=[2.0, 1.0])
    assert made.events.tolist() == [0, 1, 0, 1]
    assert made.times.tolist() == [0.5, 1, 1.5, 2]
    assert run(AsynchronousSGD(), 2, None, speeds=[2.0, 1.0], tasks=6).events.tolist() == [0, 0, 1, 0, 0, 1]
    assert run(Grouping(), 2, 5, speeds=[2.0, 1.0]).events.tolist() == [0, 0, 1, 0, 0]


def test_the_schedule_goes_on_from_tick_to_tick() -> None:
    """γ halves after every tick of two tasks; with the drop the learners restart from z, without velocities."""
    solver = SolverConf(learning_rate=0.5, policy="step", gamma=0.5, step_size=2, momentum=0.5)
    made = simulate(
        SSGD(), initial=[8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 1, 0, 1], solver=solver
    )
    assert made.base.ravel().tolist() == [4, 3]  # 8 − ½ · 8; 4 − ¼ · 4


def dropping(rule: Rule, first: int, learners: int = 2, unit: str = "tasks", **options: Any) -> Trajectory:
    """Of the gradient g(w) = w, from 8 on; γ is ½, and ¼ from this task on."""
    solver = SolverConf(
        learning_rate=0.5, policy="multistep", gamma=0.5, step_values=(first,), learning_rate_step_unit=unit,
        momentum=0.5 * (learners == 2),
    )  # fmt: skip
    initial, gradient = [8.0], lambda weights, learner, task: weights
    return simulate(rule, initial=initial, gradient=gradient, learners=learners, solver=solver, **options)


def test_without_a_barrier_a_drop_waits_for_what_is_under_way() -> None:
    """m = ½; the tick in which γ drops begins with task 4.

    0: v = −4: w = z = 4.   0: v = −2 − 2: w = z = 0.   0: v = −2: w = z = −2; four tasks have begun, so it waits, and
    its next turn is put off.   1: at 8, Δ = −4: z = −6. Nothing is under way: both start from −6, without velocity.
    0: v = 1.5: z = −4.5.   1: at −6, Δ = 1.5: z = −3.
    """
    made = dropping(AsynchronousSGD(), 4, events=[0, 0, 0, 0, 1, 1])
    assert made.events.tolist() == [0, 0, 0, 1, 0, 1]
    assert made.base.ravel().tolist() == [4, 0, -2, -6, -4.5, -3]
    assert made.replicas[3].ravel().tolist() == [-6, -6]


def test_nobody_waits_at_a_drop_where_no_restart_is_wanted() -> None:
    """As above up to z = −2.   0: task 4, v = −1 + ½ = −½: z = −2.5.   1: at 8, task 1, v = −4: z = −6.5.
    1: at −6.5, v = −2 + 1.625 = −0.375: z = −6.875.
    """
    made = dropping(AsynchronousSGD(), 4, events=[0, 0, 0, 0, 1, 1], restart=False)
    assert made.events.tolist() == [0, 0, 0, 0, 1, 1]
    assert made.base.ravel().tolist() == [4, 0, -2, -2.5, -6.5, -6.875]


def test_with_a_barrier_learners_may_go_on_at_a_drop() -> None:
    """Both learners do the same; z is the mean of the replicas before their step, c = (w − z)/2; m = ½.

    8: c = 0, v = −4: w = 4, z = 8.   c = −2, v = −2 − 2: w = 2, z = 4.   γ = ¼: c = −1, v = −2 − ½: w = 0.5, z = 2.
    c = −0.75, v = −1.25 − 0.125: w = −0.125, z = 0.5.
    """
    made = dropping(SMA(), 4, events=[0, 1] * 4, restart=False)
    assert made.base.ravel().tolist() == [8, 4, 2, 0.5]
    assert made.replicas[1::2, 0].ravel().tolist() == [4, 2, 0.5, -0.125]


def test_a_drop_by_the_virtual_clock() -> None:
    """The fast learner has done three of the first four tasks when it has to wait for the other."""
    made = dropping(AsynchronousSGD(), 4, events=6, speeds=[4.0, 1.0])
    assert made.events.tolist() == [0, 0, 0, 1, 0, 0]
    assert made.times.tolist() == [0.25, 0.5, 0.75, 1, 1.25, 1.5]


def test_a_drop_by_merges() -> None:
    """γ drops with the second merge, and the learners restart with the next tick, that of task 4.

    As above up to z = −2, where γ is ¼ (and the gradient 0).   1: at 8, v = −2: z = −4; both start from there.
    0: v = 1: z = −3.
    """
    made = dropping(AsynchronousSGD(), 2, unit="merges", events=[0, 0, 0, 1, 0])
    assert made.base.ravel().tolist() == [4, 0, -2, -4, -3]


def test_what_waits_for_others_when_the_rate_drops_is_left_out() -> None:
    """Groups 0, 1 and 2, and the tick in which γ drops begins with task 6.

    2: z = 4.   2: z = 2.   0: waits.   1: with 0: 16, Y = 3: z = 2 − ½ · 16/6 = 2/3; 0 begins task 5, 1 has to wait.
    2: g = 2, Y = 2: z = 2/3 − ½ = 1/6.   0: waits for 1: so nothing is under way, and all start from 1/6.
    2: z = 1/6 − ¼ · 1/6 = 1/8.   0: waits.   1: with 0: 1/3, Y = 2: z = 1/8 − ¼ · 1/12 = 5/48.
    """
    made = dropping(Grouping(((0, 1), (2,))), 6, learners=3, events=[2, 2, 0, 1, 2, 0, 2, 0, 1])
    np.testing.assert_allclose(made.base.ravel(), [4, 2, 2 / 3, 1 / 6, 1 / 8, 5 / 48], atol=1e-12)
    assert made.staleness.tolist() == [1, 1, 3, 3, 2, 0, 1, 2, 2]


def test_a_schedule_by_merges() -> None:
    """γ halves with every merge; what is weeded out is none."""
    solver = SolverConf(learning_rate=0.5, policy="exp", gamma=0.5, learning_rate_step_unit="merges")
    made = simulate(
        WeedOut(window=1), initial=[8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 0, 1, 0],
        solver=solver,
    )  # fmt: skip
    assert made.base.ravel().tolist() == [4, 3, 2.625]
    assert made.dropped.tolist() == [False, False, True, False]


def test_every_membership_is_checked() -> None:
    """Not only the last: of three learners, two are there for a while, then one."""

    class Fussy(Grouping):
        def check_solver(self, solver: SolverConf) -> None:
            if self.groups == ((0, 1),):
                raise self.refuse("groups", self.groups, "another")

    options: dict[str, Any] = {"speeds": [1.0] * 3, "events": 1}
    run(Fussy(), 3, **options)
    with pytest.raises(ConfigurationError, match=r"groups must be another. Received: groups=\(\(0, 1\),\)"):
        run(Fussy(), 3, **options, leave=[(1.0, 0), (2.0, 1)])


def test_learners_that_no_memory_can_hold_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"learners must be at most [0-9]+ for vectors of size 3. Received"):
        run(SSGD(), 10**9, [0])


@given(orders)
def test_staleness_is_one_more_than_the_merges_meanwhile(order: tuple[int, list[int]]) -> None:
    learners, events = order
    made = run(AsynchronousSGD(), learners, events)
    last = [-1] * learners
    for event, learner in enumerate(made.events):
        assert made.staleness[event] == event - last[learner]
        last[learner] = event
