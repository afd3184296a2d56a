"""oneDNN's average pooling against the reference, and the averages that it counts differently."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.types import Phase, Shape
from tests.kernels.cpu.running import ONEDNN, both, close, draw, tensor


def average(**options: object) -> PoolingGeometry:
    return PoolingGeometry(**{"kernel": (2, 2), "method": "average", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    ("x", "y", "g"),
    [
        ((2, 20, 6, 5), (3, 4), {"stride": (2, 1)}),
        ((2, 20, 6, 5), (6, 6), {"kernel": (3, 2), "padding": ((1, 1), (1, 1))}),
        ((2, 20, 7, 5), (2, 2), {"stride": (2, 2), "dilation": (3, 2)}),  # windows that end before the image
        ((1, 1, 2, 2), (1, 1), {"padding": ((0, 0), (0, 0)), "stride": (5, 5)}),
    ],
)
def test_it_agrees_with_the_reference(x: Shape, y: Shape, g: dict[str, object], counts: bool) -> None:
    tx, ty, geometry = tensor(x), tensor((*x[:2], *y)), average(**g, count_padding=counts)
    request = PoolingForward(tx, ty, geometry, Phase.TRAIN)
    whole = x[2:] == geometry.kernel
    actual, expected = both(
        ONEDNN, request, {"input0": tx, "output": ty}, {"input0": draw(x)}, by="whole" if whole else ":"
    )
    close(actual["output"], expected["output"], 9)
    tensors, values = {"output_gradient": ty, "input_gradient": tx}, {"output_gradient": draw(ty.shape, 1)}
    actual, expected = both(ONEDNN, PoolingBackward(ty, tx, geometry), tensors, values, by=":")
    close(actual["input_gradient"], expected["input_gradient"], 9)


@pytest.mark.parametrize("counts", [True, False])
def test_windows_beyond_the_padding_are_the_passes_if_padding_counts(counts: bool) -> None:
    """The reference does not count elements beyond the padding; oneDNN would."""
    x, y, g = tensor((2, 20, 5, 5)), tensor((2, 20, 3, 3)), average(stride=(2, 2), count_padding=counts)
    for request in (PoolingForward(x, y, g, Phase.TRAIN), PoolingBackward(y, x, g)):
        assert ONEDNN.prepare(request).name.endswith("numba") is counts
