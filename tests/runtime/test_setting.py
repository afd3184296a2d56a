"""What follows from the configurations for the learners of a run."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ModelConf, SolverConf, SystemConf
from crossbow.runtime.setting import CHECK_BATCH_SIZE, RunSetting
from crossbow.synch import SSP, AsynchronousSGD, ModelAveraging
from tests.support import context, engine_of


@pytest.fixture(scope="module")
def setting() -> RunSetting:
    with context(learners=2) as running:
        return engine_of(running).parts.setting


CLIPPING = SolverConf(clip_gradient_norm=1.0)


@pytest.mark.parametrize(
    ("rule", "solver", "own", "mean", "blocks"),
    [
        (SMA(), SolverConf(), False, False, True),
        (SMA(), CLIPPING, True, False, False),
        (ModelAveraging(), CLIPPING, True, False, False),
        (SSGD(), SolverConf(), False, False, False),
        (SSGD(), CLIPPING, False, True, False),
        (AsynchronousSGD(), CLIPPING, True, False, False),
        (SSP(), CLIPPING, False, True, False),
        (AsynchronousSGD(), SolverConf(), False, False, True),
    ],
)
def test_gradients_are_clipped_where_they_are_complete(
    setting: RunSetting, rule: Any, solver: SolverConf, own: bool, mean: bool, blocks: bool
) -> None:
    """Those that are sent as a mean, others by the learner. Blocks are neither sent nor measured as a whole."""
    found = dataclasses.replace(setting, rule=rule, solver=solver)
    assert (found.clips_own, found.clips_mean, found.in_blocks) == (own, mean, blocks)


def test_devices_have_a_base_model_each_under_a_barrier(setting: RunSetting) -> None:
    two = dataclasses.replace(setting, devices=2)
    assert (two.barrier, two.base_models, two.barrier_rule) == (True, 2, SMA())
    free = dataclasses.replace(two, rule=SSP())
    assert (free.barrier, free.base_models) == (False, 1)
    with pytest.raises(AssertionError):
        _ = free.barrier_rule


@pytest.mark.parametrize(
    ("order", "ranks", "devices", "expected"),
    [
        ("auto", 1, ("cpu",), True),
        ("auto", 16, ("cpu",), True),
        ("auto", 17, ("cpu",), False),
        ("chain", 17, ("cpu:0/2", "cpu:1/2"), True),
        ("tree", 1, ("cpu",), False),
        ("chain", 1, ("cuda:0",), False),
        ("auto", 1, ("cuda:0", "cuda:1"), False),
    ],
)
def test_the_order_of_a_sum(
    setting: RunSetting, order: Any, ranks: int, devices: tuple[str, ...], expected: bool
) -> None:
    several: Any = SimpleNamespace(size=ranks)
    system = SystemConf(sum_order=order, devices=devices)
    assert dataclasses.replace(setting, system=system, ranks=several).chained == expected


@pytest.mark.parametrize(
    ("given", "batch_size", "examples", "expected"),
    [
        (None, 4, 1000, CHECK_BATCH_SIZE),
        (None, 100, 1000, 100),
        (None, 4, 10, 10),
        (7, 100, 1000, 7),
        (7, 4, 5, 5),
    ],
)
def test_batches_of_a_test(
    setting: RunSetting, given: int | None, batch_size: int, examples: int, expected: int
) -> None:
    model = ModelConf(batch_size=batch_size, check_batch_size=given)
    assert dataclasses.replace(setting, model=model).check_batch_size(examples) == expected


def test_the_type_is_that_of_the_system() -> None:
    with context(precision="float64") as running:
        assert engine_of(running).parts.setting.dtype == np.float64
