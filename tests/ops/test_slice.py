from __future__ import annotations

from typing import Any

import pytest

from crossbow.ops import Slice
from crossbow.types import ConfigurationError

X = (4, 6, 5, 3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"start": 2}, (4, 4, 5, 3)),
        ({"stop": -1}, (4, 5, 5, 3)),
        ({"axis": -1, "stop": 2}, (4, 6, 5, 2)),
        ({"axis": 2, "start": -4, "step": 3}, (4, 6, 2, 3)),
        ({"axis": 2, "stop": 99}, X),
    ],
)
def test_it_counts_as_python_does(values: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert Slice(**values).output_shape(X) == expected


@pytest.mark.parametrize("values", [{"start": 6}, {"start": 3, "stop": 3}, {"axis": 4}, {"axis": -4}])
def test_nothing_is_left_or_no_axis(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^expected an input .*\. Received: \(4, 6, 5, 3\)$"):
        Slice(**values).output_shape(X)


@pytest.mark.parametrize("values", [{"axis": 0}, {"axis": None}, {"start": 1.5}, {"stop": "3"}, {"step": 0}])
def test_bad_values(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ConfigurationError, match=f"^Slice: {name} must be an integer"):
        Slice(**values)
