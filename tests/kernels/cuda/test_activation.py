"""Activations on the emulated GPU: every mode, at kinks and beyond the range of exponentials, in every type."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.activation import MODES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.types import Tensor
from tests.kernels.cuda.running import Tensors, agree

CEILING = 0.75


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("mode", "slope"), [("relu", 0.0), ("relu", 0.25), *((mode, 0.0) for mode in MODES[1:])])
def test_it_agrees_with_the_reference(mode: str, slope: float, dtype: type) -> None:
    """Over several blocks; in place."""

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(ActivationForward(tensors["input0"], tensors["output"], mode, slope, CEILING))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        y, dy, dx = (tensors[role] for role in ("output", "output_gradient", "input_gradient"))
        return library.prepare(ActivationBackward(y, dy, dx, mode, slope, CEILING))

    generator, t = np.random.default_rng(0), Tensor((1031,), np.dtype(dtype))
    x = (3 * generator.standard_normal(1031)).astype(dtype)
    x[:6] = 0, -0.0, CEILING, -500, 500, np.nan
    tolerance = 1e-6 if dtype is np.float32 else 1e-14
    for in_place in (False, True):
        with np.errstate(invalid="ignore"):
            y = agree(forward, {"input0": t, "output": t}, {"input0": x}, tolerance, in_place=in_place)["output"]
        values = {"output": np.nan_to_num(y), "output_gradient": generator.standard_normal(1031).astype(dtype)}
        agree(backward, dict.fromkeys([*values, "input_gradient"], t), values, tolerance, in_place=in_place)
    assert np.isnan(y[5])
    assert np.isfinite(np.delete(y, 5)).all()
