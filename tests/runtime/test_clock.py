from __future__ import annotations

import doctest
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.runtime import clock
from crossbow.runtime.clock import WorkClock, fitted_wpc, work_clock
from crossbow.types import ConfigurationError


def test_a_schedule_is_data() -> None:
    assert [tuple(task) for task in WorkClock(learners=2, tau=3).schedule(first=6)] == [
        (6, "local", 0),
        (7, "local", 1),
        (8, "local", 0),
        (9, "local", 1),
        (10, "synchronise", 0),
        (11, "synchronise", 1),
    ]


def test_the_examples() -> None:
    assert doctest.testmod(clock).failed == 0


@pytest.mark.parametrize(
    ("wpc", "tau", "learners", "fitted"), [(1, 1, 4, 4), (6, 1, 4, 8), (5, 1, 4, 4), (8, 3, 2, 6), (12, 1, 3, 12)]
)
def test_tasks_in_a_tick_of_another_number_of_learners(wpc: int, tau: int, learners: int, fitted: int) -> None:
    assert fitted_wpc(wpc, tau, learners) == fitted


@pytest.mark.parametrize(("tasks", "rounded"), [(-7, 0), (0, 0), (1, 6), (6, 6), (7, 12)])
def test_whole_ticks(tasks: int, rounded: int) -> None:
    assert WorkClock(learners=2, tau=3).whole_ticks(tasks) == rounded


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 50))
def test_task_n_goes_to_learner_n_mod_k(learners: int, tau: int, tick: int) -> None:
    schedule = list(WorkClock(learners, tau).schedule(tick * learners * tau))
    first = tick * learners * tau
    assert [task.task for task in schedule] == list(range(first, first + learners * tau))
    assert all(task.learner == task.task % learners for task in schedule)
    # The last task of every learner ends the tick for it, and no other.
    purposes = [task.purpose for task in schedule]
    assert purposes == ["local"] * (learners * (tau - 1)) + ["synchronise"] * learners


def test_without_a_barrier_a_task_is_for_whoever_is_free() -> None:
    clock = work_clock(2, 3, 4, barrier=False)
    assert list(clock.schedule(first=8)) == [(task, "train", None) for task in range(8, 12)]


def test_a_long_tick_is_not_written_down() -> None:
    tau = 10**30
    schedule = WorkClock(learners=2, tau=tau).schedule(first=6 * tau)
    assert list(itertools.islice(schedule, 3)) == [
        (6 * tau, "local", 0),
        (6 * tau + 1, "local", 1),
        (6 * tau + 2, "local", 0),
    ]


@pytest.mark.parametrize(
    ("learners", "tau", "wpc", "expected"), [(2, 1, None, 1), (2, 3, None, 3), (2, 1, 6, 3), (4, 1, 4, 1), (2, 3, 6, 3)]
)
def test_wpc_is_learners_times_tau(learners: int, tau: int, wpc: int | None, expected: int) -> None:
    clock = work_clock(learners, tau, wpc)
    assert (clock.learners, clock.tau, clock.tasks_per_tick) == (learners, expected, learners * expected)


@pytest.mark.parametrize(("wpc", "barrier"), [(None, True), (6, True), (6, False)])
def test_the_clock_of_a_host_knows_its_ticks(wpc: int | None, barrier: bool) -> None:
    clock = work_clock(2, 3, wpc, barrier=barrier, host_ticks=5)
    assert (clock.learners, clock.tau, clock.host_ticks) == (2, 3, 5)
    assert (clock.tasks_per_host_tick, clock.tasks_per_tick) == (6, 30)
    assert clock.whole_ticks(31) == 60
    assert len(list(clock.schedule(0))) == 6


def test_wpc_that_learners_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"multiple of the number of learners, 2, .*Received: wpc=5"):
        work_clock(2, 1, 5)


def test_wpc_that_contradicts_tau_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"wpc=8 with 2 learners means tau=4.*tau=3"):
        work_clock(2, 3, 8)
