"""Rules in turn: their phases, by hand, and in the engine."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ConfigurationError, Dataset, SolverConf, TaskError, TrainingUnit
from crossbow.runtime.changing_engine import ChangingEngine
from crossbow.runtime.scheduler import Callbacks
from crossbow.synch import (
    SSP,
    AsynchronousSGD,
    Default,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PolyakRuppert,
    RuleSequence,
    TwoLevel,
    WeedOut,
    sequence,
    simulate,
)
from crossbow.synch.progress import ExchangeState
from crossbow.synch.sequence import ticks_of_phase
from tests.runtime import test_free as least_squares
from tests.support import SECONDS, Probe, blobs, context, engine_of, perceptron, same_weights, within
from tests.synch.test_members import drawn_changes
from tests.synch.trajectories import START, gradient

TASKS = TrainingUnit.TASKS
TURNS = RuleSequence(((AsynchronousSGD(), 3), (SSGD(), 1)))


def lengths(sequence: RuleSequence, learners: int, tasks_per_tick: int) -> tuple[int, ...]:
    return tuple(ticks_of_phase(*phase, learners, tasks_per_tick) for phase in sequence.phases)


def test_phases_end_with_the_tick_of_their_last_merge() -> None:
    """With two learners: three deltas are two ticks of two tasks, a merge of S-SGD is one."""
    assert lengths(TURNS, 2, 2) == (2, 1)
    groups = RuleSequence(((Grouping(2), 3), (Gossip(), 1)))
    assert lengths(groups, 4, 4) == (2, 1)
    slow = RuleSequence(((SMA(tau=3), 2), (ModelAveraging(tau=3), 5)))
    assert lengths(slow, 2, 6) == (2, 5)
    levels = RuleSequence(((TwoLevel(SMA(), ModelAveraging(tau=4)), 9), (TwoLevel(SSGD(), ModelAveraging(tau=4)), 4)))
    assert lengths(levels, 2, 8) == (3, 1)


def test_by_hand() -> None:
    """γ = ¼, from 2; learner 0's step goes to ¾ w, learner 1's to 1.

    Deltas: 0: z = 1.5.   1: Δ = −1: z = .5.   0: from 1.5: z = .125.   1: from .5, Δ = .5: z = .625. Two ticks: over.
    S-SGD: the mean gradient 2.5 z − 2 is −.4375: z = .734375. Then deltas again, from there.
    0: Δ = −.18359375: z = .55078125.
    """
    made = simulate(
        TURNS,
        initial=[START],
        gradient=lambda weights, learner, task: [gradient(learner, weights[0])],
        learners=2,
        events=[0, 1, 0, 1, 0, 1, 0],
        solver=SolverConf(learning_rate=0.25),
    )
    assert made.base.ravel().tolist() == [1.5, 0.5, 0.125, 0.625, 0.734375, 0.55078125]
    assert made.replicas[-3:, :, 0].tolist() == [[0.625, 0.625], [0.734375, 0.734375], [0.55078125, 0.734375]]
    assert made.events.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert made.staleness.tolist() == [1, 2, 2, 2, 1, 1, 1]


def averaging(phases: Any, ticks: int, **solver: Any) -> Any:
    """Rules in turn on the two examples, from 2, γ = ¼."""
    return simulate(
        RuleSequence(phases),
        initial=[START],
        gradient=lambda weights, learner, task: [gradient(learner, weights[0])],
        learners=2,
        events=[0, 1] * ticks,
        solver=SolverConf(learning_rate=0.25, **solver),
    )


def test_polyak_ruppert_averages_from_its_first_tick_on() -> None:
    """γ = ¼, from 2; learner 0's step goes to ¾ w, learner 1's to 1. What z was before the phase is no part of it.

    S-SGD: z ← .375 z + .5 = 1.25.
    Polyak-Ruppert: .9375 and 1, m = .96875: z = m.   .703125 and 1, m = .8515625: z = (.96875 + m) / 2 = .91015625.
    .52734375 and 1, m = .763671875: z = (.96875 + .8515625 + m) / 3 = .861328125.
    S-SGD: z = .822998046875.   Polyak-Ruppert: .61724853515625 and 1: z = m = .808624267578125.
    """
    made = averaging(((SSGD(), 1), (PolyakRuppert(), 3)), ticks=6)
    expected = [1.25, 0.96875, 0.91015625, 0.861328125, 0.822998046875, 0.808624267578125]
    np.testing.assert_allclose(made.base.ravel(), expected, rtol=0, atol=1e-15)


def test_the_steps_of_alpha_go_on_by_the_time_of_all_phases() -> None:
    """As above, but from task 4 on, the phase's second tick, α = 1: .703125 and 1 both become z, which was .96875.

    Then .7265625 and 1, m = .86328125: z = (.96875 + .8515625 + m) / 3, and both become the z before, .91015625.
    """
    made = averaging(((SSGD(), 1), (PolyakRuppert(alpha_steps=((4, 1.0),)), 3)), ticks=4)
    expected = [1.25, 0.96875, 0.91015625, (0.96875 + 0.8515625 + 0.86328125) / 3]
    np.testing.assert_allclose(made.base.ravel(), expected, rtol=0, atol=1e-15)
    assert made.replicas[5::2, :, 0].tolist() == [[0.96875, 0.96875], [0.91015625, 0.91015625]]


def test_a_restart_in_a_phase_leaves_its_mean_as_it_is() -> None:
    """At task 4, the phase's second tick, the learners start again from z = .96875, which stays part of the mean:
    .7265625 and 1, m = .86328125: z = (.96875 + m) / 2 = .916015625."""
    made = averaging(
        ((SSGD(), 1), (PolyakRuppert(), 3)), ticks=3, policy="multistep", gamma=1.0, step_values=(4,)
    )  # fmt: skip
    assert made.base.ravel().tolist() == [1.25, 0.96875, 0.916015625]


def test_what_learners_keep_is_the_mean_when_the_rule_changes() -> None:
    """τ = 2, gradients are the weights, γ = ½: a step halves them. The first phase is tasks 0 to 3, of which learner 1
    does one: it has halved its 8 once, learner 0 its 8 three times. Both begin the next with the mean, 2.5."""
    rules = RuleSequence(((AsynchronousSGD(tau=2), 2), (ModelAveraging(tau=2), 1)))
    made = simulate(
        rules, initial=[8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 0, 0, 1, 0], tasks=8,
        solver=SolverConf(learning_rate=0.5), local_variables=[0],
    )  # fmt: skip
    assert made.replicas[-2].ravel().tolist() == [1, 4]
    assert made.replicas[-1].ravel().tolist() == [1.25, 2.5]


def test_two_levels_by_hand() -> None:
    """Hosts of one learner, γ = ¼, from 2: their steps go to ¾ w, and to 1.

    S-SGD: 1.5 and 1, then 1.125 and 1: z = 1.0625 for both.   Weights are averaged within hosts, which is the same:
    .796875 and 1, then .59765625 and 1: z = .798828125, once more after the one merge that was due.
    """
    levels = ((TwoLevel(rule, ModelAveraging(tau=2)), 1) for rule in (SSGD(), ModelAveraging()))
    made = simulate(
        RuleSequence(tuple(levels)), initial=[START], gradient=lambda w, learner, task: [gradient(learner, w[0])],
        learners=2, hosts=[1, 1], events=[0, 1] * 4, solver=SolverConf(learning_rate=0.25),
    )  # fmt: skip
    assert made.base.ravel().tolist() == [1.0625, 0.798828125]
    assert made.replicas[-1].ravel().tolist() == [0.798828125] * 2


def halving(phases: Any, **options: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Steps that halve the weights, from 8 on; a task takes 1. Returns the trajectory, and the learner and the number
    of each task, as they end."""
    tasks: list[tuple[int, int]] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        tasks.append((learner, task))
        return weights

    solver = SolverConf(learning_rate=0.5)
    return simulate(RuleSequence(phases), initial=[8.0], gradient=note, solver=solver, **options), tasks


