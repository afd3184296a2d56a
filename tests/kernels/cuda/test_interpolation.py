"""Interpolation on the emulated GPU against the reference, in both layouts and in memory between the passes."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.interpolation import ALIGNMENT
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import Interpolation, InterpolationBackward, InterpolationForward
from crossbow.types import ConfigurationError, Layout, Shape, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.reference.running import draw

FLOAT32 = np.dtype(np.float32)
TWICE, BETWEEN = Interpolation(0.5, 0.0, False), Interpolation(0.5, -0.25, True)
CORNERS, LAST = Interpolation(0.375, 0.0, True), Interpolation(0.0, 0.0, True)
FEWER = Interpolation(2.5, 0.75, True)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    ("x", "y", "axes"),
    [
        ((2, 3, 4, 5), (2, 3, 8, 10), (TWICE, BETWEEN)),
        ((2, 3, 4, 5), (2, 3, 9, 1), (CORNERS, LAST)),
        ((2, 3, 4, 10), (2, 3, 8, 4), (BETWEEN, FEWER)),
        ((2, 3, 7), (2, 3, 14), (BETWEEN,)),
        ((1, 2, 2, 3, 2), (1, 2, 4, 6, 4), (BETWEEN, TWICE, BETWEEN)),
    ],
)
def test_agrees_with_the_reference(x: Shape, y: Shape, axes: tuple[Interpolation, ...], layout: Layout) -> None:
    kept = layout if len(x) == 4 else Layout.PLAIN  # only images are channels-last
    small, large = Tensor(x, FLOAT32, kept), Tensor(y, FLOAT32, kept)

    def forward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(InterpolationForward(t["input0"], t["output"], axes))

    def backward(library: KernelLibrary, t: Tensors) -> PreparedKernel:
        return library.prepare(InterpolationBackward(t["output_gradient"], t["input_gradient"], axes))

    agree(forward, {"input0": small, "output": large}, {"input0": draw(*x, dtype=np.float32)}, 1e-6)
    tensors = {"output_gradient": large, "input_gradient": small}
    agree(backward, tensors, {"output_gradient": draw(*y, dtype=np.float32)}, 1e-6)


def test_memory_between_the_passes() -> None:
    with fake_cuda():
        one, two = (
            Cuda().prepare(InterpolationForward(Tensor(x, FLOAT32), Tensor(y, FLOAT32), (TWICE,) * (len(x) - 2)))
            for x, y in (((2, 3, 4), (2, 3, 8)), ((2, 3, 4, 5), (2, 3, 8, 10)))
        )
        assert one.workspace == 0
        assert two.workspace == -(-4 * 2 * 3 * 8 * 5 // ALIGNMENT) * ALIGNMENT
        last = Tensor((2, 3, 8, 10), FLOAT32, Layout.CHANNELS_LAST)
        mixed = InterpolationForward(Tensor((2, 3, 4, 5), FLOAT32), last, (TWICE, TWICE))
        with pytest.raises(ConfigurationError, match="expected one layout"):
            Cuda().prepare(mixed)
