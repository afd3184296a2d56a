"""Compiled slopes of a rectifier against the reference, in both layouts, with slopes by channel and a single one."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import SlopeBackward, SlopeForward
from crossbow.types import Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, Numbers, both, close, draw, tensor


def given(shape: Shape, slopes: Shape) -> dict[str, Numbers]:
    x = draw(shape)
    x.reshape(-1)[::5] = 0
    return {"input0": x, "output_gradient": draw(shape, 1), "weights": draw(slopes, 2)}


@pytest.mark.parametrize("shape", [(3, 10), (3, 5, 4, 3), (2, 20, 3, 3), (3, 5, 7), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("single", [False, True])
def test_slopes(shape: Shape, single: bool) -> None:
    own: Shape = () if single else shape[1:2]
    t, weights, values = tensor(shape), Variable(own, FLOAT32), given(shape, own)
    actual, expected = both(COMPILED, SlopeForward(t, weights, t), {"input0": t, "output": t}, values, by="numba")
    np.testing.assert_array_equal(actual["output"], expected["output"])
    tensors = dict.fromkeys(("input0", "output_gradient", "input_gradient"), t)
    tensors["weights_gradient"] = Tensor(own, FLOAT32)
    for dx in (t, None):
        actual, expected = both(COMPILED, SlopeBackward(t, t, weights, dx), tensors, values, by="numba")
        assert ("input_gradient" in actual) == (dx is not None)
        for role, value in expected.items():
            close(actual[role], value, 100)


def test_long_sums_are_float64() -> None:
    shape = (2**20, 1)
    t, weights = tensor(shape), Variable((1,), FLOAT32)
    values = {"input0": np.full(shape, -0.1, np.float32), "output_gradient": np.ones(shape, np.float32)}
    values["weights"] = np.ones(1, np.float32)
    tensors = {"input0": t, "output_gradient": t, "weights_gradient": Tensor((1,), FLOAT32)}
    actual, _ = both(COMPILED, SlopeBackward(t, t, weights, None), tensors, values, by="numba")
    assert actual["weights_gradient"][0] == -np.float32(0.1) * 2**20