def test_a_loss_under_a_barrier_by_hand() -> None:
    """Tick 0, tasks 0 to 2: z = 4.   Learner 1 is lost in tick 1, which the others repeat: tasks 3 and 4, z = 2 at 2.5.
    Tick 2, tasks 5 and 6: z = 1, and the phase is over. Four deltas of two learners are two ticks: 0: z = ½; 2 at 1:
    z = 0; 0 at ½: z = −¼; 2 at 0: z = −¼.   Averages again, tasks 11 and 12: −⅛.
    """
    made, tasks = halving(
        ((ModelAveraging(), 3), (AsynchronousSGD(), 4)), learners=3, speeds=[1.0] * 3, events=13, leave=[(1.5, 1)]
    )
    assert tasks == [(0, 0), (1, 1), (2, 2), *((2 * (task % 2 == 0), task) for task in range(3, 13))]
    assert made.merge_times.tolist() == [1, 2.5, 3.5, 4.5, 4.5, 5.5, 5.5, 6.5]
    assert made.base.ravel().tolist() == [4, 2, 1, 0.5, 0, -0.25, -0.25, -0.125]
    assert np.isnan(made.replicas[3:, 1]).all()


def test_a_loss_without_a_barrier_by_hand() -> None:
    """Six deltas are two ticks of three learners. Tick 0: 0: z = 4; 1 at 8: z = 0; 2 at 8: z = −4.
    Learner 1 is lost in task 4. With two learners the phase has three ticks, two of which are left: tasks 3 to 6.
    2: 0 at 4: z = −6; 2 at −4: z = −4.   3: 0, which has task 4 now, at −6: z = −1; 2 at −4: z = 1.
    The phase has ended. z is averaged: tasks 7 and 8.
    """
    made, tasks = halving(
        ((AsynchronousSGD(), 6), (ModelAveraging(), 1)), learners=3, speeds=[1.0] * 3, events=9, leave=[(1.5, 1)]
    )
    assert tasks == [(0, 0), (1, 1), (2, 2), (0, 3), (2, 5), (0, 4), (2, 6), (0, 7), (2, 8)]
    assert made.base.ravel().tolist() == [4, 0, -4, -6, -4, -1, 1, 0.5]


