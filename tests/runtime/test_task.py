"""Tasks and their results are values."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from crossbow.runtime.task import Completed, Failed, Purpose, Task, check_loss
from crossbow.solver import Pace
from crossbow.types import NonFiniteLossError


def task(purpose: Purpose = "local", number: int = 7, tick: int = 3) -> Task:
    return Task(purpose, number, tick, 2, 4, Pace(0.25, 0.9), np.array([1.0, 2.0]))


@pytest.mark.parametrize(("tick", "parity"), [(0, 0), (1, 1), (2, 0), (7, 1)])
def test_the_parity_selects_a_buffer_and_a_task_list(tick: int, parity: int) -> None:
    assert (task(tick=tick).parity, task("check", tick=tick).key) == (parity, ("check", parity))


def test_tasks_and_results_can_be_sent_to_another_process() -> None:
    """A remote learner needs that."""
    again = pickle.loads(pickle.dumps(task()))
    assert again[:-1] == task()[:-1]
    np.testing.assert_array_equal(again.coefficients, task().coefficients)
    for result in (Completed(3, 0.5, None, 4, 1, 0.25), Failed(3, 1, "conv", None)):
        assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize("loss", [0.0, -1.0, 1e38])
def test_a_finite_loss_is_right(loss: float) -> None:
    check_loss(task(), loss)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_names_task_and_learning_rate(loss: float) -> None:
    with pytest.raises(NonFiniteLossError, match=rf"^the loss became {loss} in task 7 \(learning rate 0\.25\)\. Lower"):
        check_loss(task(), loss)
    with pytest.raises(NonFiniteLossError, match=rf"^the test's loss became {loss} in batch 7 of the check set$"):
        check_loss(task("check"), loss)
