"""Copies of tensors that lie in different orders."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.running import Tensors, agree

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def tensor(shape: Shape, layout: Layout, dtype: type = np.float32) -> Tensor:
    return Tensor(shape, np.dtype(dtype), layout)


def numbered(shape: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@dtypes
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (((2, 3, 4, 5), PLAIN), ((2, 3, 4, 5), LAST)),
        (((2, 3, 4, 5), LAST), ((2, 3, 4, 5), PLAIN)),
        (((2, 3, 4, 5), LAST), ((2, 3, 4, 5), LAST)),
        (((2, 3, 4, 5), LAST), ((120,), PLAIN)),
        (((2, 3, 4, 5), LAST), ((4, 3, 10), PLAIN)),
        (((2, 3, 4, 5), LAST), ((4, 3, 2, 5), LAST)),  # other shapes, both channels-last
        (((2, 3, 4, 5), LAST), ((2, 1, 60, 1), LAST)),
        (((2, 3, 2, 2, 5), PLAIN), ((2, 3, 4, 5), LAST)),
        (((2, 40, 5, 7), LAST), ((2, 1400), PLAIN)),  # tiles, and parts of tiles
        (((3, 1200), PLAIN), ((3, 12, 10, 10), LAST)),
        (((3, 64, 8, 8), PLAIN), ((3, 64, 8, 8), LAST)),
    ],
)
def test_copies_in_logical_order(source: tuple[Shape, Layout], target: tuple[Shape, Layout], dtype: type) -> None:
    x, y, kernels = tensor(*source, dtype), tensor(*target, dtype), []

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        kernels.append(library.prepare(CopyForward(tensors["input0"], tensors["output"])))
        return kernels[-1]

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        kernels.append(library.prepare(CopyBackward(tensors["output_gradient"], tensors["input_gradient"])))
        return kernels[-1]

    agree(forward, {"input0": x, "output": y}, {"input0": numbered(x.shape)})
    agree(backward, {"output_gradient": y, "input_gradient": x}, {"output_gradient": numbered(y.shape)})
    for kernel in kernels:
        if "cuda" in kernel.name:
            assert (kernel.alias is not None) == x.same_order(y)
            assert kernel.alias == kernel.in_place