def test_learners_join_in_a_phase_by_hand() -> None:
    """Two merges of S-SGD are two ticks: 4 of tasks 0 and 1, and 2 of tasks 2 and 3, at the end of which learner 2
    joins. Four deltas of three learners are two ticks. 3: 0, 1 and 2, all at 2: z = 1, 0, −1.
    Learner 3 joins at 3.5, and with four learners one tick is enough: no task begins after those that have.
    4: 0 at 1: z = −1.5; 1 at 0: z = −1.5; 2 at −1: z = −1.   4.5: 3 has nothing to do until S-SGD goes on at 4.
    """
    made, tasks = halving(
        ((SSGD(), 2), (AsynchronousSGD(), 4)), learners=2, speeds=[1.0] * 4, events=14, join=[(1.5, 2), (3.5, 3)]
    )
    assert tasks[:10] == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5), (2, 6), (0, 7), (1, 8), (2, 9)]
    assert tasks[10:] == [(learner, 10 + learner) for learner in range(4)]
    assert made.base.ravel().tolist() == [4, 2, 1, 0, -1, -1.5, -1.5, -1, -0.5]
    assert made.merge_times.tolist() == [1, 2, 3, 3, 3, 4, 4, 4, 5]


def test_who_has_no_task_goes_on_when_the_phase_grows() -> None:
    """Three merges of the largest group: with groups of one, three tasks, which are two ticks of two learners, 0 to 3.
    Learner 1 needs 4 for a task, and learner 0 has done all others when learner 2 joins: now one group has two
    learners, and six tasks are two ticks of three."""
    rules = ((Grouping(2), 3), (SSGD(), 1))
    made, tasks = halving(rules, learners=2, speeds=[1.0, 0.25, 1.0], events=6, join=[(3.5, 2)])
    assert tasks == [(0, 0), (0, 2), (0, 3), (1, 1), (0, 5), (2, 4)]
    assert made.times.tolist() == [1, 2, 3, 4, 4.5, 4.5]


