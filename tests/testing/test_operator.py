"""One operator on its own: outputs, gradients and variables by hand."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.ops import (
    Accuracy,
    Conv,
    Dropout,
    ElementWiseOp,
    Gaussian,
    InnerProduct,
    ReLU,
    SoftMaxLoss,
)
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Phase
from tests.testing.user_operators import (
    Masked,
    X,
)


def test_inputs_gradients_and_variables_by_hand() -> None:
    weights, bias = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]), np.array([10.0, 20.0, 30.0])
    x, dy = np.array([[1.0, -1.0], [2.0, 0.0]]), np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]])
    run = run_operator(
        InnerProduct(number_of_outputs=3), [x], variables={"weights": weights, "bias": bias}, output_gradient=dy
    )
    np.testing.assert_array_equal(run.outputs[0], x @ weights.T + bias)
    np.testing.assert_array_equal(run.input_gradients[0], dy @ weights)
    np.testing.assert_array_equal(run.variable_gradients["weights"], dy.T @ x)
    np.testing.assert_array_equal(run.variable_gradients["bias"], dy.sum(axis=0))
    np.testing.assert_array_equal(run.variables["weights"], weights)
    assert {array.dtype for array in (*run.outputs, *run.variables.values())} == {np.dtype(np.float32)}


def test_without_an_output_gradient_it_is_ones() -> None:
    np.testing.assert_array_equal(run_operator(Dropout(ratio=0.0), [X]).input_gradients[0], np.ones_like(X))


def test_checking_and_measures_have_no_gradients() -> None:
    for run in (
        run_operator(InnerProduct(number_of_outputs=2), [X], phase=Phase.CHECK),
        run_operator(Accuracy(), [X, np.array([0, 1, 2])]),
    ):
        assert run.input_gradients == []
        assert run.variable_gradients == {}


def test_initial_variables_follow_the_seed() -> None:
    conv = Conv(number_of_outputs=2, kernel_size=2, bias_initialiser=Gaussian(std=1.0))
    image = np.ones((1, 3, 4, 4))
    runs = [run_operator(conv, [image], seed=seed).variables for seed in (1, 1, 2)]
    assert runs[0]["weights"].shape == (2, 3, 2, 2)
    for name in ("weights", "bias"):
        np.testing.assert_array_equal(runs[0][name], runs[1][name])
        assert np.any(runs[0][name] != runs[2][name])


def test_some_variables_may_be_given() -> None:
    run = run_operator(InnerProduct(number_of_outputs=2), [X], variables={"bias": [1, 2]})
    np.testing.assert_array_equal(run.variables["bias"], [1, 2])
    assert np.any(run.variables["weights"] != 0)


def test_every_input_has_its_gradient() -> None:
    run = run_operator(ElementWiseOp(coefficients=(2.0, -1.0)), [X, X])
    np.testing.assert_array_equal(run.input_gradients[0], np.full_like(X, 2))
    np.testing.assert_array_equal(run.input_gradients[1], np.full_like(X, -1))


def test_an_input_without_a_gradient_has_zeros() -> None:
    run = run_operator(Masked(), [X, X > 0])
    np.testing.assert_array_equal(run.input_gradients[0], X > 0)
    np.testing.assert_array_equal(run.input_gradients[1], np.zeros_like(X))
    assert check_gradients(Masked(), [(3, 4), (3, 4)]) < 1e-8


def test_padding_of_a_batch_does_not_count() -> None:
    p = np.full((4, 2), 0.5)
    run = run_operator(SoftMaxLoss(), [p, np.array([0, 1, 0, 0])], examples=2)
    assert run.outputs[0] == pytest.approx(np.log(2))
    np.testing.assert_array_equal(run.input_gradients[0], [[-0.25, 0.25], [0.25, -0.25], [0, 0], [0, 0]])


def test_results_are_the_callers() -> None:
    x = np.ones((2, 2), np.float32)
    run = run_operator(ReLU(), [x])
    run.outputs[0][...] = 7
    assert x.max() == 1
    assert run.outputs[0].flags.owndata
