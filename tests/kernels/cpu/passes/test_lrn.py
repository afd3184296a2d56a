"""Local response normalisation by our own pass, for every form of a window, against the reference."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.types import Layout, Phase, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32
from tests.kernels.cpu.comparisons import respond


@pairwise
@pytest.mark.parametrize("shape", [(2, 20, 6, 5), (2, 32, 8, 8), (1, 1, 1, 1)])
@pytest.mark.parametrize("axes", [(1,), (2, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 11])
@pytest.mark.parametrize("beta", [0.75, 0.6])
@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_it_agrees_with_the_reference(
    shape: Shape, axes: tuple[int, ...], size: int, beta: float, leads: bool, layout: Layout
) -> None:
    """Plain images too, which no network has, but the kernels accept."""
    respond(COMPILED, shape, ResponseGeometry(axes, size, 0.3, beta, 2.0, leads), layout, by="numba")


def test_channels_of_rows() -> None:
    respond(COMPILED, (5, 20), ResponseGeometry((1,), 3, 0.3, 0.75, 2.0), Layout.PLAIN, by="numba")


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    geometry = ResponseGeometry((1,), 3, 0.3, 0.75, 1.0)
    for request in (LRNForward(last, plain, geometry, Phase.TRAIN), LRNBackward(last, plain, last, geometry)):
        assert COMPILED.prepare(request).name.endswith("reference")