def test_a_phase_of_a_group_has_as_many_merges_with_fewer_learners() -> None:
    """One group, whose learners step together, whoever is lost."""
    group = Grouping(((0, 1, 2),))
    for lost in range(3):
        made, tasks = halving(
            ((group, 4), (SSGD(), 2)), learners=3, speeds=[1.0] * 3, events=13, leave=[(1.5, lost)]
        )  # fmt: skip
        assert made.merge_times.tolist() == [1, 2, 3, 4, 5, 6]
        assert sorted({task for _, task in tasks}) == [*range(13)]


def test_two_levels_in_turn_by_hand() -> None:
    """Hosts of one learner, γ = ½ towards the task's number, from 8. Phases of two merges and of one, which are a tick
    of z each. S-SGD: 0, 1, 2: 4, 4.5, 5; 3, 4, 5: 3.5, 4.25, 5; z = 4.25.   Averages: host 1 is lost in the second
    task, and the tick begins again: 6 and 7: 5.125, 5.625; 8 and 9: 6.5625, 7.3125; z = 6.9375.
    S-SGD: 10 and 11: 8.46875, 8.96875; 12 and 13: 10.234375, 10.984375; z = 10.609375.
    """
    levels = RuleSequence(
        ((TwoLevel(SSGD(), ModelAveraging(tau=2)), 2), (TwoLevel(ModelAveraging(), ModelAveraging(tau=2)), 1))
    )
    made = simulate(
        levels, initial=[8.0], gradient=lambda w, learner, task: w - task, learners=3, hosts=[1, 1, 1], events=17,
        speeds=[1.0] * 3, leave=[(3.5, 1)], solver=SolverConf(learning_rate=0.5),
    )  # fmt: skip
    assert made.merge_times.tolist() == [2, 5.5, 7.5]
    np.testing.assert_allclose(made.base.ravel(), [4.25, 6.9375, 10.609375], rtol=1e-15)


SINGLE: list[Any] = [
    SMA(), SSGD(), ModelAveraging(tau=2), PolyakRuppert(0.25), AsynchronousSGD(tau=2), SSP(1), WeedOut(), Gossip(0.5),
    Grouping(), Default(),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", SINGLE, ids=str)
def test_a_long_phase_is_its_rule(rule: Any, seed: int) -> None:
    """Bit for bit, whoever leaves and joins."""
    learners, changes, known = drawn_changes(seed)
    common: dict[str, Any] = {
        "initial": [1.0, -2.0], "gradient": lambda w, learner, task: w - np.array([task % 5, learner]) / 4,
        "learners": learners, "speeds": [1.0 + learner * 3 % 4 / 2 for learner in range(known)],
        "events": 80, "latency": 0.1 * (seed % 2), **changes,
        "solver": SolverConf(learning_rate=0.125, momentum=0.5, policy="step", gamma=0.5, step_size=9),
    }  # fmt: skip
    made, alone = simulate(RuleSequence(((rule, 10**6),)), **common), simulate(rule, **common)
    for name in ("base", "events", "staleness", "replicas", "merge_times"):
        np.testing.assert_array_equal(getattr(made, name), getattr(alone, name))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in SINGLE if rule.tau == 1], ids=str)
def test_all_tasks_are_finished_whoever_leaves_and_joins(rule: Any) -> None:
    computed = set[int]()

    def note(weights: Any, learner: int, task: int) -> Any:
        computed.add(task)
        return weights

    for seed in range(30):
        learners, changes, known = drawn_changes(seed)
        turns = RuleSequence(((rule, 3), (SMA(), 2), (AsynchronousSGD(), 5)))
        speeds = [1.0 + (learner * 7 + seed) % 4 / 2 for learner in range(known)]
        computed.clear()
        made = simulate(
            turns, initial=[1.0], gradient=note, learners=learners, speeds=speeds, tasks=30, latency=0.2 * (seed % 3),
            solver=SolverConf(learning_rate=0.1, policy="step", gamma=0.5, step_size=8), **changes,
        )  # fmt: skip
        assert computed == set(range(30))
        assert np.isfinite(made.base).all()


def test_tasks_are_numbered_on() -> None:
    seen: list[int] = []

    def note(weights: Any, learner: int, task: int) -> Any:
        seen.append(task)
        return weights

    made = simulate(TURNS, initial=[1.0], gradient=note, learners=2, events=9, speeds=[1.0, 1.0], tasks=9)
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert np.all(np.diff(made.times) >= 0)


