from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crossbow.ops import SoftMax, SoftMaxGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError


def test_shapes() -> None:
    assert SoftMax().output_shape((4, 10)) == (4, 10)
    assert SoftMax(axis=3).output_shape((1, 2, 3, 4)) == (1, 2, 3, 4)
    assert SoftMax(axis=-3).output_shape((1, 2, 3, 4)) == (1, 2, 3, 4)


@pytest.mark.parametrize("axis", [2, -2])
def test_an_axis_that_is_not_there(axis: int) -> None:
    """The first one, that of the examples, counts as such."""
    with pytest.raises(ValueError, match=rf"\(N, …\) that has an axis={axis}\. Received: \(4, 10\)"):
        SoftMax(axis=axis).output_shape((4, 10))


@pytest.mark.parametrize("axis", [0, 1.0, None])
def test_bad_axis(axis: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"axis must be an integer ≥ 1, or ≤ −1 to count.*\. Received"):
        SoftMax(axis=axis)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
def test_a_negative_axis_counts_from_the_end(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    for axis in range(1, len(shape)):
        outputs = [run_operator(SoftMax(axis=a), [x]).outputs[0] for a in (axis, axis - len(shape))]
        np.testing.assert_array_equal(*outputs)


def test_numbers_by_hand() -> None:
    x = np.array([[0.0, math.log(3)], [5.0, 5.0]])
    run = run_operator(SoftMax(), [x], output_gradient=np.array([[1.0, 0.0], [3.0, 1.0]]), dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [[0.25, 0.75], [0.5, 0.5]], rtol=1e-15)
    # y (dy − Σ dy y): 0.25 (1 − 0.25), 0.75 (0 − 0.25); 0.5 (3 − 2), 0.5 (1 − 2)
    np.testing.assert_allclose(run.input_gradients[0], [[0.1875, -0.1875], [0.5, -0.5]], rtol=1e-15)


def test_large_values_do_not_overflow() -> None:
    run = run_operator(SoftMax(), [np.array([[1e30, -1e30, 1e30], [-1e30, -1e30, -1e30]])])
    np.testing.assert_allclose(run.outputs[0], [[0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_sums_to_one_along_its_axis(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    y = run_operator(SoftMax(axis=axis), [x], dtype=np.float64).outputs[0]
    np.testing.assert_allclose(y.sum(axis=axis), 1, rtol=1e-14)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True), rtol=1e-13)


def test_gradients() -> None:
    assert SoftMax().gradient() == SoftMaxGradient()
    check_gradients(SoftMax(), [(4, 7)])
    check_gradients(SoftMax(axis=2), [(2, 3, 4, 2)])


def test_in_place() -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 3, 4))
    apart, together = (run_operator(SoftMax(), [x], output_gradient=dy, in_place=p) for p in (False, True))
    np.testing.assert_array_equal(apart.outputs[0], together.outputs[0])
    np.testing.assert_array_equal(apart.input_gradients[0], together.input_gradients[0])
