from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import Transpose, TransposeGradient
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError


def test_axes_in_another_order() -> None:
    kernel = Transpose(order=[0, 3, 1, 2])  # type: ignore[arg-type]
    assert kernel.order == (0, 3, 1, 2)
    assert kernel.output_shape((2, 5, 6, 3)) == (2, 3, 5, 6)
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(run_operator(kernel, [x], dtype=np.float64).outputs[0], x.transpose(0, 3, 1, 2))
    assert kernel.gradient() == TransposeGradient()


@pytest.mark.parametrize("order", [(1, 0), (0, 2), (0, 1, 1), (), 3, (0, 1.0), (0, *range(1, 9))])
def test_an_order_that_is_none(order: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Transpose: order must be .*\. Received: order="):
        Transpose(order=order)


def test_another_number_of_dimensions() -> None:
    with pytest.raises(ValueError, match=r"an input of 3 dimensions, for order=\(0, 2, 1\)\. Received: \(2, 3\)"):
        Transpose(order=(0, 2, 1)).output_shape((2, 3))
