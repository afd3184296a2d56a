"""Dropout's mask depends on seed, task and position, and on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels import why_not_compiled
from crossbow.kernels.random import keep_mask
from crossbow.ops import Dropout
from crossbow.testing import run_operator
from crossbow.types import Phase

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
devices = pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
SHAPE = (3, 5, 4, 7)


def mask(device: str = "reference", seed: int = 0, task: int = 0, ratio: float = 0.4) -> NDArray[Any]:
    run = run_operator(Dropout(ratio=ratio), [np.ones(SHAPE)], device=device, seed=seed, task=task)
    # The gradient of a sum is the mask itself: drawn again, not kept.
    np.testing.assert_array_equal(run.outputs[0], run.input_gradients[0])
    return run.outputs[0] != 0


@devices
@pytest.mark.parametrize("task", [0, 1, 12345, 2**32 + 3])
@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1])
def test_mask_is_numbered_in_nchw_order(device: str, task: int, seed: int) -> None:
    expected = keep_mask(int(np.prod(SHAPE)), 0.4, seed, key=0, task=task).reshape(SHAPE)
    np.testing.assert_array_equal(mask(device, seed, task), expected)


@devices
def test_same_seed_and_task_same_mask(device: str) -> None:
    np.testing.assert_array_equal(mask(device, seed=3, task=5), mask(device, seed=3, task=5))


@devices
def test_mask_differs_between_tasks_and_seeds(device: str) -> None:
    masks = [mask(device, seed, task) for seed in (0, 1) for task in (0, 1, 2**32)]
    assert len({m.tobytes() for m in masks}) == len(masks)


@devices
def test_kept_elements_are_scaled_up(device: str) -> None:
    run = run_operator(Dropout(ratio=0.75), [np.ones((4, 1000))], device=device)
    assert set(np.unique(run.outputs[0])) == {0.0, 4.0}
    assert abs(run.outputs[0].mean() - 1) < 0.1


@devices
def test_a_fraction_of_ratio_is_dropped(device: str) -> None:
    run = run_operator(Dropout(ratio=0.4), [np.ones((100, 1000))], device=device, phase=Phase.TRAIN)
    assert abs(np.mean(run.outputs[0] == 0) - 0.4) < 0.005


@devices
def test_checking_drops_nothing(device: str) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    run = run_operator(Dropout(), [x], device=device, phase=Phase.CHECK)
    np.testing.assert_array_equal(run.outputs[0], x)
