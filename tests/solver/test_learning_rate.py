"""Learning-rate policies: numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SolverConf
from crossbow.solver import LearningRate


def rates(*tasks: int, tasks_per_epoch: float = 10, **solver: object) -> list[float]:
    rate = LearningRate(SolverConf(**solver), tasks_per_epoch)  # type: ignore[arg-type]
    return [rate(task) for task in tasks]


def test_fixed() -> None:
    assert rates(0, 1, 1000, learning_rate=0.5) == [0.5, 0.5, 0.5]


def test_inv() -> None:
    """½ (1 + ½ t)^−2: t = 0, 2, 6 → ½, ½ / 4, ½ / 16."""
    assert rates(0, 2, 6, policy="inv", learning_rate=0.5, gamma=0.5, power=2) == [0.5, 0.125, 0.03125]


def test_inv_with_gamma_or_power_zero_is_fixed() -> None:
    assert rates(0, 50, policy="inv", learning_rate=0.5, gamma=0) == [0.5, 0.5]
    assert rates(0, 50, policy="inv", learning_rate=0.5, power=0) == [0.5, 0.5]


def test_step() -> None:
    """8 · ½^⌊t / 3⌋."""
    expected = [8, 8, 8, 4, 4, 4, 2, 2, 2, 1]
    assert rates(*range(10), policy="step", learning_rate=8, gamma=0.5, step_size=3) == expected


def test_multistep() -> None:
    """8 · ½^(steps that have been reached); 20 and 21 are both passed at once from 15 to 30."""
    expected = [8, 8, 4, 4, 1, 1]
    steps = (5, 20, 21)
    assert rates(0, 4, 5, 15, 21, 30, policy="multistep", learning_rate=8, gamma=0.5, step_values=steps) == expected


def test_exp() -> None:
    """8 · ½^t."""
    assert rates(0, 1, 2, 3, policy="exp", learning_rate=8, gamma=0.5) == [8, 4, 2, 1]


def test_exp_ends_at_zero_and_not_in_an_error() -> None:
    assert rates(1_000_000, policy="exp", learning_rate=1, gamma=0.5) == [0.0]


# Epochs.


def test_epochs_are_counted_in_tasks() -> None:
    """10 tasks an epoch; steps of two epochs."""
    conf = {"policy": "step", "learning_rate": 8, "gamma": 0.5, "step_size": 2, "learning_rate_step_unit": "epochs"}
    assert rates(0, 19, 20, 39, 40, **conf) == [8, 8, 4, 4, 2]
    conf = {"policy": "multistep", "learning_rate": 8, "gamma": 0.5, "learning_rate_step_unit": "epochs"}
    assert rates(0, 9, 10, 29, 30, step_values=(1, 3), **conf) == [8, 8, 4, 4, 2]


def test_inv_and_exp_use_fractions_of_an_epoch() -> None:
    """Half an epoch: exp(¼, ½) = ½; inv 1 / (1 + 2 · ½) = ½."""
    assert rates(5, policy="exp", learning_rate=1, gamma=0.25, learning_rate_step_unit="epochs") == [0.5]
    conf = {"policy": "inv", "learning_rate": 1, "gamma": 2, "power": 1, "learning_rate_step_unit": "epochs"}
    assert rates(5, **conf) == [0.5]


def test_an_epoch_need_not_be_a_whole_number_of_tasks() -> None:
    """2½ tasks an epoch: the step after one epoch comes with task 3, that after two with task 5."""
    conf = {"policy": "step", "learning_rate": 4, "gamma": 0.5, "step_size": 1, "learning_rate_step_unit": "epochs"}
    assert rates(0, 1, 2, 3, 4, 5, 6, 7, 8, tasks_per_epoch=2.5, **conf) == [4, 4, 4, 2, 2, 1, 1, 1, 0.5]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_a_step_comes_with_the_first_task_that_begins_behind_the_epoch(examples: int, batch: int, epoch: int) -> None:
    """Whatever the rounding of examples / batch: task t begins behind epoch e if t · batch ≥ e · examples."""
    first = -(-epoch * examples // batch)
    for policy in ({"policy": "multistep", "step_values": (epoch,)}, {"policy": "step", "step_size": epoch}):
        solver = SolverConf(learning_rate_step_unit="epochs", **policy)  # type: ignore[arg-type]
        rate = LearningRate(solver, examples / batch)
        assert rate.drops(first) == 1 or policy["policy"] == "step"
        assert rate.drops(first) >= 1
        assert first == 0 or rate.drops(first - 1) == 0


# Warm-up.


def test_warm_up_rises_in_equal_steps() -> None:
    """γ (t + 1) / 4 for t < 4."""
    assert rates(*range(6), learning_rate=1, warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_warm_up_multiplies_the_policy() -> None:
    """8 · ½^⌊t / 2⌋ · (t + 1) / 4 for t < 4: 8/4, 8·2/4, 4·3/4, 4, then 2."""
    assert rates(*range(5), policy="step", learning_rate=8, gamma=0.5, step_size=2, warmup_steps=4) == [2, 4, 3, 4, 2]


def test_warm_up_in_epochs() -> None:
    """Two epochs of 4 tasks: (t + 1) / 8."""
    expected = [0.125, 0.5, 1, 1]
    conf = {"learning_rate": 1, "warmup_steps": 2, "learning_rate_step_unit": "epochs"}
    assert rates(0, 3, 7, 8, tasks_per_epoch=4, **conf) == expected


@given(st.integers(1, 100), st.integers(1, 32), st.integers(1, 3))
def test_warm_up_never_passes_the_rate(examples: int, batch: int, epochs: int) -> None:
    conf = {"learning_rate": 1, "warmup_steps": epochs, "learning_rate_step_unit": "epochs"}
    tasks = range(-(-epochs * examples // batch) + 3)
    found = rates(*tasks, tasks_per_epoch=examples / batch, **conf)
    assert found == sorted(found)
    assert found[0] > 0
    assert found[-1] == 1
    assert max(found) == 1


def test_one_step_of_warm_up_is_none() -> None:
    assert rates(0, 1, learning_rate=1, warmup_steps=1) == [1, 1]


# Drops.


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"policy": "step", "step_size": 3}, [0, 0, 0, 1, 1, 1, 2]),
        ({"policy": "multistep", "step_values": (2, 3, 6)}, [0, 0, 1, 2, 2, 2, 3]),
        ({"policy": "fixed"}, [0] * 7),
        ({"policy": "exp"}, [0] * 7),
        ({"policy": "inv"}, [0] * 7),
        ({"policy": "fixed", "warmup_steps": 3}, [0] * 7),
    ],
)
def test_drops_are_counted_for_stepwise_policies(conf: dict[str, object], expected: list[int]) -> None:
    rate = LearningRate(SolverConf(**conf), 10)  # type: ignore[arg-type]
    assert [rate.drops(task) for task in range(7)] == expected


policies = st.sampled_from(
    [
        {"policy": "fixed"},
        {"policy": "inv", "gamma": 0.1},
        {"policy": "step", "step_size": 3},
        {"policy": "multistep", "step_values": (2, 5)},
        {"policy": "exp", "gamma": 0.9},
    ]
)


@given(policies, st.sampled_from(["tasks", "epochs"]), st.floats(0.5, 50), st.integers(0, 10_000))
def test_rates_are_positive_and_do_not_rise(
    policy: dict[str, object], unit: str, tasks_per_epoch: float, task: int
) -> None:
    conf = SolverConf(learning_rate=0.5, learning_rate_step_unit=unit, **policy)  # type: ignore[arg-type]
    rate = LearningRate(conf, tasks_per_epoch)
    assert 0 <= rate(task + 1) <= rate(task) <= 0.5
    assert rate(task) == LearningRate(conf, tasks_per_epoch)(task)  # a pure function of the task
