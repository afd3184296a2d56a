"""Two-dimensional pooling: what its kernels have to know."""

from __future__ import annotations

from crossbow.kernels.cpu.rooms import images
from crossbow.kernels.requests import PoolingGeometry
from crossbow.types import Layout, Shape, Tensor


def window_slots(x: Tensor, y: Tensor, geometry: PoolingGeometry) -> tuple[int, ...]:
    """In an argument block: strides of x, of y, N C H W, H' W', kernel, stride, padding before, after, dilation."""
    before, after = zip(*geometry.padding, strict=True)
    sizes = (*x.shape, *y.shape[2:], *geometry.kernel, *geometry.stride, *before, *after, *geometry.dilation)
    return (*_strides(x), *_strides(y), *sizes)


def _strides(tensor: Tensor) -> Shape:
    """Distances in elements between neighbours along N, C, H, W."""
    _, c, h, w = tensor.shape
    return (h * w * c, 1, w * c, c) if tensor.layout is Layout.CHANNELS_LAST else (c * h * w, h * w, w, 1)


def slides(x: Tensor, geometry: PoolingGeometry, method: str) -> bool:
    """Whether it is this pooling of images."""
    return images(x) and geometry.method == method
