from __future__ import annotations

import math

import numpy as np
import pytest

from crossbow.ops import GELU, GELUGradient
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError


def test_far_below_zero_all_digits_are_kept() -> None:
    """1 + erf(x / √2) would be 0 there."""
    x = np.array([[-10.0, -30.0]])
    (y,) = run_operator(GELU(), [x], dtype=np.float64).outputs
    np.testing.assert_allclose(y, [[value * math.erfc(-value / math.sqrt(2)) / 2 for value in x[0]]], rtol=1e-14)
    assert (y != 0).all()


def test_the_approximation_is_near() -> None:
    x = np.linspace(-6, 6, 1201)[None]
    exact, near = (run_operator(GELU(approximate=a), [x], dtype=np.float64).outputs[0] for a in ("none", "tanh"))
    assert 1e-4 < np.abs(exact - near).max() < 5e-4


def test_gradient_operator() -> None:
    assert GELU().gradient() == GELUGradient()


def test_an_unknown_approximation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"approximate must be one of 'none', 'tanh'\. Received: .*'erf'"):
        GELU(approximate="erf")
