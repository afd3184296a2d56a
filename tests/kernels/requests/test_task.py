"""What requests outside operators declare."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.requests import CheckFinite, LoadBatch, Signal, Wait
from crossbow.types import Tensor


def test_roles() -> None:
    x, labels = Tensor((2, 3), np.dtype(np.float32)), Tensor((2,), np.dtype(np.int32))
    batch = LoadBatch(Tensor((4, 2, 3), x.dtype), x, Tensor((4, 2), labels.dtype), labels, 1 / 255)
    assert (batch.reads, batch.writes) == (("slots", "slot_labels", "state"), ("input", "labels"))
    assert (CheckFinite("Conv1").reads, CheckFinite("Conv1").writes) == (("value",), ())
    assert (Wait().reads, Wait().writes) == (("flags", "abort", "state"), ())
    assert (Signal().reads, Signal().writes) == (("state",), ("flag",))


def test_requests_without_fields_are_all_equal_and_checks_are_not() -> None:
    """Equal requests share a kernel, and a check's message names its operator."""
    assert Wait() == Wait()
    assert Signal() == Signal()
    assert CheckFinite("Conv1") != CheckFinite("Conv2")
