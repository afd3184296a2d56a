"""Tensors as four axes."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from crossbow.kernels.cuda import four as module
from crossbow.kernels.cuda.four import four, four_around, images, threads_per_line
from crossbow.kernels.cuda.launch import Structure
from crossbow.kernels.strides import strides
from crossbow.types import Layout, Shape, Tensor

LAYOUTS = (Layout.PLAIN, Layout.CHANNELS_LAST)


def tensor(shape: Shape, layout: Layout = Layout.PLAIN) -> Tensor:
    return Tensor(shape, np.dtype(np.float32), layout)


def places(structure: Structure) -> list[int]:
    """Where the elements lie, in logical order."""
    sizes, steps = structure.values[:4], structure.values[4:]
    return [int(np.dot(index, steps)) for index in np.ndindex(*sizes)]


def in_memory(tensor: Tensor) -> list[int]:
    """Where NumPy's view has them."""
    memory = np.zeros(tensor.nbytes, np.uint8)
    view = tensor.view(memory)
    memory.view(np.float32)[...] = np.arange(tensor.elements)
    return [int(value) for value in view.ravel()]


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 5), (2, 3, 1, 1), (1, 1, 1, 1)])
def test_images_in_both_layouts(shape: Shape, layout: Layout) -> None:
    image = tensor(shape, layout)
    expected = in_memory(image)
    assert places(four(image)) == places(images(image)) == expected
    assert images(image).values[:4].tolist() == list(shape)
    for axis in range(-4, 4):
        structure, place = four_around(image, axis)
        sizes, steps = structure.values[:4], structure.values[4:]
        assert sizes[place] == shape[axis]
        assert shape[axis] == 1 or steps[place] == strides(image)[axis]
        assert places(structure) == expected


@pytest.mark.parametrize("shape", [(), (7,), (3, 7), (2, 3, 4), (2, 3, 2, 3, 2), (2, 3, 2, 1, 3, 2)])
def test_other_numbers_of_axes_are_joined(shape: Shape) -> None:
    plain = tensor(shape)
    assert places(four(plain)) == in_memory(plain)
    for axis in range(len(shape)):
        structure, place = four_around(plain, axis)
        assert structure.values[place] == shape[axis]
        assert places(structure) == in_memory(plain)


def test_five_axes_that_lie_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="at most four axes"):
        images(tensor((2, 3, 2, 3, 2)))


def test_threads_of_a_line() -> None:
    assert threads_per_line(tensor((256, 10)), 1) == 1  # short
    assert threads_per_line(tensor((256, 100)), 1) == 64
    assert threads_per_line(tensor((256, 128)), 1) == 64
    assert threads_per_line(tensor((256, 5000)), 1) == 256
    assert threads_per_line(tensor((8, 100, 64, 64)), 1) == 1  # the lines lie beside each other
    assert threads_per_line(tensor((8, 100, 64, 64), Layout.CHANNELS_LAST), 1) == 64
