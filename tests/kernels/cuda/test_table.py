"""Every row of the operator table on the CUDA library, with a GPU that is none (`fake.py`), beside the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.library import Cuda
from crossbow.testing import run_operator
from crossbow.types import Phase
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.operators.table import CASES, Case
from tests.operators.test_table import assert_close, float32_variables, run, tensors


@pytest.fixture(autouse=True)
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


every_row = pytest.mark.parametrize("case", CASES, ids=str)
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


@every_row
@layouts
def test_agrees_with_reference(case: Case, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = run(case, dtype=np.float64, variables=float32_variables(case))
    lie(channels_last, monkeypatch)
    assert_close(tensors(run(case, device="cuda:0")), tensors(exact), case.tolerance)


@every_row
@layouts
def test_agrees_with_reference_when_checking(case: Case, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = float32_variables(case)
    options: dict[str, Any] = {"phase": Phase.CHECK, "examples": case.examples, "variables": variables}
    exact = run_operator(case.kernel, case.inputs(), dtype=np.float64, **options)
    lie(channels_last, monkeypatch)
    received = run_operator(case.kernel, case.inputs(), device="cuda:0", **options)
    assert_close(tensors(received), tensors(exact), case.tolerance)


@every_row
def test_in_place_changes_nothing(case: Case) -> None:
    apart, shared = (tensors(run(case, device="cuda:0", in_place=in_place)) for in_place in (False, True))
    assert apart.keys() == shared.keys()
    for name, value in apart.items():
        np.testing.assert_array_equal(shared[name], value, err_msg=name)


def lie(channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let images lie channels-last, or not."""
    library = lambda device, dtype: Cuda(dtype, channels_last=channels_last)  # noqa: E731
    monkeypatch.setattr("crossbow.testing.operator.library_of", library)
