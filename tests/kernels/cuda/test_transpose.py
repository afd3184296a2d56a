"""Transposes on the emulated GPU, of axes and of parts of them, between both layouts, and back."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.cuda.test_copy import numbered

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST


@pytest.mark.parametrize(
    ("shape", "source", "sizes", "order", "target", "to"),
    [
        ((70, 40), PLAIN, (70, 40), (1, 0), (40, 70), PLAIN),  # tiles, and parts of tiles
        ((2, 3, 4, 5), PLAIN, (2, 3, 4, 5), (3, 1, 0, 2), (5, 3, 2, 4), LAST),
        ((2, 6, 4, 5), LAST, (2, 2, 3, 4, 5), (0, 2, 1, 3, 4), (2, 6, 4, 5), LAST),
        ((2, 6, 4, 5), LAST, (2, 6, 4, 5), (0, 2, 3, 1), (2, 4, 5, 6), PLAIN),
        ((4, 6, 5), PLAIN, (2, 2, 6, 5), (3, 0, 2, 1), (5, 2, 6, 2), LAST),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_agrees_with_the_reference(
    shape: Shape, source: Layout, sizes: Shape, order: tuple[int, ...], target: Shape, to: Layout, dtype: type
) -> None:
    x, y = Tensor(shape, np.dtype(dtype), source), Tensor(target, np.dtype(dtype), to)

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(TransposeForward(tensors["input0"], tensors["output"], sizes, order))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(TransposeBackward(tensors["output_gradient"], tensors["input_gradient"], sizes, order))

    agree(forward, {"input0": x, "output": y}, {"input0": numbered(shape)})
    agree(backward, {"output_gradient": y, "input_gradient": x}, {"output_gradient": numbered(target)})
