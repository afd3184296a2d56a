from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import Aborted
from crossbow.kernels.reference import Reference
from tests.kernels.reference.running import DTYPES, nan, run, state, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_load_batch(kind: Any, dtype: Any) -> None:
    slots = np.arange(3 * 2 * 1 * 4 * 5).reshape(3, 2, 1, 4, 5).astype(kind)
    slot_labels = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    x, labels = nan((2, 1, 4, 5), dtype), np.zeros(2, np.int32)
    kernel = Reference(dtype).load_batch(
        tensor(slots.shape, kind),
        tensor(x.shape, dtype),
        tensor(slot_labels.shape, np.int32),
        tensor(labels.shape, np.int32),
        1 / 255,
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
    kernel = Reference().load_batch(t, t, t, t, 2.0)
    run(kernel, slots=slots, slot_labels=slot_labels, input=x, labels=labels, state=state(SLOT=1))
    np.testing.assert_array_equal(x, np.full((3, 4), 2))
    np.testing.assert_array_equal(labels, slot_labels[1])


def waiting(flags: list[int], lag: int, tick: int) -> dict[str, Any]:
    return {
        "flags": np.array(flags, np.int64),
        "lag": np.array([lag], np.int64),
        "abort": np.zeros(1, np.int64),
        "state": state(TICK=tick),
    }


@pytest.mark.parametrize(("flags", "lag"), [([5, 9], 0), ([4, 4], 1), ([], 0), ([-1], 6)])
def test_wait_returns_at_once_when_all_are_there(flags: list[int], lag: int) -> None:
    run(Reference().wait(), **waiting(flags, lag, tick=5))


def test_wait_returns_when_the_last_flag_is_set() -> None:
    buffers = waiting([5, 4], 0, tick=5)
    (call,) = Reference().wait().bind(buffers)
    (signal,) = Reference().signal().bind({"state": state(TICK=5), "flag": buffers["flags"][1:]})
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.02)
    assert thread.is_alive()
    signal()
    thread.join(timeout=5)
    assert not thread.is_alive()
    np.testing.assert_array_equal(buffers["flags"], [5, 5])


def test_wait_gives_up_when_told_to() -> None:
    buffers = waiting([5, 4], 0, tick=5)
    (call,) = Reference().wait().bind(buffers)
    raised: list[BaseException] = []

    def learner() -> None:
        try:
            call()
        except Aborted as error:
            raised.append(error)

    thread = threading.Thread(target=learner)
    thread.start()
    time.sleep(0.02)
    buffers["abort"][0] = 1
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_wait_gives_up_even_if_all_are_there() -> None:
    buffers = waiting([5], 0, tick=5)
    buffers["abort"][0] = 1
    (call,) = Reference().wait().bind(buffers)
    with pytest.raises(Aborted):
        call()


def test_signal() -> None:
    flag = np.zeros(1, np.int64)
    run(Reference().signal(), state=state(TICK=7), flag=flag)
    assert flag[0] == 7
