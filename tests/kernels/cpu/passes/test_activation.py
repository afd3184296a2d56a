"""The compiled activations against the reference, in every mode, in place and apart."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import ActivationForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SHAPES, execute, memory, tensor
from tests.kernels.cpu.comparisons import activate

from crossbow.kernels.cpu.passes.activation import add_relu  # isort: skip - after the module that skips without numba
from crossbow.kernels.cpu.steps import Steps


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["relu", "clipped", "sigmoid", "tanh"])
@pytest.mark.parametrize("slope", [0.0, 0.1, -0.5])
def test_it_agrees_with_the_reference(shape: Shape, mode: str, slope: float) -> None:
    activate(COMPILED, shape, mode, slope, by="numba")


@pytest.mark.parametrize(("mode", "limits"), [("sigmoid", (0, 1)), ("tanh", (-1, 1)), ("clipped", (0, 0.5))])
def test_no_exponential_overflows(mode: str, limits: tuple[float, float]) -> None:
    t = tensor((1, 4))
    buffers = {"input0": memory(t, np.array([[-1e30, -np.inf, 1e30, np.inf]])), "output": memory(t)}
    execute(COMPILED.prepare(ActivationForward(t, t, mode, 0.0, 0.5)), buffers)
    np.testing.assert_array_equal(buffers["output"], [[limits[0], limits[0], limits[1], limits[1]]])


def test_a_relu_after_another_pass_is_in_place() -> None:
    t = tensor((2, 3))
    steps = Steps(ActivationForward(t, t, "relu", 0.0, 1.0))
    add_relu(steps, ("output", 4), 4)
    y = np.array([-1, -2, np.nan, 3, np.inf, -4], np.float32)
    execute(steps.prepared(), {"input0": y, "output": y})
    np.testing.assert_array_equal(y, [-1, 0, np.nan, 3, np.inf, -4])  # the first and the last number are not the ReLU's


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    for mode in ("relu", "tanh"):
        assert COMPILED.prepare(ActivationForward(last, plain, mode, 0.0, 1.0)).name.endswith("reference")
