"""The windows of poolings, as passes receive them."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.requests import PoolingGeometry
from crossbow.types import Layout, Tensor
from tests.kernels.cpu.buffers import FLOAT32

from crossbow.kernels.cpu.passes.windows import slides, windows  # isort: skip - after the module that skips without numba

X, Y = Tensor((2, 3, 10, 11), FLOAT32, Layout.CHANNELS_LAST), Tensor((2, 3, 4, 7), FLOAT32)
G = PoolingGeometry((3, 2), stride=(2, 1), padding=((1, 4), (2, 3)), dilation=(5, 6))


def test_sizes_and_distances_have_their_names() -> None:
    strides = [
        dict(zip("nchw", np.array(t.view(np.zeros(t.nbytes, np.uint8)).strides) // 4, strict=True)) for t in (X, Y)
    ]
    assert windows(X, Y, G) == {
        "x": strides[0],
        "y": strides[1],
        "images": 2,
        "channels": 3,
        "height": 10,
        "width": 11,
        "rows": 4,
        "columns": 7,
        "kernel_rows": 3,
        "kernel_columns": 2,
        "row_stride": 2,
        "column_stride": 1,
        "top": 1,
        "left": 2,
        "bottom": 4,
        "right": 3,
        "row_dilation": 5,
        "column_dilation": 6,
    }


def test_only_images_and_one_method() -> None:
    assert slides(X, G, "max")
    assert not slides(X, G, "average")
    assert not slides(Tensor((2, 3, 10), FLOAT32), PoolingGeometry((3,)), "max")
