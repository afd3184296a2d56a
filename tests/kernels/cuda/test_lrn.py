"""What the table has no rows for: tensors of other types and sizes."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda import launch
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Phase, Tensor
from tests.combinations import pairwise
from tests.kernels.cuda.running import agree
from tests.kernels.reference.running import draw

ACROSS, WITHIN = (1,), (2, 3)


@pairwise
@pytest.mark.parametrize("wide", [False, True], ids=["indices of 32 bits", "indices of 64 bits"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0, 0.3])
@pytest.mark.parametrize(("axes", "size"), [(ACROSS, 5), (ACROSS, 4), (WITHIN, 3), (WITHIN, 6)])
def test_agrees_with_the_reference(
    axes: tuple[int, ...],
    size: int,
    beta: float,
    layout: Layout,
    dtype: type[np.generic],
    in_place: bool,
    wide: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(launch, "LEAST_WIDE", 1)
    g, x = ResponseGeometry(axes, size, 0.3, beta, 1.5), Tensor((3, 13, 9, 8), np.dtype(dtype), layout)
    tensors = dict.fromkeys(("input0", "output", "output_gradient", "input_gradient"), x)
    values = {
        "input0": 2 * draw(*x.shape, dtype=np.float32),
        "output_gradient": draw(*x.shape, dtype=np.float32, seed=1),
    }
    tolerance = 2e-6 if x.dtype.itemsize == 4 else 1e-14
    agree(lambda lib, t: lib.prepare(LRNForward(t["input0"], t["output"], g, Phase.TRAIN)), tensors, values, tolerance)
    agree(
        lambda lib, t: lib.prepare(LRNBackward(t["input0"], t["output_gradient"], t["input_gradient"], g)),
        tensors,
        values,
        tolerance,
        in_place=in_place,
    )
