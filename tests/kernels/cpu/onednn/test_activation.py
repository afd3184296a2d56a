"""oneDNN's activations against the reference, and the modes that it leaves to the passes."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.types import Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.comparisons import activate, differentiate
from tests.kernels.cpu.running import FLOAT32, ONEDNN, SHAPES, draw, memory, tensor

ELTWISE = ":"
"""In the names of oneDNN's implementations, as "jit:avx512_core" or "ref:any"."""


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mode", "slope"), [("relu", 0.1), ("sigmoid", 0.0), ("tanh", 0.0)])
def test_it_agrees_with_the_reference(shape: Shape, mode: str, slope: float) -> None:
    activate(ONEDNN, shape, mode, slope, by=ELTWISE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["relu", "clipped"])
def test_derivatives_of_functions_that_the_passes_compute(shape: Shape, mode: str) -> None:
    differentiate(ONEDNN, shape, mode, 0.0, by=ELTWISE)


@pytest.mark.parametrize(("mode", "slope"), [("relu", 0.0), ("clipped", 0.0), ("relu", -0.5)])
def test_other_functions_are_left_to_the_passes(mode: str, slope: float) -> None:
    """Of NaN, oneDNN's clipped functions make 0; a falling one has no inverse."""
    t = tensor((2, 3))
    assert ONEDNN.prepare(ActivationForward(t, t, mode, slope, 1.0)).name.endswith("numba")
    six = Tensor((1, 2, 1, 2, 1, 2), FLOAT32)
    assert ONEDNN.prepare(ActivationForward(six, six, "tanh", 0.0, 1.0)).name.endswith("numba")
    if slope < 0:
        assert ONEDNN.prepare(ActivationBackward(t, t, t, mode, slope, 1.0)).name.endswith("numba")


def test_one_kernel_serves_many_buffers() -> None:
    """It holds no buffer, so that learners share it."""
    t = tensor((2, 20, 3, 5))
    kernel = ONEDNN.prepare(ActivationForward(t, t, "tanh", 0.0, 1.0))
    pairs = [{"input0": memory(t, draw(t.shape, seed)), "output": memory(t)} for seed in range(3)]
    workspace = np.zeros(kernel.workspace, np.uint8)
    calls = [kernel.bind({**pair, "workspace": workspace}) for pair in pairs]
    for (call,) in calls:
        call()
    for seed, pair in enumerate(pairs):
        np.testing.assert_allclose(pair["output"], np.tanh(draw(t.shape, seed)), atol=1e-6)
