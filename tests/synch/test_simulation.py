"""Simulated learners: gradients are clipped, variables kept and exchanges counted as in training."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, SolverConf
from crossbow.synch import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    SynchronousEASGD,
    Trajectory,
    simulate,
)
from crossbow.synch.progress import ExchangeState


def test_who_waits_arrives_again_under_another_rule() -> None:
    progress = ExchangeState(Grouping(((0, 1), (2,))), 3)
    assert [progress.arrive(2) is None, progress.let_go(), progress.arrive(0) is None] == [False, [2], True]
    assert progress.follow(Grouping(((0,), (1, 2)))) == [0]
    merge = progress.arrive(0)
    assert merge is not None
    assert (merge.contributors, merge.arrival.staleness) == ((0,), 2)  # learner 2's came between
    assert (progress.let_go(), progress.clocks, progress.merges) == ([0], [1, 0, 1], 2)


def test_variables_that_every_learner_keeps() -> None:
    """Two weights from 8 on, the second kept: z has the mean of that. Half of both is left after a step.

    0: (4, 4), Δ = −4: z = (4, (4 + 8) / 2).   1: (4, 4), Δ = −4: z = (0, 4), and it goes on with (0, 4).
    0: (2, 2), Δ = −2: z = (−2, 3), and it goes on with (−2, 2).
    """
    made = simulate(
        AsynchronousSGD(), initial=[8.0, 8.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 1, 0],
        solver=SolverConf(learning_rate=0.5), variables=[1, 1], local_variables=[1],
    )  # fmt: skip
    assert made.base.tolist() == [[4, 6], [0, 4], [-2, 3]]
    assert made.replicas[-1].tolist() == [[-2, 2], [0, 4]]


def test_peers_count_their_exchanges() -> None:
    """τ = 2: the rate is ½ for two steps, then ¼; g = 1."""
    solver = SolverConf(learning_rate=0.5, policy="exp", gamma=0.5, learning_rate_step_unit="merges")
    made = simulate(
        Gossip(probability=0, tau=2),
        initial=[0.0],
        gradient=lambda *_: [1.0],
        learners=1,
        events=[0] * 4,
        solver=solver,
    )
    assert made.replicas.ravel().tolist() == [-0.5, -1.0, -1.25, -1.5]


def clipping(rule: Rule, limit: float | None, learners: int = 2, **options: Any) -> Trajectory:
    """From (6, 8), two variables; γ = ½. Learner 0's gradient is its weights, learner 1 has none. Each does a task."""
    return simulate(
        rule,
        initial=[6.0, 8.0],
        gradient=lambda weights, learner, task: weights * (learner == 0),
        learners=learners,
        events=range(learners),
        solver=SolverConf(learning_rate=0.5, clip_gradient_norm=limit),
        variables=[1, 1],
        **options,
    )


@pytest.mark.parametrize(
    ("rule", "z", "first"),
    [
        (SSGD(), (5.25, 7), (5.25, 7)),
        (Grouping(((0, 1),)), (5.25, 7), (5.25, 7)),
        (AsynchronousSGD(weight=0.5, sends="gradient"), (5.625, 7.5), (5.625, 7.5)),
        (SSP(), (5.25, 7), (5.25, 7)),
        (Hogwild(), (5.25, 7), (5.25, 7)),
        (SMA(), (6, 8), (5.25, 7)),
        (ModelAveraging(), (5.625, 7.5), (5.625, 7.5)),
        (AsynchronousSGD(), (5.25, 7), (5.25, 7)),
        (EASGD(alpha=0.5), (5.8125, 7.75), (5.625, 7.5)),
        (Gossip(probability=0), (5.625, 7.5), (5.25, 7)),
    ],
    ids=str,
)
def test_gradients_are_clipped_as_in_training(rule: Rule, z: tuple[float, ...], first: tuple[float, ...]) -> None:
    """At 2.5, as a whole. z, and what learner 0 holds when both have done a task.

    Where gradients are sent, the mean: (3, 4), by S-SGD and of a group, of length 5, so half of it is left, (1.5, 2),
    and z = (5.25, 7). One that is merged alone: (6, 8) of length 10, so a quarter, the same; with ω = ½ half as far,
    for ω weighs what is clipped. (Learner 1's is nothing.)
    Else the learner's own, a quarter of (6, 8): it steps to (5.25, 7), learner 1 stays at (6, 8). By SMA z does not
    move yet; the mean of both is (5.625, 7.5). By EASGD learner 0 and z meet there, and learner 1, which is (.375, .5)
    away, draws z by half of that.
    """
    made = clipping(rule, 2.5)
    assert made.base[-1].tolist() == list(z)
    assert made.replicas[-1, 0].tolist() == list(first)
    np.testing.assert_array_equal(clipping(rule, 10.0).base, clipping(rule, None).base)


def test_what_learners_keep_counts_in_the_norm() -> None:
    """The second variable is learner 0's own; its gradient is clipped as a whole yet, so it steps to (5.25, 7)."""
    made = clipping(AsynchronousSGD(), 2.5, local_variables=[1])
    assert made.replicas[-1].tolist() == [[5.25, 7], [5.25, 8]]
    assert made.base[-1].tolist() == [5.25, 7.5]


def test_a_clipped_gradient_is_what_the_velocity_sees() -> None:
    """g(w) = w from 2 on, γ = ½, momentum ½, limit ½, by S-SGD: v = −¼: 1.75.   v = −⅛ − ¼: 1.375."""
    made = simulate(
        SSGD(), initial=[2.0], gradient=lambda w, learner, task: w, learners=2, events=[0, 1, 0, 1],
        solver=SolverConf(learning_rate=0.5, momentum=0.5, clip_gradient_norm=0.5),
    )  # fmt: skip
    assert made.base.ravel().tolist() == [1.75, 1.375]


RECORDED = {
    SMA(): "1be8a55ff2b7",
    SMA(tau=2, base_momentum=0.25): "7132cd55f672",
    SynchronousEASGD(tau=3): "2c7ebea1f8e9",
    SSGD(): "0ffe84643323",
    ModelAveraging(tau=2): "1b02c28376bc",
    PolyakRuppert(alpha=0.25, tau=2): "7a3b1559a9b9",
    AsynchronousSGD("1/staleness"): "2b5b628fbafa",
    SSP(1): "fc453e93ef96",
    PartiallySynchronous(2): "c9d3a3c76583",
    EASGD(tau=2): "a9940fcd7d3c",
    Gossip(0.5): "543fb3939e62",
    Grouping(2): "d823665d69e5",
}
"""Digests of all base models and replicas, recorded before the simulator had a latency."""


@pytest.mark.parametrize(("rule", "digest"), RECORDED.items(), ids=str)
def test_without_a_latency_no_bit_has_changed(rule: Rule, digest: str) -> None:
    made = simulate(
        rule, initial=[1.0, -2.0], learners=3,
        gradient=lambda weights, learner, task: weights - np.array([task % 7 - 3, learner]) / 4,
        speeds=[1.0, 1.5, 2.0], events=60, solver=SolverConf(learning_rate=0.125, momentum=0.5),
        latency=0, bandwidth=None, bytes=10**9, leave=[], join=[],
    )  # fmt: skip
    assert hashlib.sha256(made.base.tobytes() + made.replicas.tobytes()).hexdigest()[:12] == digest
