"""The CUDA library's settings: types, layouts, and the order in which kernels are looked for."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.requests import ConvolutionForward, WeightedSum
from crossbow.types import ConfigurationError, Layout

IMAGE = (8, 3, 4, 5)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Cuda: dtype must be float32 or float64\. Received: {dtype}"):
        Cuda(dtype)


def test_images_are_channels_last_where_tensor_cores_compute() -> None:
    assert Cuda().layout(IMAGE) is Cuda("float64").layout(IMAGE) is Layout.PLAIN
    assert Cuda(tf32=True).layout(IMAGE) is Layout.CHANNELS_LAST
    assert Cuda(narrow="float16").layout(IMAGE) is Layout.CHANNELS_LAST
    assert Cuda(tf32=True, channels_last=False).layout(IMAGE) is Layout.PLAIN
    assert Cuda(channels_last=True).layout(IMAGE) is Layout.CHANNELS_LAST
    assert Cuda(channels_last=True).layout((8, 60)) is Layout.PLAIN


def test_types_of_16_bits_are_additional() -> None:
    assert Cuda().mixed is None
    library = Cuda(narrow="bfloat16")
    assert library.mixed is not None
    assert (library.dtypes, library.mixed.dtype.name) == ((np.dtype(np.float32),), "bfloat16")


def test_cudnns_convolutions_come_before_our_own_kernels() -> None:
    rooms = Cuda().rooms
    assert [bool(registry.candidates(ConvolutionForward)) for registry in rooms.registries] == [True, False]
    assert [bool(registry.candidates(WeightedSum)) for registry in rooms.registries] == [False, True]
    assert {ConvolutionForward, WeightedSum} <= Cuda().fused_relu
