from __future__ import annotations

from typing import Any

import pytest

from crossbow.ops import Reshape
from crossbow.types import ConfigurationError


def test_shapes() -> None:
    assert Reshape(shape=[4, -1]).output_shape((5, 2, 6)) == (5, 4, 3)  # type: ignore[arg-type]
    assert Reshape(shape=(12,)).output_shape((5, 2, 6)) == (5, 12)


@pytest.mark.parametrize("shape", [(5, 2), (-1, 5), (13,)])
def test_other_numbers_of_elements(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"whose examples have as many elements as .*\. Received: \(5, 2, 6\)"):
        Reshape(shape=shape).output_shape((5, 2, 6))


def test_an_input_without_examples() -> None:
    with pytest.raises(ValueError, match=r"Received: \(\)"):
        Reshape(shape=(1,)).output_shape(())


@pytest.mark.parametrize("shape", [(0,), (-1, -1), 3, (2.0,), (-2,)])
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Reshape: shape must be a tuple"):
        Reshape(shape=shape)
