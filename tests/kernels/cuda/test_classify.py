"""The index of the largest value, of lines that a block shares and of lines that a thread has alone."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import LargestIndex
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.cuda.test_softmax import PLAIN, lines


@lines
@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("keep_axis", [False, True])
def test_classify_with_ties_and_nan(shape: Shape, axis: int, layout: Layout, ties: str, keep_axis: bool) -> None:
    axis %= len(shape)
    outcome = (*shape[:axis], *[1] * keep_axis, *shape[axis + 1 :])

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(LargestIndex(tensors["input0"], tensors["output"], axis, ties))

    x = np.random.default_rng(0).integers(-3, 3, shape).astype(np.float32)
    x[np.random.default_rng(1).random(shape) < 1 / shape[axis]] = np.nan
    tensors = {
        "input0": Tensor(shape, x.dtype, layout),
        "output": Tensor(outcome, x.dtype, layout if len(outcome) == 4 else PLAIN),
    }
    agree(forward, tensors, {"input0": x})
