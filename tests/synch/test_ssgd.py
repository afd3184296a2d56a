"""S-SGD is SGD: with one learner as it stands, with k learners on a batch k times as large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SMA, SSGD, SolverConf, TrainingUnit
from crossbow.solver import Pace, solver_step
from tests.support import blobs, context, perceptron
from tests.synch.simulation import Simulation

SOLVERS = st.builds(SolverConf, momentum=st.sampled_from([0.0, 0.5, 0.9]), weight_decay=st.sampled_from([0.0, 0.01]))


@given(st.integers(0, 100), SOLVERS)
def test_with_one_learner_it_is_plain_sgd(seed: int, solver: SolverConf) -> None:
    generator = np.random.default_rng(seed)
    start, gradients = generator.standard_normal(4), generator.standard_normal((6, 4))
    simulation = Simulation(SSGD(), solver, 1, start)
    plain = {"weights": start.copy(), "velocity": np.zeros(4)}
    for step, gradient in enumerate(gradients):
        rate = 0.1 / (step + 1)
        simulation.tick(lambda learner, weights, gradient=gradient: gradient, rate)
        solver_step(solver, Pace(rate, solver.momentum)).apply({**plain, "gradient": gradient})
        np.testing.assert_allclose(simulation.base, plain["weights"], atol=1e-12)


@given(st.integers(2, 6), st.integers(0, 100), SOLVERS)
def test_with_k_learners_it_is_sgd_with_their_mean_gradient(learners: int, seed: int, solver: SolverConf) -> None:
    generator = np.random.default_rng(seed)
    start, gradients = generator.standard_normal(4), generator.standard_normal((6, learners, 4))
    many, one = Simulation(SSGD(), solver, learners, start), Simulation(SSGD(), solver, 1, start)
    for row in gradients:
        many.tick(lambda learner, weights, row=row: row[learner], 0.1)
        one.tick(lambda learner, weights, row=row: row.mean(axis=0), 0.1)
        np.testing.assert_allclose(many.base, one.base, atol=1e-12)
        for weights in many.weights:
            np.testing.assert_array_equal(weights, many.base)


def test_learners_have_no_step_of_their_own() -> None:
    assert SSGD().local_step(SolverConf(momentum=0.9), Pace(0.1, 0.9), 3, synchronises=True).steps == ()
    assert SSGD().reads_base
    assert not SMA().reads_base


@pytest.mark.parametrize("learners", [2, 3])
def test_the_engine_with_k_learners_is_the_engine_with_a_batch_k_times_as_large(learners: int) -> None:
    """The tasks of a tick are the parts of the large batch."""
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    results = []
    for k, batch in ((learners, 4), (1, 4 * learners)):
        with context(
            perceptron(),
            data=blobs(60, 0),
            learners=k,
            batch_size=batch,
            precision="float64",
            solver=solver,
            rule=SSGD(),
        ) as running:
            history = running.train(10 * k, TrainingUnit.TASKS)
            results.append((running.variables, history.loss))
    (many, many_loss), (one, one_loss) = results
    assert many_loss == pytest.approx(one_loss, rel=1e-10)
    for name, value in one.items():
        np.testing.assert_allclose(many[name], value, atol=1e-12, err_msg=name)
