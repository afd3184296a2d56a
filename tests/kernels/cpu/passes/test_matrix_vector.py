"""Products of a matrix and a vector, whose sums have errors that do not grow with their length."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cpu.onednn import shared_library
from crossbow.kernels.requests import MatmulForward, MatrixProductGeometry
from crossbow.types import Shape
from tests.kernels.cpu.running import ONEDNN, draw, execute, memory, tensor


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("a", "b", "turned"),
    [
        ((1, 1_000_003), (1_000_003, 1), (False, False)),
        ((33, 20_000), (20_000, 1), (False, False)),
        ((1, 20_000), (33, 20_000), (False, True)),
        ((4, 3, 20_000), (4, 20_000, 1), (False, False)),
    ],
)
def test_long_rows(a: Shape, b: Shape, turned: tuple[bool, bool], threads: int) -> None:
    """Of positive numbers: added up one after the other in float32, a million would lose three digits."""
    geometry = MatrixProductGeometry((a, b), turned)
    values = [np.abs(draw(shape, seed)) for seed, shape in enumerate((a, b))]
    before = shared_library.omp_get_max_threads()
    shared_library.omp_set_num_threads(threads)
    try:
        kernel = ONEDNN.prepare(MatmulForward(tensor(a), tensor(b), tensor(geometry.y), geometry))
        buffers = {f"input{number}": memory(tensor(x.shape), x) for number, x in enumerate(values)}
        buffers["output"] = memory(tensor(geometry.y))
        execute(kernel, buffers)
    finally:
        shared_library.omp_set_num_threads(before)
    wide = [x.astype(np.float64) for x in values]
    left, right = (np.swapaxes(x, -1, -2) if turn else x for x, turn in zip(wide, turned, strict=True))
    np.testing.assert_allclose(buffers["output"], left @ right, rtol=3e-7)
