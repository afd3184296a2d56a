"""The solver's step, against numbers worked by hand and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow import SolverConf
from crossbow.solver import Update, solver_step


def run(update: Update, **values: float) -> dict[str, float]:
    """The vectors, of one element each, after the update."""
    arrays = {name: np.array([float(value)]) for name, value in values.items()}
    update.apply(arrays)
    return {name: float(array[0]) for name, array in arrays.items()}


def test_plain_gradient_descent() -> None:
    """w = 3, g = 2, γ = ½: w ← 3 − ½·2 = 2."""
    update = solver_step(SolverConf(), 0.5)
    assert run(update, weights=3, gradient=2) == {"weights": 2, "gradient": 2}
    assert update.vectors == ("weights", "gradient")  # no velocity is kept


def test_weight_decay() -> None:
    """λ = ¼: w ← 3 − ½·(2 + ¼·3) = 3 − ½·2.75 = 1.625."""
    update = solver_step(SolverConf(weight_decay=0.25), 0.5)
    assert run(update, weights=3, gradient=2)["weights"] == 1.625


def test_momentum() -> None:
    """m = ½, γ = ½, v = −1: v ← ½·(−1) − ½·2 = −1.5; w ← 3 − 1.5 = 1.5."""
    update = solver_step(SolverConf(momentum=0.5), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.5, "gradient": 2, "velocity": -1.5}


def test_momentum_and_weight_decay() -> None:
    """λ = ¼: v ← ½·(−1) − ½·(2 + ¼·3) = −0.5 − 1.375 = −1.875; w ← 3 − 1.875 = 1.125. The decay is of w before."""
    update = solver_step(SolverConf(momentum=0.5, weight_decay=0.25), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.125, "gradient": 2, "velocity": -1.875}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_pull_towards_the_base(momentum: float) -> None:
    """With z = 5 and a pull of ¼, ¼·(3 − 5) = −½ is subtracted from the new w; the velocity knows nothing of it."""
    plain = run(solver_step(SolverConf(momentum=momentum), 0.5), weights=3, gradient=2, velocity=-1, base=5)
    pulled = run(solver_step(SolverConf(momentum=momentum), 0.5, pull=0.25), weights=3, gradient=2, velocity=-1, base=5)
    assert pulled == {**plain, "weights": plain["weights"] + 0.5}


def test_vectors_may_have_other_names() -> None:
    update = solver_step(
        SolverConf(momentum=0.5), 0.5, weights="base", gradient="total", velocity="base_velocity", pull=0.5, towards="z"
    )
    assert set(update.vectors) == {"base", "total", "base_velocity", "z"}


@pytest.mark.parametrize("conf", [SolverConf(), SolverConf(momentum=0.9), SolverConf(momentum=0.9, weight_decay=0.1)])
@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_the_shape_does_not_depend_on_the_rate(conf: SolverConf, pull: float) -> None:
    """Kernels are prepared once; a rate of 0 must not lose a term."""
    shapes = {solver_step(conf, rate, pull=pull).assignments for rate in (1.0, 0.1, 0.0)}
    assert len(shapes) == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_a_constant_rate_steps_as_pytorch(momentum: float, weight_decay: float) -> None:
    """PyTorch's velocity lacks the learning rate (v' = −v / γ); with a constant rate the weights are the same."""
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    start, gradients = generator.standard_normal(20), generator.standard_normal((12, 20))
    weight = torch.nn.Parameter(torch.tensor(start))
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    update = solver_step(SolverConf(momentum=momentum, weight_decay=weight_decay), 0.1)
    vectors = {"weights": start.copy(), "velocity": np.zeros(20), "gradient": np.zeros(20)}
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimiser.step()
        vectors["gradient"] = gradient
        update.apply(vectors)
        np.testing.assert_allclose(vectors["weights"], weight.detach().numpy(), rtol=1e-12)


def test_the_velocity_contains_the_rate() -> None:
    """As in Caffe: after a drop of the rate the old velocity runs out at its own size.

    m = ½: γ = 1, g = 4: v = −4, w = −4. γ = ¼: v = −2 − 1 = −3, w = −7. (PyTorch: v' = 2 + 4 = 6, w = −4 − 1.5 = −5.5.)
    """
    conf, values = SolverConf(momentum=0.5), {"weights": 0.0, "gradient": 4.0, "velocity": 0.0}
    values = run(solver_step(conf, 1.0), **values)
    values = run(solver_step(conf, 0.25), **values)
    assert (values["velocity"], values["weights"]) == (-3, -7)
