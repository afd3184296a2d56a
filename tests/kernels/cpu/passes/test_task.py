"""The compiled loading of a batch: conversion, order, and no other slot's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.requests import LoadBatch
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, both, state, tensor


@pairwise
@pytest.mark.parametrize("shape", [(3, 7), (2, 1, 5, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("label_dtype", [np.int32, np.float32])
@pytest.mark.parametrize("slot", [0, 2])
def test_it_agrees_with_the_reference(shape: Shape, dtype: Any, label_dtype: Any, slot: int) -> None:
    slots = (255 * np.random.default_rng(0).random((3, *shape))).astype(dtype)
    slot_labels = np.arange(3 * shape[0]).reshape(3, shape[0]).astype(label_dtype)
    labels = Tensor(slot_labels.shape[1:], slot_labels.dtype)
    request = LoadBatch(
        Tensor(slots.shape, slots.dtype), tensor(shape), Tensor(slot_labels.shape, slot_labels.dtype), labels, 1 / 255
    )
    values = {"slots": slots, "slot_labels": slot_labels, "state": state(SLOT=slot)}
    actual, expected = both(COMPILED, request, {"input": tensor(shape), "labels": labels}, values, by="numba")
    for role in ("input", "labels"):
        np.testing.assert_array_equal(actual[role], expected[role])
    np.testing.assert_array_equal(actual["labels"], slot_labels[slot])
    np.testing.assert_allclose(actual["input"], slots[slot] / 255, rtol=1e-6)


def test_other_types_are_left_to_the_reference() -> None:
    int32, int64 = Tensor((2,), np.dtype(np.int32)), Tensor((2,), np.dtype(np.int64))
    bytes_, x = Tensor((3, 2, 7), np.dtype(np.uint8)), Tensor((2, 7), FLOAT32)
    narrow, three = Tensor((3, 2, 7), np.dtype(np.float16)), Tensor((3, 2), np.dtype(np.int32))
    three_wide = Tensor((3, 2), np.dtype(np.int64))
    swapped = Tensor((3, 2, 7), np.dtype(np.float32).newbyteorder())
    for request in (
        LoadBatch(narrow, x, three, int32, 1.0),
        LoadBatch(swapped, x, three, int32, 1.0),
        LoadBatch(bytes_, x, three_wide, int64, 1.0),
    ):
        assert COMPILED.prepare(request).name.endswith("reference")
    image = Tensor((2, 3, 1, 1), FLOAT32, Layout.PLAIN)
    request = LoadBatch(Tensor((3, 2, 3, 1, 1), FLOAT32), image, three, int32, 1.0)
    assert COMPILED.prepare(request).name.endswith("numba")
