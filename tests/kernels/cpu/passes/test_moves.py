from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels import KernelLibrary
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.types import Shape
from tests.kernels.cpu.buffers import COMPILED
from tests.kernels.cpu.running import ONEDNN, draw, execute, memory, tensor

PAIRS = [
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (2, 60)),
    ((2, 3, 4, 5), (6, 20)),
    ((6, 20), (2, 3, 4, 5)),
    ((2, 1, 4, 5), (2, 20)),
    ((2, 3, 4, 5), (2, 3, 2, 2, 5)),
    ((120,), (2, 3, 4, 5)),
]


@pytest.mark.parametrize("library", [ONEDNN, COMPILED], ids=["onednn", "compiled"])
@pytest.mark.parametrize(("shape", "target"), PAIRS)
def test_elements_keep_their_logical_order(shape: Shape, target: Shape, library: KernelLibrary) -> None:
    x, y = tensor(shape), tensor(target)
    values = draw(shape)
    buffers = {"input0": memory(x, values), "output": memory(y), "output_gradient": memory(x, values)}
    buffers["input_gradient"] = memory(y)
    for kernel in (library.prepare(CopyForward(x, y)), library.prepare(CopyBackward(x, y))):
        execute(kernel, buffers)
        assert (kernel.alias is not None) == x.same_order(y)
    np.testing.assert_array_equal(buffers["output"], values.reshape(target))
    np.testing.assert_array_equal(buffers["input_gradient"], values.reshape(target))


def test_from_one_channels_last_order_to_another() -> None:
    """Rare: in NumPy."""
    x, y = tensor((2, 3, 4, 5)), tensor((2, 5, 4, 3))
    buffers = {"input0": memory(x, draw(x.shape)), "output": memory(y)}
    execute(ONEDNN.prepare(CopyForward(x, y)), buffers, native=False)
    np.testing.assert_array_equal(buffers["output"], draw(x.shape).reshape(y.shape))
