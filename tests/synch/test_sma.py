"""What holds for SMA whatever the gradients, and where it stops converging."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SMA, ConfigurationError, SolverConf
from crossbow.solver import Pace
from tests.combinations import one_in
from tests.synch.simulation import GradientOf, Simulation, Vector

SIZE = 5


@st.composite
def solvers(draw: st.DrawFn) -> SolverConf:
    momentum = draw(st.sampled_from([0.0, 0.5, 0.9]))
    return SolverConf(momentum=momentum, weight_decay=draw(st.sampled_from([0.0, 0.01])))


def random_gradients(seed: int) -> GradientOf:
    """Of a quadratic for each learner, with curvatures and minimum of its own."""
    generator = np.random.default_rng(seed)
    curvature, minimum = generator.uniform(0.1, 2, (6, SIZE)), generator.standard_normal((6, SIZE))
    return lambda learner, weights: curvature[learner] * (weights - minimum[learner])


def no_gradients(learner: int, weights: Vector) -> Vector:
    return np.zeros_like(weights)


def start(seed: int) -> Vector:
    return np.random.default_rng([seed, 1]).standard_normal(SIZE)


@given(st.integers(2, 6), st.integers(0, 100), solvers())
def test_with_alpha_of_one_kth_z_is_the_mean_before_the_step(learners: int, seed: int, solver: SolverConf) -> None:
    for rule in (SMA(alpha=1 / learners), SMA()):
        simulation, gradients = Simulation(rule, solver, learners, start(seed)), random_gradients(seed)
        for _ in range(4):
            mean = np.mean(simulation.weights, axis=0)
            simulation.tick(gradients, 0.1)
            np.testing.assert_allclose(simulation.base, mean, atol=1e-12)


@given(st.integers(1, 6), st.integers(0, 100), st.floats(0.01, 1), st.sampled_from([0.0, 0.5, 0.9]), solvers())
def test_a_tick_is_the_formula(learners: int, seed: int, alpha: float, mu: float, solver: SolverConf) -> None:
    """c_i = α (w_i − z); w_i ← w_i + v_i − c_i; z ← z + Σ c_i + μ (z − z_prev), v_i ← m v_i − γ (g_i + λ w_i)."""
    rule, rate = SMA(alpha=alpha, base_momentum=mu), 0.1
    simulation, gradients = Simulation(rule, solver, learners, start(seed)), random_gradients(seed)
    z = z_before = start(seed)
    w, v = [z.copy() for _ in range(learners)], [np.zeros(SIZE) for _ in range(learners)]
    for _ in range(3):
        c = [alpha * (w[i] - z) for i in range(learners)]
        for i in range(learners):
            v[i] = solver.momentum * v[i] - rate * (gradients(i, w[i]) + solver.weight_decay * w[i])
            w[i] = w[i] + v[i] - c[i]
        z, z_before = z + sum(c) + mu * (z - z_before), z
        simulation.tick(gradients, rate)
        np.testing.assert_allclose(simulation.base, z, atol=1e-12)
        for i in range(learners):
            np.testing.assert_allclose(simulation.weights[i], w[i], atol=1e-12)


@given(st.integers(1, 6), st.integers(0, 100), st.integers(1, 4))
def test_the_correction_moves_weight_between_replicas_and_z_only(learners: int, seed: int, tau: int) -> None:
    """Without gradients Σ w_i + z stays: what the replicas lose, z gains."""
    simulation = Simulation(SMA(tau=tau), SolverConf(), learners, start(seed))
    for i, weights in enumerate(simulation.weights):
        weights += start(seed + i + 1)
    total = sum(simulation.weights) + simulation.base
    for _ in range(5):
        simulation.tick(no_gradients, 0.1)
        np.testing.assert_allclose(sum(simulation.weights) + simulation.base, total, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 100))
def test_learners_that_see_the_same_stay_together(learners: int, seed: int) -> None:
    """Equal gradients: all replicas are one, and z follows it."""
    simulation = Simulation(SMA(), SolverConf(momentum=0.5), learners, start(seed))
    for step in range(5):
        gradient = start(seed + step + 1)
        simulation.tick(lambda learner, weights, gradient=gradient: gradient, 0.1)
        for weights in simulation.weights[1:]:
            np.testing.assert_array_equal(weights, simulation.weights[0])


def test_between_synchronisations_learners_are_alone() -> None:
    """With τ = 3 the first two steps know nothing of z."""
    rule, solver, pace = SMA(tau=3), SolverConf(momentum=0.5), Pace(0.1, 0.5)
    assert "base" not in rule.local_step(solver, pace, 2, synchronises=False).vectors
    assert "base" in rule.local_step(solver, pace, 2, synchronises=True).vectors
    assert rule.local_step(solver, pace, 2, synchronises=False) == rule.local_step(solver, pace, 7, synchronises=False)


def test_without_base_momentum_the_z_before_is_not_read() -> None:
    """It would be a vector more to pass over in every tick."""
    assert "base_previous" not in SMA().merge(SolverConf(), Pace(0.1, 0.0), 2).vectors
    assert "base_previous" in SMA(base_momentum=0.5).merge(SolverConf(), Pace(0.1, 0.0), 2).vectors


# Where α is too large.


def distance_after(rule: SMA, learners: int, ticks: int) -> float:
    """|mean of the replicas − z| after so many ticks without gradients, from 1."""
    simulation = Simulation(rule, SolverConf(), learners, np.zeros(1))
    for weights in simulation.weights:
        weights += 1
    for _ in range(ticks):
        simulation.tick(no_gradients, 0.1)
    return float(np.abs(np.mean(simulation.weights) - simulation.base[0]))


@pytest.mark.parametrize("learners", [1, 2, 3, 5, 8])
def test_the_bound_on_alpha_is_where_z_and_replicas_swing_apart(learners: int) -> None:
    """The distance d = mean − z follows d ← (1 − α (k + 1)) d: just below 2 / (k + 1) it dies out, above it grows."""
    bound = 2 / (learners + 1)
    allowed, refused = SMA(alpha=bound * 0.98), SMA(alpha=min(1.0, bound * 1.02))
    allowed.check_learners(learners)
    with pytest.raises(ConfigurationError):
        refused.check_learners(learners)
    assert distance_after(allowed, learners, 200) < 0.02
    if learners > 1:  # α > 1 is refused anyway
        assert distance_after(refused, learners, 200) > 50
    else:
        assert distance_after(refused, learners, 200) == 1  # exactly on it: for ever


@one_in(4)
@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("mu", [0.3, 0.9])
def test_with_base_momentum_the_bound_is_wider(learners: int, mu: float) -> None:
    """At the bound 2 (1 + μ) / (k + 1 + μ) the map of d and e has the eigenvalue −1."""
    bound = 2 * (1 + mu) / (learners + 1 + mu)
    allowed, refused = (SMA(alpha=bound * factor, base_momentum=mu) for factor in (0.98, 1.02))
    allowed.check_learners(learners)
    sentence = rf"< 2 \(1 \+ μ\)/\(k \+ 1 \+ μ\) = {bound:.4g} with k = {learners} learners and μ = {mu}, or"
    with pytest.raises(ConfigurationError, match=sentence):
        refused.check_learners(learners)
    assert distance_after(allowed, learners, 1000) < 0.02
    assert distance_after(refused, learners, 1000) > 50


@pytest.mark.parametrize("alpha", [None, 0.05])
@pytest.mark.parametrize(("learners", "mu"), [(1, 0.0), (1, 0.9), (8, 0.0), (8, 0.9)])
def test_how_fast_z_goes_where_all_steps_are_equal(learners: int, mu: float, alpha: float | None) -> None:
    """Let v be the step, d = w − z. When both move by s: s = v − α d and s = k α d + μ s, so s = v k / (k + 1 − μ)."""
    gradients, solver = (lambda learner, weights: -np.ones_like(weights)), SolverConf()
    simulation = Simulation(SMA(alpha=alpha, base_momentum=mu), solver, learners, np.zeros(1))
    for _ in range(500):
        simulation.tick(gradients, 1.0)
    speed = (simulation.base - simulation.previous).item()
    assert speed == pytest.approx(learners / (learners + 1 - mu), abs=1e-9)
