"""Descriptors of activations and variables, and the storages that oneDNN's descriptors describe."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cpu.storage import outputs_last, strided_storage
from crossbow.kernels.interface import PlainStorage, Variable
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.running import FLOAT32, draw, stored, unstored

from crossbow.kernels.cpu.onednn import binding as dnnl  # isort: skip - after the module that skips
from crossbow.kernels.cpu.onednn import memory as module
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine, plain, storage


def strides(descriptor: dnnl.Handle, axes: int) -> Shape:
    return dnnl.query_dims(descriptor, dnnl.QUERY_STRIDES, axes)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1, 2, 1, 2, 1, 2)])
def test_plain_memory_is_row_major(shape: Shape) -> None:
    expected = tuple(stride // 4 for stride in np.zeros(shape, np.float32).strides)
    assert strides(plain(shape), len(shape)) == expected
    assert dnnl.size(plain(shape)) == 4 * int(np.prod(shape))
    assert dnnl.equal(activation(Tensor(shape, FLOAT32)), plain(shape))


def test_an_image_lies_as_its_layout_says() -> None:
    image = activation(Tensor((2, 3, 4, 5), FLOAT32, Layout.CHANNELS_LAST))
    assert strides(image, 4) == (60, 1, 15, 3)
    assert not dnnl.equal(image, plain((2, 3, 4, 5)))


def test_engine_and_attributes_are_made_once() -> None:
    assert engine() is engine()
    assert attributes() is attributes()


@pytest.mark.parametrize("tag", ["TAG_ABCD", "TAG_ACDB"])
def test_a_descriptor_is_a_storage(tag: str) -> None:
    shape = (5, 3, 2, 4)
    found = storage(shape, dnnl.memory_desc(shape, getattr(dnnl, tag)), shape)
    values = draw(shape)
    flat = stored(values, found)
    order = (0, 1, 2, 3) if tag == "TAG_ABCD" else (0, 2, 3, 1)
    np.testing.assert_array_equal(flat, values.transpose(order).reshape(-1))
    np.testing.assert_array_equal(unstored(flat, found, shape), values)


def test_a_variables_descriptor_is_that_of_its_storage() -> None:
    shape: Shape = (5, 3, 2, 4)
    own = strided_storage(shape, shape, outputs_last(shape))
    assert dnnl.equal(module.stored(Variable(shape, FLOAT32), shape), plain(shape))
    assert dnnl.equal(module.stored(Variable(shape, FLOAT32, PlainStorage(shape)), shape), plain(shape))
    assert strides(module.stored(Variable(shape, FLOAT32, own), shape), 4) == own.strides
    chosen = storage(shape, plain(shape), shape)
    assert module.stored(Variable(shape, FLOAT32, chosen), shape) is chosen.descriptor
    with pytest.raises(ValueError, match=r"expected a storage of sizes \(5, 24\)\. Received: \(5, 3, 2, 4\) \(cdba\)"):
        module.stored(Variable(shape, FLOAT32, own), (5, 24))
