"""Slopes of a rectifier on tensors whose sums have several parts, which the table has no rows for."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import SlopeBackward, SlopeForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.reference.running import draw


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((16, 3, 40, 40), Layout.PLAIN),
        ((16, 3, 40, 40), Layout.CHANNELS_LAST),
        ((6000, 5), Layout.PLAIN),
        ((3, 5, 9), Layout.PLAIN),
    ],
)
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_the_reference(shape: Shape, layout: Layout, single: bool, dtype: type[np.generic]) -> None:
    own: Shape = () if single else shape[1:2]
    kind = np.dtype(dtype)
    x, weights = Tensor(shape, kind, layout), Variable(own, kind)
    tensors = dict.fromkeys(("input0", "output", "output_gradient", "input_gradient"), x)
    tensors |= dict.fromkeys(("weights", "weights_gradient"), Tensor(own, kind))
    values = {
        "input0": draw(*shape, dtype=np.float32),
        "output_gradient": draw(*shape, dtype=np.float32, seed=1),
        "weights": draw(*own, dtype=np.float32, seed=2),
    }
    tolerance = 1e-6 if kind.itemsize == 4 else 1e-13

    def forward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(SlopeForward(t["input0"], weights, t["output"]))

    def backward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(SlopeBackward(t["input0"], t["output_gradient"], weights, t["input_gradient"]))

    agree(forward, tensors, values, tolerance)
    agree(backward, tensors, values, tolerance)
