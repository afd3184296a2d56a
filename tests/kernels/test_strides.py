"""Strides of tensors, compared with those of NumPy's views."""

from __future__ import annotations

import doctest
import itertools

import numpy as np
import pytest

from crossbow.kernels import strides as module
from crossbow.kernels.strides import axes_in_memory, moves_nothing, strides, strides_as, transposed_strides
from crossbow.types import Layout, Shape, Tensor

PLAIN, LAST = Layout.PLAIN, Layout.CHANNELS_LAST


def tensor(shape: Shape, layout: Layout = PLAIN) -> Tensor:
    return Tensor(shape, np.dtype(np.float32), layout)


def viewed(tensor: Tensor) -> np.ndarray:
    """An array that holds the place of each element in memory."""
    memory = np.arange(tensor.elements, dtype=np.float32)
    return tensor.view(memory.view(np.uint8))


def walked(sizes: Shape, steps: Shape) -> list[int]:
    """Places in memory, in the logical order of these sizes."""
    return [int(np.dot(place, steps)) for place in np.ndindex(*sizes)]


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((2, 3, 4, 5), LAST), ((2, 3, 4, 5), PLAIN), ((3, 7), PLAIN), ((), PLAIN), ((2, 1, 4, 1), LAST)],
)
def test_strides_are_those_of_the_view(shape: Shape, layout: Layout) -> None:
    x = tensor(shape, layout)
    assert walked(shape, strides(x)) == viewed(x).ravel().tolist()
    order = axes_in_memory(x)
    assert viewed(x).transpose(order).ravel().tolist() == list(range(x.elements))


@pytest.mark.parametrize(
    ("x", "sizes"),
    [
        (tensor((2, 6, 4, 5), LAST), (2, 3, 2, 4, 5)),
        (tensor((2, 6, 4, 5), LAST), (2, 6, 2, 2, 1, 5)),
        (tensor((4, 6)), (2, 2, 1, 6)),
        (tensor((4, 6)), (4, 6, 1, 1)),
        (tensor((12,)), (2, 3, 2)),
    ],
)
def test_axes_can_be_cut(x: Tensor, sizes: Shape) -> None:
    assert walked(sizes, strides_as(x, sizes)) == viewed(x).reshape(sizes).ravel().tolist()


@pytest.mark.parametrize("sizes", [(8, 3), (4, 4), (4, 6, 2), (4,), (0, 6)])
def test_sizes_that_cut_no_axis_are_refused(sizes: Shape) -> None:
    with pytest.raises(ValueError, match=r"expected sizes that the axes of \(4, 6\) consist of\. Received: \("):
        strides_as(tensor((4, 6)), sizes)


def test_an_empty_tensor_has_any_strides() -> None:
    assert strides_as(tensor((0, 6)), (0, 2, 3)) == (1, 1, 1)


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_a_transpose_walks_both_tensors_alike(order: tuple[int, ...]) -> None:
    sizes, y = (2, 3, 4), np.arange(24).reshape(2, 3, 4).transpose(order)
    turned, from_x, to_y = transposed_strides(tensor((6, 4)), tensor(y.shape), sizes, order)
    assert (turned, walked(turned, from_x)) == (y.shape, y.ravel().tolist())
    assert walked(turned, to_y) == list(range(24))
    assert moves_nothing(tensor((6, 4)), tensor(y.shape), sizes, order) == (order == (0, 1, 2))


def test_nothing_moves_where_only_axes_of_size_one_change_places() -> None:
    assert moves_nothing(tensor((1, 3, 1)), tensor((3, 1, 1)), (1, 3, 1), (1, 0, 2))
    assert moves_nothing(tensor((2, 3, 4, 5), LAST), tensor((2, 4, 5, 3)), (2, 3, 4, 5), (0, 2, 3, 1))
    assert not moves_nothing(tensor((2, 3, 4, 5)), tensor((2, 4, 5, 3)), (2, 3, 4, 5), (0, 2, 3, 1))
