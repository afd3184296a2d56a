"""The windows of two-dimensional pooling."""

from __future__ import annotations

from crossbow.kernels.arguments import Arguments, Value
from crossbow.kernels.cpu.rooms import images
from crossbow.kernels.requests import PoolingGeometry
from crossbow.types import Layout, Tensor

STRIDES = Arguments(n=int, c=int, h=int, w=int)
WINDOWS = Arguments(
    x=STRIDES,
    y=STRIDES,
    images=int,
    channels=int,
    height=int,
    width=int,
    rows=int,
    columns=int,
    kernel_rows=int,
    kernel_columns=int,
    row_stride=int,
    column_stride=int,
    top=int,
    left=int,
    bottom=int,
    right=int,
    row_dilation=int,
    column_dilation=int,
)
"""Windows over an input in an argument block: strides of input and output in elements; N, C, H, W of the input; H, W of
the output; kernel, stride, padding, dilation."""


def windows(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> dict[str, Value]:
    """The fields of `WINDOWS`."""
    before, after = zip(*geometry.padding, strict=True)
    sizes = (*x.shape, *y.shape[2:], *geometry.kernel, *geometry.stride, *before, *after, *geometry.dilation)
    return dict(zip(WINDOWS.names, (_strides(x), _strides(y), *sizes), strict=True))


def _strides(tensor: Tensor) -> dict[str, int]:
    """Distances in elements between neighbours along N, C, H, W."""
    _, c, h, w = tensor.shape
    last = tensor.layout is Layout.CHANNELS_LAST
    strides = (h * w * c, 1, w * c, c) if last else (c * h * w, h * w, w, 1)
    return dict(zip(STRIDES.names, strides, strict=True))


def slides(x: Tensor, geometry: PoolingGeometry, method: str) -> bool:
    """Whether a pooling is of images and uses the method."""
    return images(x) and geometry.method == method
