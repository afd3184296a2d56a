"""Storages with strides and blocks: every element at its place, and zeros in the padding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from crossbow.kernels.cpu.storage import BlockedStorage, lies, outputs_last, strided_storage
from crossbow.kernels.interface import PlainStorage, Variable
from crossbow.types import Shape

FLOAT32 = np.dtype(np.float32)
BLOCKED = BlockedStorage((5, 3), (5, 3), (8, 16), ((0, 4), (1, 2)), 32)
"""BA4a2b: blocks of 4 × 2, two down and two across; five rows and three columns are used."""


def place(storage: BlockedStorage, index: tuple[int, ...]) -> int:
    """As the class describes it."""
    inner, step, done = 0, 1, [1] * len(index)
    for dimension, size in reversed(storage.blocks):
        inner += index[dimension] // done[dimension] % size * step
        done[dimension] *= size
        step *= size
    axes = zip(index, done, storage.strides, strict=True)
    return inner + sum(i // block * stride for i, block, stride in axes)


STORAGES = [
    BLOCKED,
    BlockedStorage((4, 4), (4, 4), (8, 8), ((1, 2), (0, 2), (1, 2)), 16),  # two blocks of one dimension
    BlockedStorage((6, 2, 1, 1), (2, 3, 2, 1, 1), (8, 8, 4, 4, 4), ((1, 4),), 16),  # with groups
    strided_storage((2, 3), (2, 3), (1, 2)),
]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_every_element_has_its_place_and_the_rest_is_zero(storage: BlockedStorage) -> None:
    values = 1 + np.arange(np.prod(storage.shape), dtype=np.float32).reshape(storage.shape)
    flat = np.full(storage.elements, np.nan, np.float32)
    storage.pack(values, flat)
    expected = np.zeros(storage.elements)
    for index, value in zip(np.ndindex(*storage.sizes), values.reshape(-1), strict=True):
        expected[place(storage, index)] = value
    np.testing.assert_array_equal(flat, expected)
    back = np.full(storage.shape, np.nan, np.float32)
    storage.unpack(flat, back)
    np.testing.assert_array_equal(back, values)


def test_names_are_onednns() -> None:
    assert [str(storage) for storage in STORAGES] == ["BA4a2b", "AB2b2a2b", "aBcde4b", "ba"]
    assert str(strided_storage((2, 3, 4, 5), (2, 3, 4, 5), outputs_last((2, 3, 4, 5)))) == "cdba"


@pytest.mark.parametrize("sizes", [(5, 3, 2, 4), (2, 5, 3, 2, 4)])
def test_outputs_last(sizes: Shape) -> None:
    """height, width, channels, (groups,) outputs."""
    strides = outputs_last(sizes)
    order = (*range(len(sizes) - 2, len(sizes)), len(sizes) - 3, *range(len(sizes) - 3))
    places = sum(np.ix_(*[np.arange(size) * step for size, step in zip(sizes, strides, strict=True)]))
    np.testing.assert_array_equal(np.transpose(places, order).reshape(-1), np.arange(np.prod(sizes)))


def test_a_variable_lies_as_its_storage_says() -> None:
    plain, own = Variable((2, 3), FLOAT32), Variable((2, 3), FLOAT32, strided_storage((2, 3), (2, 3), (1, 2)))
    assert lies(plain, (2, 3), (3, 1))
    assert lies(Variable((2, 3), FLOAT32, PlainStorage((2, 3))), (2, 3), (3, 1))
    assert lies(own, (2, 3), (1, 2))
    cube = Variable((2, 3, 4), FLOAT32)
    assert lies(cube, (2, 3, 4), (12, 4, 1))
    assert not lies(cube, (2, 3, 4), (12, 1, 3))
    for variable, sizes, strides in ((plain, (2, 3), (1, 2)), (own, (2, 3), (3, 1)), (own, (6,), (1,))):
        assert not lies(variable, sizes, strides)
    assert not lies(Variable((5, 3), FLOAT32, BLOCKED), (5, 3), (8, 16))  # it has blocks
    for strides in itertools.product((0, 7), repeat=2):  # along an axis of size 1
        assert lies(Variable((1, 3, 1), FLOAT32), (1, 3, 1), (strides[0], 1, strides[1]))
