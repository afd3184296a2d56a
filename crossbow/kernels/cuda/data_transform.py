"""Preprocessing of images: crop, mirror, centre, scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.dropout import random_key
from crossbow.kernels.cuda.four import images
from crossbow.kernels.cuda.launch import BLOCK, Argument, CudaKernel, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.cuda.transfer import to_device
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import ImageWindows

EACH_THREAD = 8
"""Number of elements of an image that a thread computes with the same random draws."""


@CUDA.kernel(ImageWindows)
def transform(request: ImageWindows) -> PreparedKernel:
    x, y, transform, seed, key = request.x, request.y, request.transform, request.seed, request.key
    mean, border_mean, scale = (v.astype(x.dtype) for v in (transform.mean, transform.border_mean, transform.scale))
    border = (x.dtype.type(0) - border_mean) * scale
    rows, columns = mean.shape[1:]
    strides = (rows * columns, columns, 1) if rows * columns > 1 else (1, 0, 0)
    parts = -(-(y.elements // y.shape[0]) // (BLOCK * EACH_THREAD))
    window = Structure(transform.padding, *transform.choices(x.shape, y.shape), transform.mirror, *strides, parts)
    middle = tuple(map(np.int64, transform.centre(x.shape, y.shape)))
    kernel = CudaKernel("data_transform", "middle_windows" if seed is None else "random_windows", x.dtype)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = (buffers["input0"], buffers["output"], *map(to_device, (mean, scale, border)))
        common: tuple[Argument, ...] = (*arrays, images(x), images(y), window)
        if seed is None:
            return (kernel.blocks(x.shape[0] * parts, *common, *middle),)
        drawn = (buffers["state"], buffers["slot_positions"], *random_key(seed, key))
        return (kernel.blocks(x.shape[0] * parts, *common, *drawn),)

    return request.prepared("cuda", bind)
