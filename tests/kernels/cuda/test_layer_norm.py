"""Layer normalisation on the emulated GPU: in both layouts, with lines longer than a block has threads."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.layer_norm import MOST_PARTS
from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cuda.running import Tensors, agree


@pytest.mark.parametrize(
    ("shape", "axis", "number"),
    [
        ((3, 700), 1, 1),
        ((MOST_PARTS + 3, 2, 5), 2, 1),
        ((2, 3, 4, 5), 1, 1),
        ((2, 3, 4, 5), 1, 2),
        ((2, 3, 4, 5), 1, 3),
    ],
)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("bias", [True, False])
def test_it_agrees_with_the_reference(shape: Shape, axis: int, number: int, layout: Layout, bias: bool) -> None:
    if layout is Layout.CHANNELS_LAST and len(shape) != 4:
        layout = Layout.PLAIN
    own, generator = shape[axis : axis + number], np.random.default_rng(0)

    def variable(tensors: Tensors) -> Variable:
        return Variable(own, tensors["input0"].dtype)

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        x, v = tensors["input0"], variable(tensors)
        return library.prepare(LayerNormForward(x, v, v if bias else None, tensors["output"], axis, 1e-3))

    def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        x, v = tensors["input0"], variable(tensors)
        dy, dx = tensors["output_gradient"], tensors["input_gradient"]
        return library.prepare(LayerNormBackward(x, dy, v, v if bias else None, dx, axis, 1e-3))

    t, v = Tensor(shape, np.dtype(np.float32), layout), Tensor(own, np.dtype(np.float32))
    values = {"input0": 50 + generator.standard_normal(shape), "output_gradient": generator.standard_normal(shape)}
    values |= {"weights": generator.standard_normal(own), "bias": generator.standard_normal(own)}
    values = {role: value.astype(np.float32) for role, value in values.items()}
    tensors = dict.fromkeys(("input0", "output", "output_gradient", "input_gradient"), t)
    tensors |= dict.fromkeys(("weights", "bias", "weights_gradient", "bias_gradient"), v)
    for in_place in (False, True):
        agree(forward, tensors, values, 1e-6, in_place=in_place)
        agree(backward, tensors, values, 2e-6, in_place=in_place)
