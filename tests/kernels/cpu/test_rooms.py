"""The rooms of the CPU library and the conditions that their kernels share."""

from __future__ import annotations

import numpy as np

from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED

from crossbow.kernels.cpu.library import Cpu  # isort: skip - after the module that skips without numba
from crossbow.kernels.cpu.rooms import ONEDNN, PASSES, SIMD, WINOGRAD, alike, images, one_layout


def tensor(shape: Shape, layout: Layout = Layout.PLAIN) -> Tensor:
    return Tensor(shape, np.dtype(np.float32), layout)


IMAGE, PLAIN, OTHER = tensor((2, 3, 4, 5), Layout.CHANNELS_LAST), tensor((2, 3, 4, 5)), tensor((2, 7, 4, 5))


def test_tensors_are_alike_with_one_shape_and_one_layout() -> None:
    assert alike(IMAGE, IMAGE, IMAGE)
    assert not alike(IMAGE, PLAIN)
    assert not alike(PLAIN, OTHER)


def test_one_layout_may_have_several_shapes() -> None:
    assert one_layout(PLAIN, OTHER, tensor((2, 3)))
    assert not one_layout(PLAIN, OTHER, IMAGE)


def test_images_have_two_spatial_axes() -> None:
    assert [images(tensor((2,) * axes)) for axes in (2, 3, 4, 5)] == [False, False, True, False]


def test_rooms_come_in_the_order_of_their_gain_and_the_reference_last() -> None:
    names = [registry.name for registry in COMPILED.rooms.registries]
    assert names == ["winograd", "simd", "passes", "reference"]
    assert [registry.name for registry in Cpu(winograd=False, onednn=False).rooms.registries] == names[1:]
    assert {registry.takes_empty for registry in (WINOGRAD, SIMD, ONEDNN, PASSES)} == {False}