@pytest.mark.parametrize(
    ("phases", "text"),
    [
        ((), "phases must be pairs"),
        (((SMA(), 0),), "phases must be pairs"),
        (((SMA, 1),), "phases must be pairs"),
        (((SMA(), 1.5),), "phases must be pairs"),
        ((SMA(), SSGD()), "phases must be pairs"),
        (((SMA(tau=2), 1), (SSGD(), 1)), r"must have the same tau. Received: 1, 2"),
        (((TwoLevel(), 1), (SSGD(), 1)), r"must all have two levels, or none. Received: phases=\(\(TwoLevel"),
        (
            ((TwoLevel(SMA(tau=2), ModelAveraging(2)), 1), (TwoLevel(SMA(), ModelAveraging(4)), 1)),
            "must have the same tau. Received: 1 · 4, 2 · 2",
        ),
    ],
)
def test_what_is_no_sequence(phases: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        RuleSequence(phases)


def test_examples() -> None:
    assert doctest.testmod(sequence).failed == 0


# In the engine.


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_the_engine_changes_the_rule(learners: int) -> None:
    """Rules with a barrier in turn, as one context after the other: what a restart leaves is z alone."""
    phases = ((SMA(), 3), (ModelAveraging(), 2), (SSGD(), 1))
    solver = SolverConf(learning_rate=0.1, momentum=0.5, policy="inv", gamma=0.1)
    data = blobs(examples=200)
    with context(rule=RuleSequence(phases), learners=learners, data=data, solver=solver) as running:
        assert isinstance(running.engine, ChangingEngine)
        for tasks in (2 * learners, 6 * learners):
            running.train(tasks, TASKS)
        received, names = running.variables, engine_of(running).parts.setting.rule.name
        assert running.engine.tick == 8
        assert names == "sma"
    variables, tick = None, 0
    for rule, merges in (*phases, (SMA(), 2)):
        with context(rule=rule, learners=learners, data=data, solver=solver) as running:
            engine_of(running).position.go_to(tick)
            engine_of(running).recovery.restart()
            if variables is not None:
                running.engine.load(variables, "before")
            running.engine.run((tick + merges) * learners, Callbacks())
            variables, tick = running.variables, running.engine.tick
    assert variables is not None
    assert same_weights(received, variables)


@pytest.mark.parametrize("parts", [[32], [2, 6, 4, 4, 10, 6]], ids=str)
def test_the_engine_averages_from_a_phase_s_first_tick_on(parts: list[int]) -> None:
    """As the simulator, in one call or in many; γ and α go on by the time of all phases, and at task 24 all restart."""
    turns = RuleSequence(((SSGD(), 3), (PolyakRuppert(alpha_steps=((8, 0.25), (22, 0.5))), 4)))
    solver = SolverConf(learning_rate=0.1, policy="multistep", gamma=0.5, step_values=(24,), momentum=0.5)
    seed, start = least_squares.SEED, [least_squares.START] * least_squares.FEATURES
    made = simulate(
        turns, initial=start, gradient=least_squares.gradient, learners=2, events=[0, 1] * 16, solver=solver
    )  # fmt: skip
    data = Dataset((least_squares.rows, least_squares.targets))
    with context(
        least_squares.linear(), data=data, rule=turns, learners=2, batch_size=1, solver=solver, precision="float64",
        seed=seed,
    ) as running:  # fmt: skip
        for tasks in parts:
            running.train(tasks, TASKS)
            z = next(iter(running.variables.values())).ravel()
            np.testing.assert_allclose(z, made.base[running.engine.tick - 1], rtol=0, atol=1e-12)
        assert running.engine.tick == 16


def test_rules_without_a_barrier_in_turn_with_others() -> None:
    turns = RuleSequence(((AsynchronousSGD(), 10), (SSGD(), 5), (Hogwild(), 7), (SMA(), 3)))
    with context(rule=turns, learners=2) as running:
        history = within(SECONDS, lambda: running.train_and_test(12))
        assert [record.epoch for record in history.records] == [*range(1, 13)]
        assert history.records[-1].tasks == 120
        assert history.best is not None
        assert history.records[-1].loss < history.records[0].loss
        assert running.predict(blobs().train.images[:3]).shape == (3, 3)


def test_a_failure_in_a_later_phase_leaves_a_usable_context() -> None:
    calls: list[int] = []

    def fail_once(where: str, learner: int, call: int) -> None:
        calls.append(learner)
        if len(calls) == 20:
            raise ValueError("broken")

    turns = RuleSequence(((SSGD(), 2), (AsynchronousSGD(), 8)))
    with context(perceptron(Probe(action=fail_once)), rule=turns, learners=2) as running:
        with pytest.raises(TaskError, match="broken"):
            within(SECONDS, lambda: running.train(60, TASKS))
        assert running.engine.tick >= 2
        assert within(SECONDS, lambda: running.train(20, TASKS)).stopped == "count"
        assert running.test().examples == 13


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"devices": "cuda:0,cuda:1"}, "rule must be one with a barrier on several GPUs"),
        ({"rule": RuleSequence(((SSGD(), 1), (SMA(alpha=0.9), 1)))}, "alpha must be < 2/"),
    ],
)
def test_every_phase_is_checked_before_the_first_begins(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        context(**{"rule": TURNS, **options})


def test_variables_are_left_out_as_in_the_simulator() -> None:
    """A rule's second turn does not repeat the draws of its first."""
    turns = RuleSequence(((AsynchronousSGD(), 3), (SSP(), 2)))
    solver, tasks = SolverConf(learning_rate=0.1, momentum=0.5), 15
    seed, start = least_squares.SEED, [least_squares.START] * (least_squares.FEATURES + 1)
    made = simulate(
        turns, initial=start, gradient=least_squares.biased_gradient, learners=1, events=[0] * tasks, solver=solver,
        skip=0.5, variables=[least_squares.FEATURES, 1], seed=seed,
    )  # fmt: skip
    data = Dataset((least_squares.rows, least_squares.targets))
    with context(
        least_squares.linear(bias=True), data=data, rule=turns, learners=1, batch_size=1, solver=solver, skip=0.5,
        precision="float64", seed=seed,
    ) as running:  # fmt: skip
        for task in range(tasks):
            running.train(1, TASKS)
            z = np.concatenate([np.ravel(values) for values in running.variables.values()])
            np.testing.assert_allclose(z, made.base[task], rtol=0, atol=1e-12)


def test_a_turn_of_gossip_draws_from_its_tick_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks 0 and 1, 3 and 4, and 6 and 7 are gossip's: four tasks each, in the engine of whichever learner."""
    turns = RuleSequence(((Gossip(probability=0.5), 4), (SSGD(), 1)))
    seen: list[list[int]] = [[], []]
    peer = Gossip.peer

    def note(rule: Gossip, learner: int, learners: int, clock: int, seed: int) -> int | None:
        seen[learner].append(clock)
        return peer(rule, learner, learners, clock, seed)

    monkeypatch.setattr(Gossip, "peer", note)
    simulate(turns, initial=[1.0], gradient=lambda w, learner, task: w, learners=2, events=18, speeds=[1.0, 1.0])
    assert seen == [[0, 1, 3, 4, 6, 7]] * 2
    with context(rule=turns, learners=2, data=blobs(examples=200)) as running:
        for tick in (0, 3, 6):
            seen[:] = [], []
            running.train(4, TASKS)
            assert seen == [list(range(tick, tick + len(numbers))) for numbers in seen]
            assert len(seen[0]) + len(seen[1]) == 4
            running.train(2, TASKS)
        assert running.engine.now.merges == 3 * (4 + 1)


def test_who_has_finished_is_forgotten_between_turns() -> None:
    """Without that, learner 1 would be late: the last to finish, N = 1, was learner 0."""
    progress = ExchangeState(WeedOut(window=1), 2)
    for _ in range(2):
        progress.arrive(0)
        progress.let_go()
    progress.forget()
    progress.restart()
    merge = progress.arrive(1)
    assert merge is not None
    assert not merge.dropped
