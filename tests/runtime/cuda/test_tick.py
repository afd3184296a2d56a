"""The tick of a GPU's learners, in whatever order streams run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
)
from crossbow.synch import ModelAveraging, PolyakRuppert
from tests.kernels.cuda.fake import fake_cuda
from tests.runtime.cuda.test_training import assert_same, context, train
from tests.support import engine_of


@pytest.mark.parametrize(
    "rule",
    [
        SMA(tau=2),
        SSGD(),
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (SMA(), ModelAveraging(), PolyakRuppert(alpha=0.2))),
    ],
    ids=str,
)
def test_graphs_and_the_order_of_streams_change_no_bit(rule: Any) -> None:
    runs = [
        train("cuda:0", rule=rule, seed=seed, system={"graphs": graphs}) for seed in (0, 1) for graphs in (True, False)
    ]
    for other in runs[1:]:
        for name, value in runs[0].items():
            np.testing.assert_array_equal(other[name], value)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (SMA(), {"synchronise"}),
        (SMA(tau=2), {"synchronise", "local"}),
        (SSGD(), {"synchronise"}),
        (ModelAveraging(), {"synchronise", "send"}),
    ],
)
def test_a_learner_has_the_steps_of_its_rule(rule: Any, expected: set[str]) -> None:
    """Of both parities; and tasks for both input buffers."""
    with fake_cuda(), context("cuda:0", rule=rule) as running:
        learner: Any = engine_of(running).coordination.learners[0]
        assert set(learner.steps) == {(purpose, parity) for purpose in expected for parity in (0, 1)}
        purposes = {*(expected - {"send"}), "check"}
        assert set(learner.tasks) == {(p, parity, buffer) for p in purposes for parity in (0, 1) for buffer in (0, 1)}
        assert any(learner.steps["synchronise", 0].steps) == (not isinstance(rule, SSGD))


def test_learners_that_compute_with_z_read_the_buffer_of_the_tick() -> None:
    """S-SGD: what odd ticks read is the second buffer."""
    assert_same(train("cuda:0", rule=SSGD(), tasks=6), train("cpu", rule=SSGD(), tasks=6))
