"""The solver's step, against numbers worked by hand and against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SolverConf
from crossbow.solver import Pace, Update, solver_step


def step(solver: SolverConf, rate: float, **names: Any) -> Update:
    """The step at the solver's own momentum."""
    return solver_step(solver, Pace(rate, solver.momentum), **names)


def run(update: Update, **values: float) -> dict[str, float]:
    """The vectors, of one element each, after the update."""
    arrays = {name: np.array([float(value)]) for name, value in values.items()}
    update.apply(arrays)
    return {name: float(array[0]) for name, array in arrays.items()}


def test_plain_gradient_descent() -> None:
    """w = 3, g = 2, γ = ½: w ← 3 − ½·2 = 2."""
    update = step(SolverConf(), 0.5)
    assert run(update, weights=3, gradient=2) == {"weights": 2, "gradient": 2}
    assert update.vectors == ("weights", "gradient")  # no velocity is kept


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("method", ["sgd", "adam", "adamw", "rmsprop", "adagrad"])
def test_only_a_step_with_momentum_depends_on_it(method: str, momentum: float) -> None:
    takes_it = method in ("sgd", "rmsprop")
    solver = SolverConf(method=method, momentum=momentum if takes_it else 0.0)
    assert step(solver, 0.5).depends_on == ({"rate", "momentum"} if momentum and takes_it else {"rate"})


def test_weight_decay() -> None:
    """λ = ¼: w ← 3 − ½·(2 + ¼·3) = 3 − ½·2.75 = 1.625."""
    update = step(SolverConf(weight_decay=0.25), 0.5)
    assert run(update, weights=3, gradient=2)["weights"] == 1.625


def test_momentum() -> None:
    """m = ½, γ = ½, v = −1: v ← ½·(−1) − ½·2 = −1.5; w ← 3 − 1.5 = 1.5."""
    update = step(SolverConf(momentum=0.5), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.5, "gradient": 2, "velocity": -1.5}


def test_momentum_and_weight_decay() -> None:
    """λ = ¼: v ← ½·(−1) − ½·(2 + ¼·3) = −0.5 − 1.375 = −1.875; w ← 3 − 1.875 = 1.125. The decay is of w before."""
    update = step(SolverConf(momentum=0.5, weight_decay=0.25), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.125, "gradient": 2, "velocity": -1.875}


def test_nesterov() -> None:
    """m = ½, γ = ½, v = −1: v ← ½·(−1) − ½·2 = −1.5; w ← 3 + ½·(−1.5) − ½·2 = 1.25."""
    update = step(SolverConf(momentum=0.5, momentum_method="nesterov"), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.25, "gradient": 2, "velocity": -1.5}


def test_nesterov_as_caffe_writes_it() -> None:
    """w ← w + (1 + m) v − m v_before; with λ = ¼ the decay counts twice, as the gradient does.

    v ← ½·(−1) − ½·(2 + ¼·3) = −1.875; w ← 3 + 1.5·(−1.875) − ½·(−1) = 0.6875.
    """
    update = step(SolverConf(momentum=0.5, momentum_method="nesterov", weight_decay=0.25), 0.5)
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 0.6875, "gradient": 2, "velocity": -1.875}


@pytest.mark.parametrize(("weight", "expected"), [(3.0, 1.875), (-3.0, -3.875), (0.0, -1.0)])
def test_l1(weight: float, expected: float) -> None:
    """λ = ¼: w ← w − ½·(2 + ¼·sign(w)): 3 − 1 − ⅛, −3 − 1 + ⅛, and 0 − 1, as the sign of 0 is 0."""
    update = step(SolverConf(weight_decay=0.25, regularisation="l1"), 0.5)
    assert run(update, weights=weight, gradient=2)["weights"] == expected
    assert update.vectors == ("weights", "gradient")


def test_l1_with_momentum() -> None:
    """λ = ¼, m = ½, w = −3: d = 2 − ¼ = 1.75; v ← ½·(−1) − ½·1.75 = −1.375; w ← −4.375, or −3 − .6875 − .875."""
    values = {"weights": -3, "gradient": 2, "velocity": -1}
    for method, weight in (("polyak", -4.375), ("nesterov", -4.5625)):
        conf = SolverConf(momentum=0.5, weight_decay=0.25, regularisation="l1", momentum_method=method)
        assert run(step(conf, 0.5), **values) == {"weights": weight, "gradient": 2, "velocity": -1.375}


def test_l1_is_of_the_vector_that_is_stepped() -> None:
    """That of z, under a rule that merges gradients."""
    names = {"weights": "base", "gradient": "total", "state": "base_", "into": "base_next"}
    update = step(SolverConf(weight_decay=0.25, regularisation="l1"), 0.5, **names)
    assert run(update, base=-4, total=2, base_next=7) == {"base": -4, "total": 2, "base_next": -4.875}


