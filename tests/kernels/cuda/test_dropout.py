"""Dropout's mask on the CUDA library, with a GPU that is none: that of every library, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import DropoutBackward, DropoutForward
from crossbow.types import Layout, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.reference.running import DTYPES, draw, run, state


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with fake_cuda():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (2, 6, 1, 1), (1, 1, 3, 3), (5, 2, 2, 2)], ids=str)
@pytest.mark.parametrize(("seed", "key", "task"), [(0, 0, 0), (2**40 + 1, 7, 2**32 + 3)])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_mask(
    shape: tuple[int, ...], dtype: Any, layout: Layout, seed: int, key: int, task: int, offset: int
) -> None:
    """offset: by how many elements memory is out of line."""
    tensor = Tensor(shape, np.dtype(dtype), layout)
    x, y = (tensor.view(aligned_zeros(tensor.nbytes + 16)[offset * tensor.dtype.itemsize :]) for _ in range(2))
    x[...] = draw(*shape, dtype=dtype)
    x.flat[0], expected = np.nan, np.zeros(shape, dtype)
    for library, output in ((Reference(dtype), expected), (Cuda(dtype), y)):
        run(
            library.prepare(DropoutForward(tensor, tensor, 0.4, seed, key)),
            input0=x,
            output=output,
            state=state(TASK=task),
        )
    np.testing.assert_array_equal(y, expected)
    for library, output in ((Reference(dtype), expected), (Cuda(dtype), y)):
        kernel = library.prepare(DropoutBackward(tensor, tensor, 0.4, seed, key))
        run(kernel, output_gradient=x, input_gradient=output, state=state(TASK=task))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.slow
def test_more_than_the_threads_of_a_grid() -> None:
    tensor = Tensor((4096 * 256 * 4 + 9,), np.dtype(np.float32))
    x, outputs = np.ones(tensor.shape, np.float32), []
    for library in (Reference(), Cuda()):
        outputs.append(np.zeros_like(x))
        kernel = library.prepare(DropoutForward(tensor, tensor, 0.4, 1, 2))
        run(kernel, input0=x, output=outputs[-1], state=state(TASK=5))
    np.testing.assert_array_equal(outputs[1], outputs[0])
