from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import Pad
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError


def test_a_border_of_one_value() -> None:
    kernel = Pad(padding=[[1, 0], [0, 2]], value=7)  # type: ignore[arg-type]
    (y,) = run_operator(kernel, [np.ones((1, 1, 1))]).outputs
    assert y.tolist() == [[[7, 7, 7], [1, 7, 7]]]


def test_another_number_of_dimensions() -> None:
    with pytest.raises(ValueError, match=r"an input \(N, …\) of 3 dimensions.* Received: \(2, 3\)"):
        Pad(padding=((1, 0), (0, 2))).output_shape((2, 3))


@pytest.mark.parametrize("padding", [(), 1, ((1,),), ((1, -1),), ((1, 2.0),)])
def test_bad_padding(padding: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Pad: padding must be a pair of integers ≥ 0 for every axis"):
        Pad(padding=padding)


def test_bad_value() -> None:
    with pytest.raises(ConfigurationError, match="value must be a finite number"):
        Pad(padding=((1, 1),), value=float("nan"))
