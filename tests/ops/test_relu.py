from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crossbow.ops import ReLU, ReLUGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError

MODES: list[dict[str, Any]] = [
    {},
    {"negative_slope": 0.1},
    {"mode": "sigmoid"},
    {"mode": "tanh"},
    {"mode": "clipped", "ceiling": 1.5},
]


def test_shape() -> None:
    assert ReLU().output_shape((2, 3)) == (2, 3)
    assert ReLU().output_shape((2, 3, 4, 5)) == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("values", "y", "dx"),
    [
        ({}, [0, 0, 1, 2], [0, 0, 1, 1]),
        ({"negative_slope": 0.5}, [-1, 0, 1, 2], [0.5, 0.5, 1, 1]),
        ({"mode": "clipped", "ceiling": 1.5}, [0, 0, 1, 1.5], [0, 0, 1, 0]),
        ({"mode": "clipped", "ceiling": 2}, [0, 0, 1, 2], [0, 0, 1, 0]),  # at the kink: the derivative of the flat side
        ({"mode": "tanh"}, [math.tanh(x) for x in (-2, 0, 1, 2)], [1 / math.cosh(x) ** 2 for x in (-2, 0, 1, 2)]),
    ],
    ids=str,
)
def test_numbers_by_hand(values: dict[str, Any], y: list[float], dx: list[float]) -> None:
    run = run_operator(ReLU(**values), [np.array([[-2.0, 0.0, 1.0, 2.0]])], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [y], rtol=1e-15)
    np.testing.assert_allclose(run.input_gradients[0], [dx], rtol=1e-13)


def test_sigmoid_neither_overflows_nor_loses_small_values() -> None:
    x = np.array([[-1000.0, -30.0, 0.0, math.log(3), 1000.0]])
    run = run_operator(ReLU(mode="sigmoid"), [x], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [[0, math.exp(-30), 0.5, 0.75, 1]], rtol=1e-12)
    np.testing.assert_allclose(run.input_gradients[0], [[0, math.exp(-30), 0.25, 3 / 16, 0]], rtol=1e-12)


@pytest.mark.parametrize("values", MODES, ids=str)
def test_gradients(values: dict[str, Any]) -> None:
    assert ReLU(**values).gradient() == ReLUGradient()
    check_gradients(ReLU(**values), [(3, 4, 2, 5)])


@pytest.mark.parametrize("values", MODES, ids=str)
def test_in_place(values: dict[str, Any]) -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, 3, 4))
    apart, together = (run_operator(ReLU(**values), [x], output_gradient=dy, in_place=p) for p in (False, True))
    np.testing.assert_array_equal(apart.outputs[0], together.outputs[0])
    np.testing.assert_array_equal(apart.input_gradients[0], together.input_gradients[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "elu"}, "mode must be one of 'relu', 'sigmoid', 'tanh', 'clipped'"),
        ({"negative_slope": -0.1}, "negative_slope must be a finite number ≥ 0"),
        ({"mode": "tanh", "negative_slope": 0.1}, "negative_slope must be 0 with mode='tanh'"),
        ({"mode": "clipped", "ceiling": 0}, "ceiling must be a finite number > 0"),
        ({"ceiling": 6}, "ceiling must be left at None with mode='relu', where it does nothing. Received: ceiling=6"),
        ({"mode": "tanh", "ceiling": 1.0}, "ceiling must be left at None with mode='tanh'"),
    ],
)
def test_bad_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ReLU(**values)


def test_it_is_clipped_at_six_unless_told() -> None:
    assert ReLU(mode="clipped") == ReLU(mode="clipped", ceiling=6.0)
