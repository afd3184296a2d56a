"""Biases of operators whose own kernels have none, and sums of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.bias import ENOUGH_BLOCKS, ChannelSums
from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import BiasBackward, BiasForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Tensors, agree

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
SHAPES: list[tuple[Shape, Layout]] = [
    ((2, 5, 4, 3), Layout.PLAIN),
    ((2, 5, 4, 3), Layout.CHANNELS_LAST),
    ((3, 4, 7), Layout.PLAIN),
    ((2, 3, 2, 3, 4), Layout.PLAIN),
]


@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_a_bias_is_added_to_its_channel(shape: Shape, layout: Layout) -> None:
    y, generator = Tensor(shape, FLOAT32, layout), np.random.default_rng(0)
    values = {
        "output": generator.standard_normal(shape).astype(np.float32),
        "bias": generator.standard_normal(shape[1]).astype(np.float32),
    }

    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(BiasForward(tensors["output"], Variable(shape[1:2], FLOAT32)))

    agree(prepare, {"output": y}, values, 1e-7)


@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_the_gradient_of_a_bias(shape: Shape, layout: Layout) -> None:
    dy = Tensor(shape, FLOAT32, layout)
    values = {"output_gradient": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}

    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(BiasBackward(tensors["output_gradient"], Variable(shape[1:2], FLOAT32)))

    agree(prepare, {"output_gradient": dy, "bias_gradient": Tensor(shape[1:2], FLOAT32)}, values, 1e-6)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3, 5, 4, 6), Layout.PLAIN),
        ((3, 5, 4, 6), Layout.CHANNELS_LAST),
        ((16, 3, 33, 31), Layout.PLAIN),  # several blocks for each channel
        ((16, 3, 33, 31), Layout.CHANNELS_LAST),
        ((9, 70, 12, 13), Layout.CHANNELS_LAST),  # several blocks side by side
        ((300, 33, 1, 1), Layout.PLAIN),
        ((8, 1, 40, 40), Layout.CHANNELS_LAST),
        ((4, 6, 3, 5, 7), Layout.PLAIN),
        ((2, 3, 9), Layout.PLAIN),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_sums_of_channels(shape: Shape, layout: Layout, dtype: np.dtype[Any]) -> None:
    tensor = Tensor(shape, dtype, layout)
    dy, sums = tensor.view(aligned_zeros(tensor.nbytes)), np.full(shape[1], np.nan, dtype)
    dy[...] = 1000 + np.random.default_rng(0).standard_normal(shape)  # badly rounded if added up in float32
    with fake_cuda():
        made = ChannelSums(tensor)
        memory = np.full(made.nbytes, 0xFF, np.uint8) if made.nbytes else None
        for call in made.calls(dy, sums, memory):
            call()
    exact = dy.astype(np.longdouble).sum(axis=(0, *range(2, dy.ndim)))
    np.testing.assert_allclose(sums, exact.astype(np.float64), rtol=2 * np.finfo(dtype).eps)


def test_long_sums_are_shared_by_blocks() -> None:
    long, medium, short = (
        ChannelSums(Tensor(shape, FLOAT32)) for shape in ((80, 3, 33, 31), (16, 3, 33, 31), (2, 3, 4, 4))
    )
    assert (long.parts, long.threads) == (20, 256)
    assert (medium.parts, medium.threads) == (1, 1024)  # one kernel, of larger blocks
    assert (short.parts, short.threads) == (1, 256)
    many = ChannelSums(Tensor((512, 64, 112, 112), FLOAT32, Layout.CHANNELS_LAST))
    assert many.parts * many.tiles == ENOUGH_BLOCKS
