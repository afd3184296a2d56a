"""DiLoCo, compared with its paper's algorithm, with model averaging, and with PyTorch's optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow import ConfigurationError, SolverConf
from crossbow.solver import Pace
from crossbow.synch import DiLoCo, ModelAveraging, simulate
from crossbow.synch.progress import check_skip

Vector = NDArray[Any]
SIZE, TICKS = 4, 5


def pull(weights: Vector, learner: int, task: int) -> Vector:
    """The gradient of a quadratic with a minimum of its own for each learner and task."""
    minimum = np.random.default_rng([learner, task]).standard_normal(SIZE)
    return (weights - minimum) * np.arange(1, SIZE + 1)


def algorithm_1(
    start: Vector, learners: int, tau: int, inner: Callable[[Vector, Vector], Vector], rate: float, momentum: float
) -> list[Vector]:
    """The paper's Algorithm 1, in its own order: for round t, for worker i, for inner step h. Returns θ of each round.
    The outer optimiser is Nesterov's, with the update of Sutskever et al. (2013) as PyTorch implements it."""
    theta, buffer, rounds = start.copy(), np.zeros_like(start), []
    for t in range(TICKS):
        outer_gradients = []
        for i in range(learners):
            own = theta.copy()
            for h in range(tau):
                own = inner(own, pull(own, i, (t * tau + h) * learners + i))
            outer_gradients.append(theta - own)
        outer_gradient = sum(outer_gradients) / learners
        buffer = momentum * buffer + outer_gradient
        theta = theta - rate * (outer_gradient + momentum * buffer)
        rounds.append(theta)
    return rounds


@pytest.mark.parametrize(
    ("learners", "tau", "rate", "momentum"),
    [(1, 3, 0.7, 0.9), (3, 1, 0.5, 0.0), (4, 5, 0.7, 0.5), (2, 2, 2.0, 0.0), (2, 2, 1.0, 0.5)],
)
def test_it_is_algorithm_1(learners: int, tau: int, rate: float, momentum: float) -> None:
    start = np.linspace(-1, 1, SIZE)
    made = simulate(
        DiLoCo(tau, rate, momentum), initial=start, gradient=pull, learners=learners,
        events=[*range(learners)] * tau * TICKS, solver=SolverConf(learning_rate=0.05),
    )  # fmt: skip
    expected = algorithm_1(start, learners, tau, lambda own, gradient: own - 0.05 * gradient, rate, momentum)
    np.testing.assert_allclose(made.base, expected, rtol=0, atol=1e-12)


def test_without_an_optimiser_of_z_it_is_model_averaging() -> None:
    """Bit for bit, with momentum of the learners too."""
    runs = [
        simulate(
            rule, initial=np.ones(SIZE), gradient=pull, learners=3, events=[0, 1, 2] * 4 * TICKS,
            solver=SolverConf(learning_rate=0.05, momentum=0.9),
        )
        for rule in (DiLoCo(4, outer_learning_rate=1, outer_momentum=0), ModelAveraging(4))
    ]  # fmt: skip
    np.testing.assert_array_equal(runs[0].base, runs[1].base)
    np.testing.assert_array_equal(runs[0].replicas, runs[1].replicas)


def test_with_a_rate_of_one_z_is_not_read() -> None:
    merge = DiLoCo(outer_learning_rate=1, outer_momentum=0).merge(SolverConf(), Pace(0.1, 0.0), 2)
    assert merge.steps == (("base_next", {"mean": 1.0}),)


def test_equal_moves_are_amplified_by_the_momentum() -> None:
    """With η = 0.7, μ = 0.9 and a constant gradient, z moves by 7 local moves in a tick in the end."""
    made = simulate(
        DiLoCo(2), initial=[0.0], gradient=lambda *_: [1.0], learners=2, speeds=[1.0, 1.0], events=4 * 200,
        solver=SolverConf(learning_rate=0.5),
    )  # fmt: skip
    assert np.diff(made.base[:, 0])[-1] == pytest.approx(-7 * 2 * 0.5)


def test_the_step_of_z_is_pytorchs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    generator = np.random.default_rng(5)
    z, velocity = generator.standard_normal(SIZE), np.zeros(SIZE)
    parameter = torch.nn.Parameter(torch.tensor(z.copy()))
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for mean in generator.standard_normal((TICKS, SIZE)):
        following = np.empty(SIZE)
        vectors = {"base": z, "base_next": following, "base_velocity": velocity, "mean": mean}
        DiLoCo().merge(SolverConf(), Pace(0.1, 0.9), 2).apply(vectors)
        z = following
        parameter.grad = parameter.detach() - torch.tensor(mean)
        outer.step()
        np.testing.assert_allclose(z, parameter.detach().numpy(), rtol=0, atol=1e-14)


def test_no_variable_may_be_skipped() -> None:
    with pytest.raises(ConfigurationError, match=r"skip must be 0 under a rule .*rule=DiLoCo\(tau=3, "):
        check_skip(0.5, DiLoCo(tau=3), SolverConf())
