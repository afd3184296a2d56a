"""Tensors of 16 bits on a GPU. (On one that is none: tests/kernels/cuda/test_mixed.py.)"""

from __future__ import annotations

import pytest

from tests.operators.narrow import NARROW_CASES, UNITS, compare, tolerance
from tests.operators.table import Case
from tests.operators.test_table import assert_close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("case", NARROW_CASES, ids=str)
def test_operators_agree_with_the_reference(
    case: Case, channels_last: bool, name: str, request: pytest.FixtureRequest
) -> None:
    device = request.config.getoption("--device")
    received, expected = compare(case, name, device=device, channels_last=channels_last)
    assert_close(received, expected, tolerance(case, name))
