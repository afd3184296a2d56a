"""Adaptive steps: trajectories worked by hand, and those of PyTorch's optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import SolverConf
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import AdaptiveStep, CountStep
from crossbow.solver import Pace, Update, solver_step
from crossbow.solver.adaptation import STEP, Adaptation, StepCount


def step(solver: SolverConf, rate: float | None = None, **names: Any) -> Update:
    """The step at the solver's own rate and momentum."""
    return solver_step(solver, Pace(solver.learning_rate if rate is None else rate, solver.momentum), **names)


def start(*weights: float) -> dict[str, Any]:
    """Vectors of a learner before its first step."""
    zeros = {name: np.zeros(len(weights)) for name in ("gradient", "velocity", "second_moment")}
    return {"weights": np.array(weights), **zeros, "step_count": np.zeros(1)}


def run(solver: SolverConf, gradients: list[float], weight: float = 1.0) -> list[float]:
    """The weight after each step."""
    vectors, update, trajectory = start(weight), step(solver), []
    for gradient in gradients:
        vectors["gradient"][0] = gradient
        update.apply(vectors)
        trajectory.append(float(vectors["weights"][0]))
    return trajectory


def test_adam_worked_by_hand() -> None:
    """β₁ = ½, β₂ = ¾, γ = 1, ε = 1; the gradients are 2 and −4.

    1: v = 1, s = 1; v / (1 − ½) = 2, s / (1 − ¾) = 4; w = 1 − 2 / (2 + 1) = ⅓.
    2: v = ½ − 2 = −1.5, s = ¾ + 4 = 4.75; v / ¾ = −2, s / (7/16) = 76/7; w = ⅓ + 2 / (√(76/7) + 1).
    """
    solver = SolverConf(method="adam", learning_rate=1.0, beta1=0.5, beta2=0.75, epsilon=1.0)
    expected = [1 / 3, 1 / 3 + 2 / (np.sqrt(76 / 7) + 1)]
    np.testing.assert_allclose(run(solver, [2, -4]), expected, rtol=1e-14)


def test_the_weight_decay_of_adam_is_in_its_moments_and_that_of_adamw_is_not() -> None:
    """λ = ½, w = 4, g = 1, γ = ½, β = 0, ε = 1: adam divides d = 1 + 2 = 3 by 3 + 1, so w = 4 − ½ · ¾ = 3.625;
    adamw keeps ¾ of w, and divides 1 by 1 + 1, so w = 3 − ½ · ½ = 2.75."""
    common: dict[str, Any] = {"learning_rate": 0.5, "beta1": 0, "beta2": 0, "epsilon": 1.0, "weight_decay": 0.5}
    assert run(SolverConf(method="adam", **common), [1], 4.0) == [3.625]
    assert run(SolverConf(method="adamw", **common), [1], 4.0) == [2.75]


def test_rmsprop_worked_by_hand() -> None:
    """ρ = ¾, γ = 1, ε = 1, gradients 2 and 0: s = 1, then ¾. Without momentum the second step is 0; with ½ it is half
    of the first, 2 / (1 + 1) = 1."""
    common: dict[str, Any] = {"method": "rmsprop", "learning_rate": 1.0, "rho": 0.75, "epsilon": 1.0}
    assert run(SolverConf(**common), [2, 0], 4.0) == [3.0, 3.0]
    assert run(SolverConf(**common, momentum=0.5), [2, 0], 4.0) == [3.0, 2.5]


def test_adagrad_worked_by_hand() -> None:
    """γ = 1, ε = 1, gradients 3 and 4: 3 / (√9 + 1) = ¾, then 4 / (√25 + 1) = ⅔."""
    trajectory = run(SolverConf(method="adagrad", learning_rate=1.0, epsilon=1.0), [3, 4], 2.0)
    np.testing.assert_allclose(trajectory, [1.25, 1.25 - 2 / 3], rtol=1e-15)


def test_the_velocity_of_rmsprop_lacks_the_rate() -> None:
    """Unlike that of sgd: when the rate drops, so does the step at once, as in PyTorch."""
    solver, vectors = SolverConf(method="rmsprop", momentum=0.5, rho=0.0, epsilon=1.0), start(4.0)
    vectors["gradient"][0] = 1.0
    step(solver, 1.0).apply(vectors)
    vectors["gradient"][0] = 0.0
    step(solver, 0.25).apply(vectors)
    assert (vectors["velocity"].tolist(), vectors["weights"].tolist()) == ([0.25], [4 - 0.5 - 0.25 * 0.25])


ORACLES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("Adam", "adam", {}, {}),
    ("Adam", "adam", {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-2, "weight_decay": 0.1},
     {"betas": (0.8, 0.9), "eps": 1e-2, "weight_decay": 0.1}),
    ("AdamW", "adamw", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    ("AdamW", "adamw", {}, {"weight_decay": 0.0}),
    ("RMSprop", "rmsprop", {}, {}),
    ("RMSprop", "rmsprop", {"rho": 0.9, "momentum": 0.9, "weight_decay": 0.1},
     {"alpha": 0.9, "momentum": 0.9, "weight_decay": 0.1}),
    ("Adagrad", "adagrad", {"epsilon": 1e-10}, {}),
    ("Adagrad", "adagrad", {"weight_decay": 0.1}, {"eps": 1e-8, "weight_decay": 0.1}),
]  # fmt: skip
"""PyTorch's class and arguments, and the method and fields that are the same."""


