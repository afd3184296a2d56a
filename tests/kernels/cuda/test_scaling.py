"""What the table has no rows for: tensors whose sums have several parts, and larger variables."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cuda.running import Tensors, agree, run
from tests.kernels.reference.running import draw

ROWS: list[tuple[Shape, int, int]] = [
    ((16, 3, 40, 40), 1, 1),
    ((16, 20, 30, 3), 3, 1),
    ((64, 20, 7, 4), 2, 1),
    ((3, 5, 20, 15), 1, 3),
    ((64, 4, 5, 20), 1, 2),
    ((70, 3, 6, 9), 2, 2),
    ((2, 3, 4, 5), 0, 2),
    ((6000, 5), 1, 1),
    ((3, 2000), 1, 1),
]


LAYOUTS = [(row, layout) for row in ROWS for layout in Layout if layout is Layout.PLAIN or len(row[0]) == 4]


@pairwise
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("row", "layout"), LAYOUTS, ids=str)
def test_agrees_with_the_reference(
    row: tuple[Shape, int, int], layout: Layout, dtype: type[np.generic], biased: bool
) -> None:
    (shape, axis, axes), kind = row, np.dtype(dtype)
    own = shape[axis : axis + axes]
    x, weights = Tensor(shape, kind, layout), Variable(own, kind)
    bias = weights if biased else None
    tensors = dict.fromkeys(("input0", "output", "output_gradient", "input_gradient"), x)
    tensors |= dict.fromkeys(("weights", "bias", "weights_gradient", "bias_gradient"), Tensor(own, kind))
    values = {
        "input0": draw(*shape, dtype=np.float32),
        "output_gradient": draw(*shape, dtype=np.float32, seed=1),
        "weights": draw(*own, dtype=np.float32, seed=2),
        "bias": draw(*own, dtype=np.float32, seed=3),
    }
    tolerance = 1e-6 if kind.itemsize == 4 else 1e-13

    def forward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(ScalingForward(t["input0"], weights, bias, t["output"], axis))

    def backward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(
            ScalingBackward(t["input0"], t["output_gradient"], weights, bias, t["input_gradient"], axis)
        )

    def gradients_of_variables(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(ScalingBackward(t["input0"], t["output_gradient"], weights, bias, None, axis))

    for prepare in (forward, backward):
        apart = agree(prepare, tensors, values, tolerance)
        shared = run(prepare, tensors, values, in_place=True)
        for role, value in apart.items():
            np.testing.assert_array_equal(shared[role], value, err_msg=role)
    agree(gradients_of_variables, tensors, values, tolerance)
