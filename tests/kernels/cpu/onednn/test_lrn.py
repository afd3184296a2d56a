"""Response normalisation by oneDNN's primitive, which agrees with the reference, and is asked only where it is fast."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import LRNForward, ResponseGeometry
from crossbow.types import Layout, Phase, Shape, Tensor
from tests.kernels.cpu.comparisons import respond
from tests.kernels.cpu.running import FLOAT32, ONEDNN

LAST = Layout.CHANNELS_LAST


def kernel(shape: Shape, geometry: ResponseGeometry, layout: Layout = LAST, phase: Phase = Phase.TRAIN) -> str:
    x = Tensor(shape, FLOAT32, layout)
    return ONEDNN.prepare(LRNForward(x, x, geometry, phase)).name


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("shape", [(2, 32, 8, 8), (1, 16, 5, 3)])
def test_it_agrees_with_the_reference(shape: Shape, size: int) -> None:
    geometry = ResponseGeometry((1,), size, 0.3, 0.75, 2.0)
    if "jit" not in kernel(shape, geometry):
        pytest.skip("oneDNN's primitive is not fast on this processor")
    respond(ONEDNN, shape, geometry, LAST, by="jit")


def test_only_training_keeps_something() -> None:
    x, geometry = Tensor((2, 32, 8, 8), FLOAT32, LAST), ResponseGeometry((1,), 5, 0.3, 0.75, 2.0)
    if "jit" not in kernel(x.shape, geometry):
        pytest.skip("oneDNN's primitive is not fast on this processor")
    training, check = (ONEDNN.prepare(LRNForward(x, x, geometry, phase)) for phase in (Phase.TRAIN, Phase.CHECK))
    assert (training.writes, check.writes) == (("output", "kept"), ("output",))
    assert training.kept > 0 == check.kept


@pytest.mark.parametrize(
    ("geometry", "layout"),
    [
        (ResponseGeometry((1,), 4, 0.3, 0.75, 2.0), LAST),  # it omits an element
        (ResponseGeometry((1,), 1, 0.3, 0.75, 2.0), LAST),  # which would end the process
        (ResponseGeometry((1,), 5, 0.3, 0.6, 2.0), LAST),
        (ResponseGeometry((1,), 5, 0.3, 0.75, 2.0), Layout.PLAIN),
    ],
)
def test_elsewhere_the_pass_is_taken(geometry: ResponseGeometry, layout: Layout) -> None:
    assert kernel((2, 32, 8, 8), geometry, layout).endswith("numba")
