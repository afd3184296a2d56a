"""The compiled factors and offsets, along all axes, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, close, draw, tensor


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "axes"),
    [((2, 20, 3, 5), axis, axes) for axis in (1, 2, 3) for axes in range(1, 5 - axis)] + [((4, 33), 1, 1)],
)
def test_it_agrees_with_the_reference(shape: Shape, axis: int, axes: int, bias: bool) -> None:
    x, variable = tensor(shape), Variable(shape[axis : axis + axes], FLOAT32)
    own = Tensor(variable.shape, FLOAT32)
    values = {"input0": draw(shape), "output_gradient": draw(shape, 1)}
    values |= {"weights": draw(variable.shape, 2), "bias": draw(variable.shape, 3)}
    tensors = {"input0": x, "weights": own, "bias": own, "output": x}
    second = variable if bias else None
    fast, plain = both(COMPILED, ScalingForward(x, variable, second, x, axis), tensors, values, by="numba")
    np.testing.assert_array_equal(fast["output"], plain["output"])
    for dx in (None, x):
        tensors |= {"output_gradient": x, "input_gradient": x, "weights_gradient": own, "bias_gradient": own}
        fast, plain = both(COMPILED, ScalingBackward(x, x, variable, second, dx, axis), tensors, values, by="numba")
        assert ("input_gradient" in fast, "bias_gradient" in fast) == (dx is not None, bias)
        for role, gradient in plain.items():
            close(fast[role], gradient, terms=x.elements)


def test_sums_of_a_channel_are_exact_to_float32() -> None:
    """A million elements of which each is far smaller than the sum."""
    x, variable = tensor((1, 1, 1024, 1024)), Variable((1,), FLOAT32)
    tensors = {"input0": x, "output_gradient": x, "weights": Tensor((1,), FLOAT32)}
    tensors |= {role: Tensor((1,), FLOAT32) for role in ("weights_gradient", "bias_gradient")}
    values = {"input0": np.ones(x.shape), "output_gradient": np.full(x.shape, 0.1), "weights": np.ones(1)}
    fast, _ = both(COMPILED, ScalingBackward(x, x, variable, variable, None, 1), tensors, values, by="numba")
    assert fast["weights_gradient"] == np.float32(0.1) * 2**20
    assert fast["bias_gradient"] == np.float32(0.1) * 2**20


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    variable = Variable((3,), FLOAT32)
    for request in (
        ScalingForward(last, variable, None, plain, 1),
        ScalingBackward(last, last, variable, None, plain, 1),
    ):
        assert COMPILED.prepare(request).name.endswith("reference")
