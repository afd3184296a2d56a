"""Activations with gates on the emulated GPU: at kinks and beyond the range of exponentials, in every type."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.gated_activation import GATES
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward
from crossbow.types import Tensor
from tests.kernels.cuda.running import Tensors, agree


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gate", GATES)
def test_it_agrees_with_the_reference(gate: str, dtype: type) -> None:
    """Over several blocks; in place."""

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(GatedActivationForward(tensors["input0"], tensors["output"], gate))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        x, dy, dx = (tensors[role] for role in ("input0", "output_gradient", "input_gradient"))
        return library.prepare(GatedActivationBackward(x, dy, dx, gate))

    generator, t = np.random.default_rng(0), Tensor((1031,), np.dtype(dtype))
    x = (3 * generator.standard_normal(1031)).astype(dtype)
    x[:7] = 0, -3, 3, -50, 50, -500, np.nan
    values = {"input0": x, "output_gradient": generator.standard_normal(1031).astype(dtype)}
    tolerance = 1e-6 if dtype is np.float32 else 1e-14
    for in_place in (False, True):
        with np.errstate(invalid="ignore"):
            y = agree(forward, {"input0": t, "output": t}, values, tolerance, in_place=in_place)["output"]
            dx = agree(backward, dict.fromkeys([*values, "input_gradient"], t), values, tolerance, in_place=in_place)
        for result in (y, dx["input_gradient"]):
            assert np.isnan(result).tolist() == np.isnan(x).tolist()


@pytest.mark.parametrize("gate", GATES)
def test_nothing_overflows(gate: str) -> None:
    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        t = tensors["input0"]
        return library.prepare(GatedActivationBackward(t, t, t, gate))

    t = Tensor((2,), np.dtype(np.float32))
    values = {"input0": np.array([-1e30, 1e30]), "output_gradient": np.ones(2)}
    received = agree(backward, dict.fromkeys([*values, "input_gradient"], t), values)
    assert received["input_gradient"].tolist() == [0, 1]
