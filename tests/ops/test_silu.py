from __future__ import annotations

import math

import numpy as np

from crossbow.ops import SiLU, SiLUGradient
from crossbow.testing import run_operator


def test_numbers_by_hand() -> None:
    run = run_operator(SiLU(), [np.array([[0.0, math.log(3), -math.log(3)]])], dtype=np.float64)
    three = math.log(3)
    np.testing.assert_allclose(run.outputs[0], [[0, 0.75 * three, -0.25 * three]], rtol=1e-14)
    slopes = [0.5, 0.75 * (1 + three / 4), 0.25 * (1 - three * 3 / 4)]
    np.testing.assert_allclose(run.input_gradients[0], [slopes], rtol=1e-13)


def test_gradient_operator() -> None:
    assert SiLU().gradient() == SiLUGradient()
