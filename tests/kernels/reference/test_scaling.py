"""Factors and offsets along some axes, and their gradients, against sums over indices."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import BiasBackward, BiasForward, ScalingBackward, ScalingForward
from crossbow.types import Shape
from tests.kernels.reference.running import draw, nan, run, tensor

LIBRARY = Reference(np.float64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("own", "axis", "letters"),
    [((3,), 1, "b"), ((3, 4), 1, "bc"), ((5,), 3, "d"), ((2, 3, 4, 5), 0, "abcd"), ((4, 5), 2, "cd")],
)
def test_against_sums_over_indices(own: Shape, axis: int, letters: str, bias: bool) -> None:
    x, dy, weights, offset = draw(2, 3, 4, 5), draw(2, 3, 4, 5, seed=1), draw(*own, seed=2), draw(*own, seed=3)
    t, variable = tensor(x.shape), Variable(own, np.dtype(np.float64))
    second, y = variable if bias else None, nan(x.shape)
    forward = LIBRARY.prepare(ScalingForward(t, variable, second, t, axis))
    run(forward, input0=x, weights=weights, bias=offset, output=y)
    ones = np.ones(x.shape)
    shift = np.einsum(f"abcd,{letters}->abcd", ones, offset) if bias else 0
    np.testing.assert_allclose(y, np.einsum(f"abcd,{letters}->abcd", x, weights) + shift, rtol=0, atol=1e-13)
    for dx in (t, None):
        made = {"weights_gradient": nan(own), "bias_gradient": nan(own), "input_gradient": nan(x.shape)}
        kernel = LIBRARY.prepare(ScalingBackward(t, t, variable, second, dx, axis))
        run(kernel, input0=x, output_gradient=dy, weights=weights, **made)
        expected = {"weights_gradient": np.einsum(f"abcd,abcd->{letters}", x, dy)}
        if bias:
            expected["bias_gradient"] = np.einsum(f"abcd,abcd->{letters}", ones, dy)
        if dx is not None:
            expected["input_gradient"] = np.einsum(f"abcd,{letters}->abcd", dy, weights)
        for role, value in made.items():
            if role in expected:
                np.testing.assert_allclose(value, expected[role], rtol=0, atol=1e-12, err_msg=role)
            else:
                assert np.isnan(value).all(), f"{role} was written"


def test_in_place_the_gradient_of_the_factors_is_taken_first() -> None:
    t, variable, dy = tensor((2, 1)), Variable((1,), np.dtype(np.float64)), np.array([[2.0], [3.0]])
    made = {"weights_gradient": nan((1,)), "bias_gradient": nan((1,)), "input_gradient": dy}
    kernel = LIBRARY.prepare(ScalingBackward(t, t, variable, variable, t, 1))
    run(kernel, input0=np.array([[1.0], [10.0]]), output_gradient=dy, weights=np.array([7.0]), **made)
    assert [value.reshape(-1).tolist() for value in made.values()] == [[32], [5], [14, 21]]


def test_sums_are_float64() -> None:
    t, variable = tensor((2**20, 1), np.float32), Variable((1,), np.dtype(np.float32))
    made, x = {"weights_gradient": nan((1,), np.float32)}, np.full((2**20, 1), 0.1, np.float32)
    kernel = Reference(np.float32).prepare(ScalingBackward(t, t, variable, None, None, 1))
    run(kernel, input0=np.ones_like(x), output_gradient=x, weights=np.ones(1, np.float32), **made)
    assert made["weights_gradient"][0] == np.float32(0.1) * 2**20


def test_a_bias_and_its_gradient() -> None:
    y, bias = np.arange(12.0).reshape(2, 3, 2), np.array([10.0, 20.0, 30.0])
    t, variable, output, gradient = tensor(y.shape), Variable((3,), np.dtype(np.float64)), y.copy(), nan((3,))
    run(LIBRARY.prepare(BiasForward(t, variable)), output=output, bias=bias)
    np.testing.assert_array_equal(output, y + bias[:, np.newaxis])
    run(LIBRARY.prepare(BiasBackward(t, variable)), output_gradient=y, bias_gradient=gradient)
    assert gradient.tolist() == [14, 22, 30]
