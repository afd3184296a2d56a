"""What requests that move elements declare, and the windows of an image transform."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import (
    ConcatForward,
    CopyBackward,
    CopyForward,
    ImageTransform,
    ImageWindows,
    LargestIndex,
    TransposeBackward,
    TransposeForward,
)
from crossbow.types import Layout, Shape, Tensor

FLOAT32 = np.dtype(np.float32)


def tensor(shape: Shape, layout: Layout = Layout.PLAIN) -> Tensor:
    return Tensor(shape, FLOAT32, layout)


def test_a_concatenation_reads_every_input() -> None:
    x = tensor((2, 3))
    assert ConcatForward((x, x, x), tensor((2, 9)), 1).reads == ("input0", "input1", "input2")


@pytest.mark.parametrize(
    ("x", "y", "is_alias"),
    [
        (tensor((2, 12)), tensor((2, 3, 4)), True),
        (tensor((2, 3, 4, 5), Layout.CHANNELS_LAST), tensor((2, 60)), False),
        (tensor((2, 1, 4, 5), Layout.CHANNELS_LAST), tensor((2, 20)), True),
    ],
)
def test_a_copy_is_an_alias_where_nothing_moves(x: Tensor, y: Tensor, is_alias: bool) -> None:
    forward, backward = CopyForward(x, y), CopyBackward(y, x)
    assert forward.alias == forward.in_place == (("input0", "output") if is_alias else None)
    assert backward.alias == backward.in_place == (("output_gradient", "input_gradient") if is_alias else None)


@pytest.mark.parametrize(
    ("x", "y", "order", "is_alias"),
    [
        (tensor((2, 3)), tensor((3, 2)), (1, 0), False),
        (tensor((1, 3)), tensor((3, 1)), (1, 0), True),
        (tensor((2, 3, 4, 5), Layout.CHANNELS_LAST), tensor((2, 4, 5, 3)), (0, 2, 3, 1), True),
        (tensor((2, 3, 4, 5)), tensor((2, 4, 5, 3)), (0, 2, 3, 1), False),
    ],
)
def test_a_transpose_is_an_alias_where_nothing_moves(x: Tensor, y: Tensor, order: Shape, is_alias: bool) -> None:
    forward, backward = TransposeForward(x, y, x.shape, order), TransposeBackward(y, x, x.shape, order)
    assert forward.alias == forward.in_place == (("input0", "output") if is_alias else None)
    assert backward.alias == backward.in_place == (("output_gradient", "input_gradient") if is_alias else None)


def test_random_windows_need_the_task_and_the_positions() -> None:
    x, transform = tensor((2, 3, 8, 8)), ImageTransform(0, False, np.zeros((3, 1, 1)), np.ones((3, 1, 1)))
    assert ImageWindows(x, x, transform, None, 0).reads == ("input0",)
    assert ImageWindows(x, x, transform, 0, 0).reads == ("input0", "state", "slot_positions")


def test_choices_and_centre_of_a_window() -> None:
    """An image of 5 × 8 with a border of 2 is 9 × 12; a window of 4 × 9 has six tops and four lefts."""
    transform = ImageTransform(2, True, np.zeros((3, 5, 8)), np.ones((3, 1, 1)))
    assert transform.choices((1, 3, 5, 8), (1, 3, 4, 9)) == (6, 4)
    assert transform.centre((1, 3, 5, 8), (1, 3, 4, 9)) == (2, 1)


def test_the_border_has_the_mean_of_each_channel() -> None:
    mean = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    transform = ImageTransform(1, False, mean, np.ones((2, 1, 1)))
    np.testing.assert_array_equal(transform.border_mean, [[[5.5]], [[17.5]]])


def test_the_first_of_equal_values_counts_unless_said() -> None:
    assert LargestIndex(tensor((2, 3)), tensor((2,)), 1).ties == "first"
