"""Learning-rate policies and cycles of the momentum: numbers worked by hand, and those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SolverConf
from crossbow.solver import Pace, Schedule


def rates(*tasks: int, tasks_per_epoch: float = 10, **solver: object) -> list[float]:
    schedule = Schedule(SolverConf(**solver), tasks_per_epoch)  # type: ignore[arg-type]
    return [schedule(task).rate for task in tasks]


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


COSINE = {"policy": "cosine", "learning_rate": 8, "decay_steps": 6}


def test_cosine() -> None:
    """8 · ½ (1 + cos(π t / 6)): the cosines of 0°, 60°, 90°, 120° and 180°; then 0."""
    assert rates(0, 2, 3, 4, 6, 7, 600, **COSINE) == pytest.approx([8, 6, 4, 2, 0, 0, 0], abs=1e-14)
    assert rates(0, 2, 6, 7, final_learning_rate=4, **COSINE) == pytest.approx([8, 7, 4, 4], rel=1e-14)


def test_linear() -> None:
    """8 − t · 8 / 4 in tasks, and 8 − t · 6 / 4 down to 2; epochs of 10 tasks."""
    linear = {"policy": "linear", "learning_rate": 8, "decay_steps": 4}
    assert rates(0, 1, 3, 4, 5, **linear) == [8, 6, 2, 0, 0]
    assert rates(0, 1, 3, 4, 5, final_learning_rate=2, **linear) == [8, 6.5, 3.5, 2, 2]
    assert rates(0, 10, 15, 40, learning_rate_step_unit="epochs", **linear) == [8, 6, 5, 0]


def test_a_decay_with_a_warm_up() -> None:
    """The warm-up multiplies the decaying rate by ¼, ½, ¾ and 1."""
    linear = {"policy": "linear", "learning_rate": 16, "decay_steps": 16, "warmup_steps": 4}
    assert rates(*range(6), **linear) == [4, 7.5, 10.5, 13, 12, 11]


@pytest.mark.parametrize(("restart", "expected"), [(True, [0, 1, 2]), (False, [0, 0, 0])])
def test_learners_need_not_restart(restart: bool, expected: list[int]) -> None:
    solver = SolverConf(policy="step", gamma=0.5, step_size=4, learning_rate_step_unit="tasks")
    assert [Schedule(solver, 10, restart=restart).restarts(task) for task in (3, 4, 8)] == expected


def test_a_decay_does_not_restart_learners() -> None:
    assert [Schedule(SolverConf(**COSINE), 10).restarts(task) for task in (0, 3, 9)] == [0, 0, 0]  # type: ignore[arg-type]


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
        schedule = Schedule(solver, examples / batch)
        assert schedule.restarts(first) == 1 or policy["policy"] == "step"
        assert schedule.restarts(first) >= 1
        assert first == 0 or schedule.restarts(first - 1) == 0


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


# Warm-up, then steps.

LSR = {"policy": "lsr", "learning_rate": 8, "gamma": 0.5, "warmup_steps": 4}


def test_lsr() -> None:
    """8 (t + 1) / 4 for t < 4, then 8 · ½^(steps that have been reached)."""
    assert rates(*range(9), step_values=(5, 7), **LSR) == [2, 4, 6, 8, 8, 4, 4, 2, 2]


def test_lsr_does_not_step_down_while_it_warms_up() -> None:
    """The steps at 1 and 2 count when the warm-up is over; with multistep they count at once."""
    assert rates(*range(6), step_values=(1, 2), **LSR) == [2, 4, 6, 8, 2, 2]
    assert rates(*range(6), step_values=(1, 2), **{**LSR, "policy": "multistep"}) == [2, 2, 1.5, 2, 2, 2]


@given(st.integers(1, 30), st.integers(0, 100), st.sampled_from(["tasks", "epochs"]))
def test_lsr_is_multistep_with_a_warm_up_before_the_first_step(warmup: int, task: int, unit: str) -> None:
    conf = {"gamma": 0.1, "warmup_steps": warmup, "step_values": (30, 40), "learning_rate_step_unit": unit}
    first, second = (Schedule(SolverConf(policy=policy, **conf), 2.5) for policy in ("lsr", "multistep"))  # type: ignore[arg-type]
    assert first(task) == second(task)
    assert first.restarts(task) == second.restarts(task)


# Cycles.

CYCLE = {"policy": "clr", "learning_rate": 1, "maximum_learning_rate": 5, "step_size": 4}
MOVING = {**CYCLE, "momentum": 0.875, "minimum_momentum": 0.375}
ONE = {**MOVING, "super_convergence": True, "annihilation_steps": 2, "final_learning_rate": 0.5}


def momenta(*tasks: int, tasks_per_epoch: float = 10, **solver: object) -> list[float]:
    schedule = Schedule(SolverConf(**solver), tasks_per_epoch)  # type: ignore[arg-type]
    return [schedule(task).momentum for task in tasks]


def test_a_cycle_is_a_triangle() -> None:
    """From 1 to 5 in 4 tasks, and back in 4."""
    assert rates(*range(18), **CYCLE) == [1, 2, 3, 4, 5, 4, 3, 2] * 2 + [1, 2]


def test_the_momentum_goes_the_other_way() -> None:
    """From ⅞ to ⅜ and back, an eighth a task; without a minimum it stays."""
    falling, rising = [0.875, 0.75, 0.625, 0.5], [0.375, 0.5, 0.625, 0.75]
    assert momenta(*range(12), **MOVING) == [*falling, *rising, *falling]
    assert momenta(*range(12), **CYCLE, momentum=0.875) == [0.875] * 12
    assert momenta(*range(3), **CYCLE) == [0, 0, 0]


def test_super_convergence_is_one_cycle_and_an_end() -> None:
    """Up, down, and in two tasks from 1 to ½, where it stays; the momentum is high again then."""
    assert rates(*range(13), **ONE) == [1, 2, 3, 4, 5, 4, 3, 2, 1, 0.75, 0.5, 0.5, 0.5]
    assert momenta(*range(8, 13), **ONE) == [0.875] * 5
    assert rates(10, 10_000, **{**ONE, "final_learning_rate": None}) == pytest.approx([1e-4, 1e-4], rel=1e-12)
    assert rates(9, 10, **{**ONE, "final_learning_rate": 0}) == [0.5, 0]


def test_a_cycle_in_epochs() -> None:
    """Half a cycle of 4 epochs of 2½ tasks is 10 tasks: 0.4 a task."""
    conf = {**CYCLE, "learning_rate_step_unit": "epochs"}
    assert rates(0, 5, 10, 15, 20, 25, tasks_per_epoch=2.5, **conf) == [1, 3, 5, 3, 1, 3]
    assert rates(1, tasks_per_epoch=2.5, **conf) == pytest.approx([1.4], rel=1e-12)


@given(
    st.integers(1, 9), st.integers(1, 9), st.booleans(), st.sampled_from(["tasks", "epochs"]), st.integers(0, 10_000)
)
def test_a_cycle_stays_between_its_ends(half: int, end: int, once: bool, unit: str, task: int) -> None:
    conf = {**MOVING, "step_size": half} | ({"super_convergence": True, "annihilation_steps": end} if once else {})
    schedule = Schedule(SolverConf(**conf, learning_rate_step_unit=unit), 7 / 3)  # type: ignore[arg-type]
    rate, momentum, *_ = schedule(task)
    assert (1e-4 if once else 1) <= rate <= 5
    assert 0.375 <= momentum <= 0.875
    assert schedule(task) == schedule(task)
    assert schedule.restarts(task) == 0


def test_a_pace_of_variables_with_a_multiplier() -> None:
    assert Pace(0.5, 0.9).times(0.25) == Pace(0.125, 0.9)


def scheduled(make: Callable[[Any, Any], Any], tasks: int) -> list[tuple[float, float]]:
    """PyTorch's rate and momentum at each step."""
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.875)
    scheduler, pace = make(torch.optim.lr_scheduler, optimiser), []
    for _ in range(tasks):
        (group,) = optimiser.param_groups
        pace.append((group["lr"], group["momentum"]))
        optimiser.step()
        scheduler.step()
    return pace