def test_the_momentum_is_that_of_the_pace() -> None:
    """The solver says only that there is a velocity: ¼·(−1) − ½·2 = −1.25."""
    update = solver_step(SolverConf(momentum=0.5), Pace(0.5, 0.25))
    assert run(update, weights=3, gradient=2, velocity=-1) == {"weights": 1.75, "gradient": 2, "velocity": -1.25}
    assert solver_step(SolverConf(momentum=0.5), Pace(0.5, 0.0)).assignments == update.assignments


@pytest.mark.parametrize(
    "conf",
    [
        SolverConf(),
        SolverConf(momentum=0.5),
        SolverConf(momentum=0.5, momentum_method="nesterov", weight_decay=0.25),
        SolverConf(momentum=0.5, momentum_method="nesterov", weight_decay=0.25, regularisation="l1"),
    ],
)
def test_pull_towards_the_base(conf: SolverConf) -> None:
    """With z = 5 and a pull of ¼, ¼·(3 − 5) = −½ is subtracted from the new w; the velocity knows nothing of it."""
    plain = run(step(conf, 0.5), weights=3, gradient=2, velocity=-1, base=5)
    pulled = run(step(conf, 0.5, pull=0.25), weights=3, gradient=2, velocity=-1, base=5)
    assert pulled == {**plain, "weights": plain["weights"] + 0.5}


def test_vectors_may_have_other_names() -> None:
    update = step(SolverConf(momentum=0.5), 0.5, weights="base", gradient="total", state="base_", pull=0.5, towards="z")
    assert set(update.vectors) == {"base", "total", "base_velocity", "z"}


@pytest.mark.parametrize(
    "conf",
    [
        SolverConf(),
        SolverConf(momentum=0.9),
        SolverConf(momentum=0.9, weight_decay=0.1),
        SolverConf(momentum=0.9, weight_decay=0.1, momentum_method="nesterov"),
        SolverConf(momentum=0.9, weight_decay=0.1, momentum_method="nesterov", regularisation="l1"),
    ],
)
@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_the_shape_does_not_depend_on_the_rate(conf: SolverConf, pull: float) -> None:
    """Kernels are prepared once; a rate of 0 must not lose a term."""
    shapes = {step(conf, rate, pull=pull).assignments for rate in (1.0, 0.1, 0.0)}
    assert len(shapes) == 1


METHODS = [(0.0, "polyak"), (0.9, "polyak"), (0.9, "nesterov")]


@pytest.mark.parametrize(("momentum", "method"), METHODS)
@pytest.mark.parametrize(("weight_decay", "regularisation"), [(0.0, "l2"), (0.05, "l2"), (0.05, "l1")])
def test_a_constant_rate_steps_as_pytorch(
    momentum: float, method: str, weight_decay: float, regularisation: str
) -> None:
    """PyTorch's velocity lacks the learning rate (v' = −v / γ); with a constant rate the weights are the same."""
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    generator = np.random.default_rng(0)
    start, gradients = generator.standard_normal(20), generator.standard_normal((12, 20))
    weight = torch.nn.Parameter(torch.tensor(start))
    decay = weight_decay if regularisation == "l2" else 0.0
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay, nesterov=method == "nesterov")
    conf = SolverConf(
        momentum=momentum, momentum_method=method, weight_decay=weight_decay, regularisation=regularisation
    )
    update = step(conf, 0.1)
    vectors = {"weights": start.copy(), "velocity": np.zeros(20), "gradient": np.zeros(20)}
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        if regularisation == "l1":  # which PyTorch leaves to the loss
            weight.grad += weight_decay * torch.sign(weight.detach())
        optimiser.step()
        vectors["gradient"] = gradient
        update.apply(vectors)
        np.testing.assert_allclose(vectors["weights"], weight.detach().numpy(), rtol=1e-12)


def test_the_velocity_contains_the_rate() -> None:
    """As in Caffe: after a drop of the rate the old velocity runs out at its own size.

    m = ½: γ = 1, g = 4: v = −4, w = −4. γ = ¼: v = −2 − 1 = −3, w = −7. (PyTorch: v' = 2 + 4 = 6, w = −4 − 1.5 = −5.5.)
    """
    conf, values = SolverConf(momentum=0.5), {"weights": 0.0, "gradient": 4.0, "velocity": 0.0}
    values = run(step(conf, 1.0), **values)
    values = run(step(conf, 0.25), **values)
    assert (values["velocity"], values["weights"]) == (-3, -7)
