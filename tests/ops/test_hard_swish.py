from __future__ import annotations

import numpy as np
import pytest

from crossbow.ops import HardSwish, HardSwishGradient
from crossbow.testing import run_operator


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_by_hand(dtype: type) -> None:
    """At the kinks, the derivative is that of the outer side."""
    x = np.array([[-4, -3, -1.5, 0, 1.5, 3, 4]], dtype)
    run = run_operator(HardSwish(), [x], output_gradient=np.ones_like(x), dtype=dtype)
    np.testing.assert_allclose(run.outputs[0], [[0, 0, -0.375, 0, 1.125, 3, 4]], rtol=1e-6)
    np.testing.assert_allclose(run.input_gradients[0], [[0, 0, 0, 0.5, 1, 1, 1]], rtol=1e-6, atol=1e-7)


def test_gradient_operator() -> None:
    assert HardSwish().gradient() == HardSwishGradient()
