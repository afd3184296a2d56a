"""Native calls: their failures in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crossbow.kernels.native import ABORTED, BAD_INDEX, BAD_LABEL, NativeCall, NativeError
from crossbow.kernels.task_list import TaskList
from crossbow.types import Aborted
from tests.kernels.native_calls import adding


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (BAD_LABEL, "a label is not one of the classes (from 0 to their number − 1)"),
        (BAD_INDEX, "an index is not a whole number from 0 to the number of rows − 1"),
        (7, "it returned status 7, expected 0"),
    ],
)
def test_a_status_in_words(status: int, meaning: str) -> None:
    with pytest.raises(NativeError) as caught:
        adding(np.zeros(1, np.int64), 3, status=status)()
    assert str(caught.value) == f"the native call add 3 failed: {meaning}"


@pytest.mark.parametrize("alone", [True, False])
def test_a_native_call_may_explain_its_failure(alone: bool) -> None:
    cell, asked = np.zeros(1, np.int64), []

    def explain() -> None:
        asked.append(int(cell[0]))
        if cell[0] > 3:
            raise LookupError(f"expected at most 3. Received: {cell[0]}")

    failing = [replace(adding(cell, amount, status=5), explain=explain) for amount in (3, 4)]
    run = [call if alone else TaskList([call], ["a"]).run for call in failing]
    replace(adding(cell, 0), explain=explain)()  # nobody is asked where nothing fails
    with pytest.raises(NativeError, match=r"add 3.*status 5"):  # it has nothing to say
        run[0]()
    with pytest.raises(LookupError, match="Received: 34"):
        run[1]()
    assert asked == [3, 34]


def test_a_call_alone_is_the_same() -> None:
    cell = np.zeros(1, np.int64)
    adding(cell, 7)()
    assert cell[0] == 7
    with pytest.raises(NativeError, match="status 3"):
        adding(cell, 7, status=3)()


def test_an_aborted_wait_is_no_error() -> None:
    with pytest.raises(Aborted):
        adding(np.zeros(1, np.int64), 1, status=ABORTED)()


def test_arguments_are_counted() -> None:
    with pytest.raises(ValueError, match="at most 4 arguments"):
        NativeCall("f", 1, (1, 2, 3, 4, 5))
