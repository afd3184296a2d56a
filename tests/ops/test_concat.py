from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import Concat, ConcatGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Shape


@pytest.mark.parametrize(
    ("axis", "inputs", "output"),
    [
        (1, [(2, 3), (2, 4), (2, 1)], (2, 8)),
        (1, [(2, 3, 4, 5)], (2, 3, 4, 5)),
        (0, [(2, 3), (1, 3)], (3, 3)),
        (-1, [(2, 3, 4, 5), (2, 3, 4, 1)], (2, 3, 4, 6)),
        (-4, [(2, 3, 4, 5), (1, 3, 4, 5)], (3, 3, 4, 5)),
        (3, [(2, 3, 4, 5), (2, 3, 4, 1)], (2, 3, 4, 6)),
        (0, [(2,), (3,)], (5,)),
    ],
)
def test_shapes(axis: int, inputs: list[Shape], output: Shape) -> None:
    assert Concat(axis=axis).output_shape(*inputs) == output


@pytest.mark.parametrize(
    ("axis", "inputs", "message"),
    [
        (1, [], "at least one input. Received: none"),
        (
            1,
            [(2, 3, 4, 4), (2, 5, 4, 4), (2, 3, 4, 5)],
            r"differ along axis=1 only. Received: input 0 of shape \(2, 3, 4, 4\), input 2 of shape \(2, 3, 4, 5\)",
        ),
        (-1, [(2, 3), (3, 3)], r"along axis=-1 only. Received: input 0 of shape \(2, 3\), input 1 of shape \(3, 3\)"),
        (1, [(2, 3), (2, 3, 1)], r"input 1 of shape \(2, 3, 1\)"),
        (2, [(2, 3, 4), (2, 3)], r"input 1 of shape \(2, 3\)"),
        (2, [(2, 3)], r"an input that has an axis=2. Received: \(2, 3\)"),
        (-3, [(2, 3)], "an input that has an axis=-3"),
        (0, [()], "an input that has an axis=0"),
    ],
)
def test_wrong_shapes(axis: int, inputs: list[Shape], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Concat(axis=axis).output_shape(*inputs)


@pytest.mark.parametrize("axis", [1.0, None, "1", True])
def test_bad_configurations(axis: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"axis must be an integer\. Received: axis="):
        Concat(axis=axis)


def test_every_gradient_is_its_own_slice() -> None:
    inputs = [np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([[7.0], [8.0]])]
    dy = np.array([[10.0, 20.0, 30.0, 40.0], [50.0, 60.0, 70.0, 80.0]])
    run = run_operator(Concat(), inputs, output_gradient=dy)
    np.testing.assert_array_equal(run.outputs[0], [[1, 3, 4, 7], [2, 5, 6, 8]])
    for gradient, expected in zip(run.input_gradients, ([[10], [50]], [[20, 30], [60, 70]], [[40], [80]]), strict=True):
        np.testing.assert_array_equal(gradient, expected)


def test_axes_are_those_of_nchw() -> None:
    x = np.arange(8.0).reshape(1, 2, 2, 2)
    for axis in range(4):
        run = run_operator(Concat(axis=axis), [x, -x])
        np.testing.assert_array_equal(run.outputs[0], np.concatenate([x, -x], axis=axis))


def test_gradients() -> None:
    assert Concat().gradient(2) == ConcatGradient(input=2)
    check_gradients(Concat(axis=2), [(2, 3, 4, 2), (2, 3, 1, 2), (2, 3, 2, 2)])