@pytest.mark.parametrize("half", [1, 4, 7])
def test_cycles_as_pytorch_has_them(half: int) -> None:
    expected = scheduled(
        lambda schedulers, optimiser: schedulers.CyclicLR(
            optimiser, base_lr=1.0, max_lr=5.0, step_size_up=half, base_momentum=0.375, max_momentum=0.875
        ),
        40,
    )
    schedule = Schedule(SolverConf(**{**MOVING, "step_size": half}), 10)  # type: ignore[arg-type]
    assert [schedule(task)[:2] for task in range(40)] == [pytest.approx(pace, rel=1e-12) for pace in expected]


@pytest.mark.parametrize(("half", "end"), [(4, 2), (10, 5), (3, 9)])
def test_super_convergence_as_pytorch_has_it(half: int, end: int) -> None:
    """Its OneCycleLR with three phases counts to the last step of each: 2 · half + end + 1 steps in all."""
    steps = 2 * half + end + 1
    expected = scheduled(
        lambda schedulers, optimiser: schedulers.OneCycleLR(
            optimiser,
            max_lr=5.0,
            div_factor=5.0,
            final_div_factor=1e4,
            total_steps=steps,
            pct_start=(half + 1) / steps,
            anneal_strategy="linear",
            three_phase=True,
            base_momentum=0.375,
            max_momentum=0.875,
        ),
        steps,
    )
    conf = {**ONE, "step_size": half, "annihilation_steps": end, "final_learning_rate": None}
    schedule = Schedule(SolverConf(**conf), 10)  # type: ignore[arg-type]
    assert [schedule(task)[:2] for task in range(steps)] == [pytest.approx(pace, rel=1e-9) for pace in expected]


