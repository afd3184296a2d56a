"""What a learner does, by its state. That training fills the state is tested in `test_observation`."""

from __future__ import annotations

from crossbow.kernels.interface import State
from crossbow.runtime.activity import Activity, Spent
from crossbow.runtime.memory import new_state


def test_doing_follows_the_task_and_its_state() -> None:
    state = new_state()
    activity = Activity(state)
    assert activity.doing == "no task"
    activity.begin()
    assert activity.doing == "computing"
    for since, doing in ((123, "waiting"), (-123, "averaging"), (0, "computing")):
        state[State.SINCE] = since
        assert activity.doing == doing
    state[State.SINCE] = -5  # left by the last wait of a task
    activity.begin()
    assert activity.doing == "computing"
    state[State.SINCE] = 5  # left by a task list that was aborted
    activity.exchange()
    assert activity.doing == "averaging"
    activity.end()
    assert activity.doing == "no task"


def test_the_time_of_tasks_adds_up() -> None:
    """The state has the sums of all tasks, in nanoseconds, without the exchanges after the task lists."""
    state = new_state()
    activity = Activity(state)
    assert activity.spent == Spent()
    state[[State.WAITED, State.AVERAGED]] = 500_000_000, 250_000_000
    activity.add(2.0, 0.5, 8)
    assert activity.spent == Spent(2.0, 0.5, 0.75, 0.5, 8)
    state[[State.WAITED, State.AVERAGED]] = 750_000_000, 500_000_000
    activity.add(1.0, 0.25, 4)
    assert activity.spent == Spent(3.0, 0.75, 1.25, 0.75, 12)
