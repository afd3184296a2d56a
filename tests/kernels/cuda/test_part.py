"""Slices and padding on the emulated GPU, between both layouts."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import PadBackward, PadForward, SliceBackward, SliceForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.cuda.test_copy import numbered

FLOAT32 = np.dtype(np.float32)
SHAPE: Shape = (2, 6, 5, 7)
layouts = pytest.mark.parametrize("source", Layout), pytest.mark.parametrize("target", Layout)


@pairwise
@layouts[0]
@layouts[1]
@pytest.mark.parametrize(
    ("axis", "start", "step", "count"), [(1, 2, 1, 3), (1, 1, 2, 3), (2, 4, 1, 1), (3, 0, 3, 3), (0, 1, 1, 1)]
)
def test_slices(axis: int, start: int, step: int, count: int, source: Layout, target: Layout) -> None:
    part = tuple(count if dimension == axis else size for dimension, size in enumerate(SHAPE))
    x, y = Tensor(SHAPE, FLOAT32, source), Tensor(part, FLOAT32, target)

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(SliceForward(tensors["input0"], tensors["output"], axis, start, step))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        dy, dx = tensors["output_gradient"], tensors["input_gradient"]
        return library.prepare(SliceBackward(dy, dx, axis, start, step))

    agree(forward, {"input0": x, "output": y}, {"input0": numbered(SHAPE)})
    agree(backward, {"output_gradient": y, "input_gradient": x}, {"output_gradient": 1 + numbered(part)})


@pairwise
@layouts[0]
@layouts[1]
@pytest.mark.parametrize("value", [0.0, -2.5])
@pytest.mark.parametrize("before", [(0, 0, 1, 2), (1, 2, 0, 0), (0, 0, 0, 0)])
def test_padding(before: Shape, value: float, source: Layout, target: Layout) -> None:
    whole = tuple(size + more + 1 for size, more in zip(SHAPE, before, strict=True))
    x, y = Tensor(SHAPE, FLOAT32, source), Tensor(whole, FLOAT32, target)

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(PadForward(tensors["input0"], tensors["output"], before, value))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(PadBackward(tensors["output_gradient"], tensors["input_gradient"], before))

    agree(forward, {"input0": x, "output": y}, {"input0": 1 + numbered(SHAPE)})
    agree(backward, {"output_gradient": y, "input_gradient": x}, {"output_gradient": numbered(whole)})