@pytest.mark.parametrize(("name", "method", "fields", "arguments"), ORACLES)
@pytest.mark.parametrize("kernels", ["update", "reference"])
def test_fifty_steps_are_those_of_pytorch(
    name: str, method: str, fields: dict[str, Any], arguments: dict[str, Any], kernels: str
) -> None:
    """In float64, to twelve digits; the learning rate is PyTorch's default, and halves after 25 steps."""
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    generator = np.random.default_rng(0)
    weights, gradients = generator.standard_normal(20), generator.standard_normal((50, 20))
    gradients[:, 0] = 0.0  # a weight whose gradient is always 0
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimiser = getattr(torch.optim, name)([parameter], **arguments)
    solver, vectors = SolverConf(method=method, **fields), start(*weights)
    first = optimiser.param_groups[0]["lr"]
    assert method == "rmsprop" or first == solver.learning_rate
    for number, gradient in enumerate(gradients):
        rate = first / (1 if number < 25 else 2)
        optimiser.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient)
        optimiser.step()
        vectors["gradient"][...] = gradient
        update = step(solver, rate)
        update.apply(vectors) if kernels == "update" else by_kernels(update, vectors)
        np.testing.assert_allclose(vectors["weights"], parameter.detach().numpy(), rtol=1e-12, atol=1e-14)


def by_kernels(update: Update, vectors: dict[str, Any]) -> None:
    """Perform an update as the engine does: count the step, then make it."""
    library, correction = Reference(np.float64), np.ones(2)
    assert update.adaptation is not None
    if update.count is not None:
        counting = CountStep(update.count.beta1, update.count.beta2)
        for call in library.prepare(counting).bind({"step_count": vectors["step_count"], "correction": correction}):
            call()
    (assignment,) = update.assignments
    kernel = library.prepare(AdaptiveStep(update.adaptation.form, assignment, np.dtype(np.float64)))
    used = {name: vectors[name] for name in update.vectors}
    for call in kernel.bind({**used, "coefficients": np.array(update.coefficients), "correction": correction}):
        call()


# The form of an update


def test_an_update_lists_its_terms_in_the_order_of_its_coefficients() -> None:
    solver = SolverConf(method="adam", weight_decay=0.25, beta1=0.5, beta2=0.75, epsilon=0.125)
    update = step(solver, 0.5, pull=0.25)
    assert update.terms == ("gradient", "weights", "", "", "", "", "", "weights", STEP, "base")
    assert update.coefficients == [1.0, 0.25, 0.75, 0.25, 0.125, 0.5, 0.5, 0.75, -0.5, 0.25]
    assert update.vectors == ("gradient", "weights", "second_moment", "velocity", "base")
    assert update.written == ("second_moment", "velocity", "weights")
    assert update.count == StepCount("step_count", 0.5, 0.75)


def test_other_updates_count_no_steps() -> None:
    for method in ("sgd", "rmsprop", "adagrad"):
        assert step(SolverConf(method=method)).count is None
    for solver in (SolverConf(method="adagrad"), SolverConf(method="rmsprop", momentum=0.0)):
        assert step(solver).vectors == ("gradient", "second_moment", "weights")


def test_z_has_its_own_vectors() -> None:
    names = {"weights": "base", "gradient": "mean", "state": "base_", "into": "base_next"}
    update = step(SolverConf(method="adamw"), **names)
    assert update.vectors == ("mean", "base_second_moment", "base_velocity", "base_next", "base")
    assert update.count is not None
    assert update.count.name == "base_step_count"


def test_the_gradient_is_expanded() -> None:
    update = step(SolverConf(method="adam", weight_decay=0.1)).expand("gradient", {"sent0": 0.5, "sent1": 0.25})
    assert update.adaptation is not None
    assert update.adaptation.descent == {"sent0": 0.5, "sent1": 0.25, "weights": 0.1}
    assert update.steps == step(SolverConf(method="adam", weight_decay=0.1)).steps


@pytest.mark.parametrize("method", ["adam", "adamw", "rmsprop", "adagrad"])
def test_the_form_does_not_depend_on_the_rate(method: str) -> None:
    """Kernels are prepared once."""
    solver = SolverConf(method=method, weight_decay=0.1)
    forms = {(u.adaptation.form, u.assignments) for u in (step(solver, rate) for rate in (1.0, 0.0)) if u.adaptation}
    assert len(forms) == 1


def test_the_pull_towards_the_base_adds_to_the_step() -> None:
    solver, results = SolverConf(method="adamw", weight_decay=0.5, learning_rate=0.5), []
    for pull in (0.0, 0.25):
        vectors = {**start(3.0), "base": np.array([5.0])}
        vectors["gradient"][0] = 2.0
        step(solver, pull=pull).apply(vectors)
        results.append(vectors["weights"][0])
    assert results[1] == pytest.approx(results[0] + 0.25 * 2, rel=1e-15)


def test_a_step_may_be_counted_before() -> None:
    """Parts of a vector are one step: the correction is given, and nothing is counted."""
    solver, whole, parts = SolverConf(method="adam", learning_rate=0.5), start(1.0, 2.0), start(1.0, 2.0)
    for vectors in (whole, parts):
        vectors["gradient"][...] = 3.0, -1.0
    update = step(solver)
    update.apply(whole)
    assert update.count is not None
    correction = update.count.advance(parts["step_count"])
    for place in (slice(0, 1), slice(1, 2)):
        update.apply({name: vector[place] for name, vector in parts.items()}, correction)
    assert parts["step_count"] == whole["step_count"] == 1
    np.testing.assert_array_equal(parts["weights"], whole["weights"])


def test_an_adaptation_without_velocity_writes_only_its_second_moment() -> None:
    adaptation = Adaptation({"g": 1.0}, "s", decay=1.0, gain=1.0, epsilon=1.0)
    assert adaptation.state == ("s",)
    vectors = {"g": np.array([3.0]), "s": np.array([16.0])}
    assert adaptation.apply(vectors, (2.0, 1.0)).tolist() == [2 * 3 / (5 + 1)]
    assert vectors["s"].tolist() == [25.0]
