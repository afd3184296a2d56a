from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.ops import Constant, PReLU, PReLUGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Shape

X = np.array([[-2.0, 3.0], [4.0, -5.0], [-1.0, 0.0]])
DY = np.array([[1.0, 10.0], [100.0, 2.0], [3.0, 7.0]])


def test_what_it_is() -> None:
    assert PReLU().gradient() == PReLUGradient()
    (weights,) = PReLU().variables((8, 3, 5, 5))
    assert (weights.shape, weights.initialiser) == ((3,), Constant(0.25))
    assert PReLU(shared=True).variables((8, 3, 5, 5))[0].shape == (1,)
    assert PReLU().output_shape((8, 3)) == (8, 3)
    assert PReLU(weight_learning_rate_multiplier=0).is_frozen
    assert not PReLU().is_frozen


def test_numbers_by_hand() -> None:
    """At 0, the slope counts."""
    run = run_operator(PReLU(), [X], variables={"weights": [0.5, 2.0]}, output_gradient=DY)
    np.testing.assert_array_equal(run.outputs[0], [[-1, 3], [4, -10], [-0.5, 0]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [1 * -2 + 3 * -1, 2 * -5])
    np.testing.assert_array_equal(run.input_gradients[0], [[0.5, 10], [100, 4], [1.5, 14]])


def test_one_slope_for_all() -> None:
    run = run_operator(PReLU(shared=True), [X], variables={"weights": [0.5]}, output_gradient=DY)
    np.testing.assert_array_equal(run.outputs[0], [[-1, 3], [4, -2.5], [-0.5, 0]])
    np.testing.assert_array_equal(run.variable_gradients["weights"], [1 * -2 + 3 * -1 + 2 * -5])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 5), (2, 3, 6), (2, 3, 2, 3, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients(shape: Shape, shared: bool) -> None:
    check_gradients(PReLU(shared), [shape])


def test_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="shared must be True or False"):
        PReLU(shared="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="weight_learning_rate_multiplier must be"):
        PReLU(weight_learning_rate_multiplier=-1)
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, C, …\)\. Received: \(3,\)"):
        PReLU().output_shape((3,))
