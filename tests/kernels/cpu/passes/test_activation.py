"""The compiled activations against the reference, in every mode, in place and apart."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import ActivationForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SHAPES, execute, memory, tensor
from tests.kernels.cpu.comparisons import activate


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


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    for mode in ("relu", "tanh"):
        assert COMPILED.prepare(ActivationForward(last, plain, mode, 0.0, 1.0)).name.endswith("reference")
