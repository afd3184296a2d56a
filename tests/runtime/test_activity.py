"""What a learner does, by its state. That training fills the state is tested in `test_observation`."""

from __future__ import annotations

from crossbow.kernels.interface import State
from crossbow.runtime.activity import Activity
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
