"""The calls of a merge: means of what learners send, of their statistics, and their reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.compile import BoundStep
from crossbow.kernels import select_library
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.coefficients import tick_formulas
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import Replica
from crossbow.solver import Pace
from crossbow.synch import BarrierRule, ModelAveraging

DTYPE = np.dtype(np.float64)
SIZE = 5


def merging(rule: BarrierRule, learners: int = 4, devices: int = 2) -> Merging:
    library, _ = select_library("reference", DTYPE)
    return Merging(VectorArithmetic(library, DTYPE), rule, learners, adds_parts=devices > 1)


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE)


def replicas(count: int) -> list[Replica]:
    return [Replica(vector(i), vector(10 + i), None, (vector(20 + i), vector(30 + i))) for i in range(count)]


def run(steps: Sequence[BoundStep]) -> list[str]:
    for step in steps:
        step.call()
    return [step.operator for step in steps]


@pytest.mark.parametrize(("rule", "vectors"), [(SMA(), "weights"), (SSGD(), "gradient"), (ModelAveraging(), "weights")])
def test_what_is_sent_is_a_learners_own_vector(rule: BarrierRule, vectors: str) -> None:
    several = replicas(3)
    sent = merging(rule).sent(several)
    assert list(sent) == ["sent0", "sent1", "sent2"]
    assert all(sent[f"sent{i}"] is getattr(replica, vectors) for i, replica in enumerate(several))


def test_a_device_contributes_its_share_of_the_mean() -> None:
    """Of two of four learners: half of their mean."""
    several, made = replicas(2), merging(SMA())
    mean = np.full(SIZE, np.nan)
    assert run(made.sum_of_device({**made.sent(several), "mean": mean}, 2)) == ["sum of the device"]
    np.testing.assert_allclose(mean, (several[0].weights + several[1].weights) / 4)  # type: ignore[operator]
    assert made.mean("sent", 2) == {"sent0": 0.25, "sent1": 0.25}


@pytest.mark.parametrize(("rule", "after"), [(SMA(), False), (SSGD(), True), (ModelAveraging(), True)], ids=str)
@pytest.mark.parametrize("parity", [0, 1])
def test_statistics_match_what_is_sent(rule: BarrierRule, after: bool, parity: int) -> None:
    """Weights from before the last task, and their statistics; else those after it."""
    several, made, target = replicas(4), merging(rule), np.full(SIZE, np.nan)
    which = 1 - parity if after else parity
    assert made.statistics_after(parity) == which
    run(made.mean_statistics(several, parity, target))
    np.testing.assert_allclose(target, np.mean([replica.statistics[which] for replica in several], axis=0))


def test_statistics_of_a_slice() -> None:
    """Learners share the work; each computes its part, and no other."""
    several, target = replicas(4), np.full(SIZE, np.nan)
    run(merging(SMA()).mean_statistics(several, 0, target, slice(1, 3)))
    np.testing.assert_allclose(target[1:3], np.mean([r.statistics[0] for r in several], axis=0)[1:3])
    assert np.isnan(target[[0, 3, 4]]).all()


def test_a_reply_reads_the_vectors_of_its_rule() -> None:
    rule = ModelAveraging()
    formulas = tick_formulas(rule, SolverConf(), 4)
    reply = formulas.over(formulas.at(Pace(0.1, 0.0)))["reply"]
    vectors: dict[str, Any] = {"weights": vector(0), "base_next": vector(1), "base": vector(2), "gradient": vector(3)}
    assert run(merging(rule).reply(reply, vectors)) == ["reply"]
    np.testing.assert_array_equal(vectors["weights"], vectors["base_next"])
