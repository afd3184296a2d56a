from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LoadBatch, Signal, Wait
from crossbow.types import Aborted
from tests.kernels.reference.running import DTYPES, nan, run, state, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_load_batch(kind: Any, dtype: Any) -> None:
    slots = np.arange(3 * 2 * 1 * 4 * 5).reshape(3, 2, 1, 4, 5).astype(kind)
    slot_labels = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    x, labels = nan((2, 1, 4, 5), dtype), np.zeros(2, np.int32)
    kernel = Reference(dtype).prepare(
        LoadBatch(
            tensor(slots.shape, kind),
            tensor(x.shape, dtype),
            tensor(slot_labels.shape, np.int32),
            tensor(labels.shape, np.int32),
            1 / 255,
        )
    )
    buffers = {"slots": slots, "slot_labels": slot_labels, "input": x, "labels": labels}
    for slot in (2, 0):
        run(kernel, **buffers, state=state(SLOT=slot))
        np.testing.assert_array_equal(x, slots[slot].astype(dtype) * dtype(1 / 255))
        np.testing.assert_array_equal(labels, slot_labels[slot])


def test_load_batch_with_values_as_labels() -> None:
    slots, slot_labels = np.ones((2, 3, 4)), np.arange(12.0).reshape(2, 3, 2)
    x, labels = nan((3, 4), np.float32), nan((3, 2), np.float32)
    t = tensor((1,))
    kernel = Reference().prepare(LoadBatch(t, t, t, t, 2.0))
    run(kernel, slots=slots, slot_labels=slot_labels, input=x, labels=labels, state=state(SLOT=1))
    np.testing.assert_array_equal(x, np.full((3, 4), 2))
    np.testing.assert_array_equal(labels, slot_labels[1])


def waiting(flags: list[int], tick: int, abort: int = 0) -> dict[str, Any]:
    return {"flags": np.array(flags, np.int64), "abort": np.array([abort], np.int64), "state": state(TICK=tick)}


class Waiter:
    """A wait in a thread of its own, so that a test of a wait that never returns fails instead of hanging."""

    def __init__(self, buffers: dict[str, Any]) -> None:
        (self.call,) = Reference().prepare(Wait()).bind(buffers)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.call()
        except Exception as error:
            self.error = error

    def returns(self, seconds: float = 60) -> bool:
        self.thread.join(timeout=seconds)
        return not self.thread.is_alive()


@pytest.mark.parametrize("flags", [[5, 9], [], [5]])
@pytest.mark.parametrize("abort", [0, 1])  # what all may begin, all finish
def test_wait_returns_when_all_are_there(flags: list[int], abort: int) -> None:
    waiter = Waiter(waiting(flags, 5, abort))
    assert waiter.returns()
    assert waiter.error is None


def test_wait_returns_when_the_last_flag_is_set() -> None:
    buffers = waiting([5, 4], tick=5)
    waiter = Waiter(buffers)
    assert not waiter.returns(0.05)
    (signal,) = Reference().prepare(Signal()).bind({"state": state(TICK=5), "flag": buffers["flags"][1:]})
    signal()
    assert waiter.returns()
    assert waiter.error is None
    np.testing.assert_array_equal(buffers["flags"], [5, 5])


def test_wait_gives_up_when_told_to() -> None:
    buffers = waiting([5, 4], tick=5)
    waiter = Waiter(buffers)
    assert not waiter.returns(0.05)
    buffers["abort"][0] = 1
    assert waiter.returns()
    assert isinstance(waiter.error, Aborted)


def test_signal() -> None:
    flag = np.zeros(1, np.int64)
    run(Reference().prepare(Signal()), state=state(TICK=7), flag=flag)
    assert flag[0] == 7
