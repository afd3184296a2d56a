"""Every row of the operator table on the CUDA library, with a GPU that is none (`fake.py`), beside the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda import launch
from crossbow.kernels.cuda.library import Cuda
from crossbow.testing import run_operator
from crossbow.types import Phase
from tests.combinations import covering, one_in
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.operators.table import CASES, Case
from tests.operators.test_table import assert_close, exact, float32_variables, run, tensors


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


ROWS = [pytest.param(case, id=str(case)) for case in CASES]
every_row = pytest.mark.parametrize("case", ROWS)
PLAIN, CHANNELS_LAST = pytest.param(False, id="plain"), pytest.param(True, id="channels-last")


def every_row_in(*layouts: Any) -> pytest.MarkDecorator:
    """By default each in one layout, in turn."""
    return pytest.mark.parametrize(("case", "channels_last"), covering(ROWS, layouts, together=1))


@every_row_in(PLAIN, CHANNELS_LAST)
def test_agrees_with_reference(case: Case, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = exact(case)
    lie(channels_last, monkeypatch)
    assert_close(tensors(run(case, device="cuda:0")), tensors(expected), case.tolerance)


@pytest.mark.slow
@one_in(2)
@every_row_in(CHANNELS_LAST, PLAIN)
def test_agrees_with_reference_when_checking(case: Case, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = float32_variables(case)
    options: dict[str, Any] = {"phase": Phase.CHECK, "examples": case.examples, "variables": variables}
    expected = run_operator(case.kernel, case.inputs(), dtype=np.float64, **options)
    lie(channels_last, monkeypatch)
    received = run_operator(case.kernel, case.inputs(), device="cuda:0", **options)
    assert_close(tensors(received), tensors(expected), case.tolerance)


@one_in(3)
@every_row
def test_in_place_changes_nothing(case: Case) -> None:
    apart, shared = (tensors(run(case, device="cuda:0", in_place=in_place)) for in_place in (False, True))
    assert apart.keys() == shared.keys()
    for name, value in apart.items():
        np.testing.assert_array_equal(shared[name], value, err_msg=name)


@pytest.mark.slow
@every_row_in(PLAIN, CHANNELS_LAST)
def test_positions_of_64_bits_agree_with_reference(
    case: Case, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LEAST_WIDE", 1)
    test_agrees_with_reference(case, channels_last, monkeypatch)


def lie(channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let images lie channels-last, or not."""
    library = lambda device, dtype, **settings: Cuda(dtype, channels_last=channels_last)  # noqa: E731
    monkeypatch.setattr("crossbow.testing.operator.library_of", library)