@pytest.mark.parametrize(
    ("conf", "make"),
    [
        ({"policy": "step", "step_size": 3}, lambda s, o: s.StepLR(o, 3, gamma=0.1)),
        ({"policy": "multistep", "step_values": (2, 7)}, lambda s, o: s.MultiStepLR(o, [2, 7], gamma=0.1)),
        ({"policy": "exp", "gamma": 0.9}, lambda s, o: s.ExponentialLR(o, 0.9)),
        ({"policy": "cosine", "decay_steps": 11}, lambda s, o: s.CosineAnnealingLR(o, 11)),
        (
            {"policy": "cosine", "decay_steps": 20, "final_learning_rate": 0.25},
            lambda s, o: s.CosineAnnealingLR(o, 20, eta_min=0.25),
        ),
        (
            {"policy": "linear", "decay_steps": 7, "final_learning_rate": 0.5},
            lambda s, o: s.LinearLR(o, start_factor=1.0, end_factor=0.5, total_iters=7),
        ),
    ],
)
def test_policies_as_pytorch_has_them(conf: dict[str, object], make: Callable[[Any, Any], Any]) -> None:
    schedule = Schedule(SolverConf(learning_rate=1.0, momentum=0.875, **conf), 10)  # type: ignore[arg-type]
    assert [schedule(task)[:2] for task in range(12)] == [
        pytest.approx(pace, rel=1e-12, abs=1e-15) for pace in scheduled(make, 12)
    ]


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
        ({"policy": "lsr", "warmup_steps": 1, "step_values": (2, 3, 6)}, [0, 0, 1, 2, 2, 2, 3]),
        ({"policy": "lsr", "warmup_steps": 4, "step_values": (2, 3, 6)}, [0, 0, 0, 0, 2, 2, 3]),
        ({"policy": "clr", "step_size": 1, "maximum_learning_rate": 1}, [0] * 7),
    ],
)
def test_drops_are_counted_for_stepwise_policies(conf: dict[str, object], expected: list[int]) -> None:
    schedule = Schedule(SolverConf(**conf), 10)  # type: ignore[arg-type]
    assert [schedule.restarts(task) for task in range(7)] == expected


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
    if policy["policy"] != "fixed":
        policy = {**policy, "learning_rate_step_unit": unit}
    conf = SolverConf(learning_rate=0.5, momentum=0.75, **policy)  # type: ignore[arg-type]
    schedule = Schedule(conf, tasks_per_epoch)
    assert 0 <= schedule(task + 1).rate <= schedule(task).rate <= 0.5
    assert schedule(task).momentum == 0.75
    assert schedule(task) == Schedule(conf, tasks_per_epoch)(task)  # a pure function of the task


def test_a_multiplier_is_of_the_rate_alone() -> None:
    assert Pace(0.5, 0.25, tick=1, time=0.125).times(2.0) == Pace(1.0, 0.25, tick=1, time=0.125)
