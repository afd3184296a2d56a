"""Kernels of several passes: workspace, places, names, and lifetimes of buffers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.requests import CopyForward
from crossbow.types import Tensor, address
from tests.kernels.cpu.buffers import FLOAT32, Numbers

from crossbow.kernels.compiled import float32_at, native_pass  # isort: skip - after the module that skips without numba
from crossbow.kernels.cpu.steps import ALIGNMENT, Steps, location

T = Tensor((3,), FLOAT32)


@native_pass(Arguments(source=Address, target=Address, factor=float, offset=Address))
def scale(block: Any) -> int:
    """target = factor · source (+ offset)."""
    source, target = float32_at(block.source), float32_at(block.target)
    for index in range(3):
        target[index] = source[index] * block.factor
        if block.offset != 0:
            target[index] += float32_at(block.offset)[index]
    return 0


def buffers(workspace: int = 0) -> dict[str, Numbers]:
    room = aligned_zeros(workspace)
    return {"input0": np.array([1, 2, 3], np.float32), "output": np.zeros(6, np.float32), "workspace": room}


def test_passes_run_in_order_on_places_and_arrays() -> None:
    steps, offset = Steps(CopyForward(T, T), "by", "hand"), np.array([1, 1, 5], np.float32)
    unused, middle = steps.reserve(1), steps.reserve(12)
    assert (unused, middle, steps.workspace) == (0, ALIGNMENT, 2 * ALIGNMENT)
    steps.add_pass("first", scale, source="input0", target=middle, factor=2.0, offset=None)
    steps.add_pass("second", scale, source=middle, target=("output", 12), factor=-1.0, offset=offset)
    kernel = steps.prepared(in_place=False)
    assert (kernel.name, kernel.workspace) == ("copy_forward by hand numba numba", 2 * ALIGNMENT)
    assert kernel.in_place is None
    given = buffers(kernel.workspace)
    first, second = kernel.bind(given)
    first()
    assert given["output"].tolist() == [0] * 6
    second()
    assert given["output"].tolist() == [0, 0, 0, -1, -3, -1]
    assert given["workspace"].view(np.float32)[ALIGNMENT // 4 :][:3].tolist() == [2, 4, 6]
    assert "copy_forward second" in str(second)


def test_calls_keep_their_buffers() -> None:
    """Without a workspace none is needed."""
    steps, given = Steps(CopyForward(T, T)), buffers()
    del given["workspace"]
    steps.add_pass("pass", scale, source="input0", target="output", factor=2.0, offset=None)
    calls, gone = steps.bind(given), weakref.ref(given["output"])
    del given
    gc.collect()
    assert gone() is not None
    del calls
    gc.collect()
    assert gone() is None


def test_arguments_that_a_pass_does_not_have_are_refused_while_preparing() -> None:
    with pytest.raises(TypeError, match="scale"):
        Steps(CopyForward(T, T)).add_pass("pass", scale, source="input0", target="output")


def test_locations() -> None:
    given = buffers()
    assert location(None, given, 4096) == 0
    assert location(64, given, 4096) == 4160
    assert location("output", given, 4096) == address(given["output"])
    assert location(("output", 8), given, 4096) == address(given["output"]) + 8
