"""The compiled softmax against the reference, and the marks with which oneDNN's primitive is corrected."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import SoftmaxForward
from crossbow.types import Layout, Shape, Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SHAPES, Numbers, draw, tensor
from tests.kernels.cpu.comparisons import normalise, normalise_non_finite

from crossbow.kernels.cpu.passes.softmax import add_marks, lines, mark_rows  # isort: skip - skipped without numba


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [1, -1])
def test_it_agrees_with_the_reference(shape: Shape, axis: int) -> None:
    normalise(COMPILED, shape, axis, by="numba")


def test_non_finite_numbers() -> None:
    t = tensor((6, 37))
    normalise_non_finite(SoftmaxForward(t, t, 1), COMPILED, by="numba")


@pytest.mark.parametrize(
    ("shape", "layout", "axis", "expected"),
    [
        ((2, 3, 4, 5), Layout.PLAIN, 1, (2, 3, 20)),
        ((2, 3, 4, 5), Layout.PLAIN, -1, (24, 5, 1)),
        ((2, 3, 4, 5), Layout.CHANNELS_LAST, 1, (40, 3, 1)),
        ((2, 3, 4, 5), Layout.CHANNELS_LAST, 2, (2, 4, 15)),
        ((2, 3, 4, 5), Layout.CHANNELS_LAST, -1, (8, 5, 3)),
        ((7,), Layout.PLAIN, 0, (1, 7, 1)),
    ],
)
def test_lines_lie_in_memory_order(shape: Shape, layout: Layout, axis: int, expected: Shape) -> None:
    assert lines(Tensor(shape, FLOAT32, layout), axis) == expected


def marked(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """The marks of x (outer, length, inner), and y with these."""
    outer, length, inner = x.shape
    marks, y = np.full(1 + outer * inner, 7, np.float32), y.copy()
    sizes = {"outer": outer, "length": length, "inner": inner}
    mark_rows.call("mark", x=x, marks=marks, **sizes)()
    add_marks.call("add", y=y, marks=marks, **sizes)()
    return marks, y


def test_without_a_number_that_is_not_finite_nothing_is_marked() -> None:
    x, y = draw((2, 3, 4)), draw((2, 3, 4), 1)
    marks, after = marked(x, y)
    assert marks[0] == 0
    np.testing.assert_array_equal(after, y)


def test_rows_whose_largest_number_is_not_finite_become_nan() -> None:
    x, y = draw((2, 3, 4)), draw((2, 3, 4), 1)
    x[0, 2, 1], x[1, 0, 3], x[1, 1, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        marks, after = marked(x, y)
    bad = np.zeros((2, 4), bool)
    bad[0, 1] = bad[1, 3] = True
    assert marks[0] == 3
    np.testing.assert_array_equal(np.isnan(marks[1:]).reshape(2, 4), bad)
    np.testing.assert_array_equal(after, np.where(bad[:, None], np.nan, y))
