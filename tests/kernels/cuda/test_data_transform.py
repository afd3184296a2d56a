"""Windows of images on the CUDA library, with a GPU that is none: those of the reference, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ImageTransform, ImageWindows
from crossbow.types import Layout, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.reference.running import DTYPES, draw, run, state


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with fake_cuda():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", [(a, b) for a in Layout for b in Layout], ids=str)
@pytest.mark.parametrize("seed", [None, 3, 2**50 + 7])
@pytest.mark.parametrize("image_mean", [False, True])
def test_windows(layouts: tuple[Layout, Layout], seed: int | None, image_mean: bool, dtype: Any) -> None:
    """Images large enough for several blocks, in the last of three slots; epochs and indices beyond 32 bits."""
    number, (n, c, h, w) = np.dtype(dtype), (3, 5, 40, 37)
    mean = draw(c, h, w) if image_mean else draw(c, 1, 1)
    transform = ImageTransform(4, True, mean, draw(c, 1, 1, seed=1))
    x, y = Tensor((n, c, h, w), number, layouts[0]), Tensor((n, c, 33, 44), number, layouts[1])
    source, target = (t.view(aligned_zeros(t.nbytes)) for t in (x, y))
    source[...], expected = draw(n, c, h, w, dtype=dtype), np.zeros(y.shape, dtype)
    positions = np.random.default_rng(2).integers(0, 2**40, (3, n, 2))
    buffers = {"input0": source, "state": state(SLOT=2), "slot_positions": positions}
    for library, output in ((Reference(dtype), expected), (Cuda(dtype), target)):
        run(library.prepare(ImageWindows(x, y, transform, seed, 11)), **buffers, output=output)
    np.testing.assert_array_equal(target, expected)
