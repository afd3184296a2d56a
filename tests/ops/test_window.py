from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from crossbow.ops import Conv, Pool, window
from crossbow.ops.window import check_windows, padding_per_axis, per_axis, spatial_axes
from crossbow.types import ConfigurationError


def test_doctests() -> None:
    assert doctest.testmod(window).failed == 0


@pytest.mark.parametrize(
    ("value", "axes", "expected"),
    [
        (1, 3, ((1, 1), (1, 1), (1, 1))),
        (np.int64(2), 1, ((2, 2),)),
        ((1, 2), 2, ((1, 1), (2, 2))),  # height 1, width 2: not before 1, after 2
        (((1, 2),), 1, ((1, 2),)),
        ([[1, 2], [0, 1]], 2, ((1, 2), (0, 1))),
        (((0, 1), (2, 0), (3, 3)), 3, ((0, 1), (2, 0), (3, 3))),
    ],
)
def test_padding(value: Any, axes: int, expected: tuple[tuple[int, int], ...]) -> None:
    check_windows(Conv(number_of_outputs=1, padding=value))
    assert padding_per_axis(value, axes) == expected


@pytest.mark.parametrize("value", [np.int64(3), (3, 3), [3, 3], (np.int32(3), 3)])
def test_sizes(value: Any) -> None:
    assert per_axis(Conv(number_of_outputs=1, kernel_size=value).kernel_size, 2) == (3, 3)


@pytest.mark.parametrize("field", ["kernel_size", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, (0, 1), (), (1, 2, 3, 4), 1.5, "3", None, True, (1, True), -2, ((1, 2), (1, 2))])
@pytest.mark.parametrize("operator", [Conv, Pool])
def test_bad_sizes(operator: Any, field: str, value: Any) -> None:
    given = {"number_of_outputs": 1} if operator is Conv else {}
    expected = (
        rf"{operator.__name__}: {field} must be an integer ≥ 1 or a tuple of such, one per spatial axis \(1 to 3\)"
    )
    with pytest.raises(ConfigurationError, match=expected):
        operator(**given, **{field: value})


@pytest.mark.parametrize(
    "value", [-1, (0, -1), (), (1, 2, 3, 4), 1.5, "3", None, True, ((1, 2), 3), ((1, 2, 3),), ((1, -2),), (((1, 2),),)]
)
@pytest.mark.parametrize("operator", [Conv, Pool])
def test_bad_padding(operator: Any, value: Any) -> None:
    given = {"number_of_outputs": 1} if operator is Conv else {"kernel_size": 9}
    expected = (
        r"padding must be an integer ≥ 0 or a tuple of such or of pairs \(before, after\) of such, one per spatial"
    )
    with pytest.raises(ConfigurationError, match=expected):
        operator(**given, padding=value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kernel_size": (3, 3), "stride": (1,)}, r"stride must be an integer or as long as kernel_size=\(3, 3\)"),
        ({"kernel_size": (3,), "padding": (1, 1)}, r"padding must be an integer or as long as kernel_size=\(3,\)"),
        ({"stride": (1, 2, 1), "dilation": (1, 2)}, r"dilation must be an integer or as long as stride=\(1, 2, 1\)"),
        (
            {"padding": ((1, 1),), "dilation": (1, 2)},
            "dilation must be an integer or as long as padding=",
        ),
    ],
)
@pytest.mark.parametrize("operator", [Conv, Pool])
def test_fields_agree_on_the_number_of_axes(operator: Any, values: dict[str, Any], message: str) -> None:
    given = {"number_of_outputs": 1} if operator is Conv else {"kernel_size": 9}
    with pytest.raises(ConfigurationError, match=message):
        operator(**{**given, **values})


def test_integers_hold_for_any_number_of_axes() -> None:
    assert [spatial_axes(Pool(), (1, 1, *[4] * axes)) for axes in (1, 2, 3)] == [1, 2, 3]
    for shape in ((1, 4), (4,), (1, 1, 4, 4, 4, 4)):
        with pytest.raises(ValueError, match=r"expected an input of shape \(N, C, W\), \(N, C, H, W\) or"):
            spatial_axes(Pool(), shape)
