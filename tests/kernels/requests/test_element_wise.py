"""What requests for element-wise kernels declare."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import MaximumForward, ScaledGradient
from crossbow.types import Phase, Tensor


def test_a_maximum_keeps_which_input_it_is_for_its_gradient() -> None:
    x = Tensor((2, 3), np.dtype(np.float32))
    training, checking = (MaximumForward((x, x), x, phase) for phase in (Phase.TRAIN, Phase.CHECK))
    assert training.reads == checking.reads == ("input0", "input1")
    assert (training.writes, checking.writes) == (("output", "kept"), ("output",))


@pytest.mark.parametrize(("coefficient", "copies"), [(1.0, True), (2.0, False), (-1.0, False), (0.0, False)])
def test_a_gradient_is_its_output_gradient_only_with_a_coefficient_of_one(coefficient: float, copies: bool) -> None:
    x = Tensor((2, 3), np.dtype(np.float32))
    alias = ScaledGradient(x, x, coefficient).alias
    assert alias == (("output_gradient", "input_gradient") if copies else None)
