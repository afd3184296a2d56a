"""Coefficients are copied to a GPU in stream order, from memory that is not overwritten too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.launch import on
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.memory import on_host
from tests.kernels.cuda.fake import fake_cuda


@pytest.fixture
def stream() -> Iterator[CudaStream]:
    with fake_cuda():
        made = CudaStream("test", 0)
        with on(made.place):
            yield made
        made.close()


def values(stream: CudaStream, numbers: DeviceNumbers) -> list[float]:
    """After all work of the stream."""
    stream.call(lambda: None)
    result: list[float] = on_host(numbers.array).tolist()
    return result


def test_numbers_arrive_after_what_was_submitted_before(stream: CudaStream) -> None:
    numbers = DeviceNumbers(3)
    assert values(stream, numbers) == [0, 0, 0]
    for given in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]):
        numbers.set(np.array(given))
        assert values(stream, numbers) == given


def copies(numbers: DeviceNumbers, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stages that are copied from."""
    from crossbow.kernels.cuda.api import api
    from crossbow.types import address

    runtime, made, original = api().runtime, list[int](), api().runtime.memcpyAsync
    first, size = address(numbers._stages), numbers._stages.strides[0]

    def memcpy(target: int, source: int, *rest: Any) -> None:
        made.append((source - first) // size)
        original(target, source, *rest)

    monkeypatch.setattr(runtime, "memcpyAsync", memcpy)
    return made


def test_the_same_numbers_are_not_copied_again(stream: CudaStream, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = DeviceNumbers(2)
    made, given = copies(numbers, monkeypatch), np.array([1.0, 2.0])
    numbers.set(given)
    numbers.set(given)
    numbers.set(given.copy())
    assert len(made) == 1
    numbers.set(np.array([1.0, 3.0]))
    assert len(made) == 2
    assert values(stream, numbers) == [1.0, 3.0]


def test_stages_take_turns(stream: CudaStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three copies may be pending. The fake GPU reports a stage that is overwritten before it was copied."""
    numbers = DeviceNumbers(1, stages=3)
    made = copies(numbers, monkeypatch)
    for value in (1.0, 2.0, 3.0):
        numbers.set(np.array([value]))
    assert values(stream, numbers) == [3.0]
    for value in (4.0, 5.0):
        numbers.set(np.array([value]))
    assert values(stream, numbers) == [5.0]
    assert made == [0, 1, 2, 0, 1]


def test_there_may_be_no_coefficients(stream: CudaStream) -> None:
    numbers = DeviceNumbers(0)
    numbers.set(np.zeros(0))
    assert numbers.array.size == 0
