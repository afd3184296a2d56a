"""Functions of arrays as kernels: their parameters are roles and fields of the request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from crossbow.kernels.reference import prepare
from crossbow.kernels.registry import Registry
from crossbow.kernels.requests import Request
from crossbow.types import Tensor
from tests.kernels.reference.running import Numbers, run, tensor


@dataclass(frozen=True)
class Shift(Request):
    """output = input0 + offset."""

    x: Tensor
    offset: float
    relu: bool = False
    bits: int = 0

    reads, writes, in_place = ("input0",), ("output",), ("input0", "output")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """In place of the library's, which keeps its kernels."""
    empty = Registry("test")
    monkeypatch.setattr(prepare, "REFERENCE", empty)
    return empty


def shift(*, input0: Numbers, output: Numbers, offset: float) -> None:
    output[...] = input0 + offset


def test_a_function_is_a_kernel(registry: Registry) -> None:
    assert prepare.computes(Shift)(shift) is shift
    (candidate,) = registry.candidates(Shift)
    kernel = candidate.prepare(Shift(tensor((3,)), 0.5))
    assert (kernel.name, kernel.reads, kernel.writes) == ("shift reference", ("input0",), ("output",))
    assert (kernel.kept, kernel.in_place) == (0, ("input0", "output"))
    x, y = np.array([-2.0, 0, 1]), np.zeros(3)
    run(kernel, input0=x, output=y)
    assert y.tolist() == [-1.5, 0.5, 1.5]
    run(candidate.prepare(Shift(tensor((3,)), 0.5, relu=True)), input0=x, output=y)
    assert y.tolist() == [0, 0.5, 1.5]


def test_a_call_reads_its_buffers_when_it_is_made(registry: Registry) -> None:
    prepare.computes(Shift)(shift)
    x, y = np.zeros(1), np.zeros(1)
    (call,) = registry.candidates(Shift)[0].prepare(Shift(tensor((1,)), 1.0)).bind({"input0": x, "output": y})
    x[0] = 41
    call()
    assert y[0] == 42


def test_conditions_and_sizes_are_asked_of_the_request(registry: Registry) -> None:
    decorate = prepare.computes(Shift, lambda request: request.offset > 0, kept=lambda r: r.bits // 8, in_place=False)
    decorate(shift)
    (candidate,) = registry.candidates(Shift)
    assert [candidate.when(Shift(tensor((1,)), offset)) for offset in (0.0, 1.0)] == [False, True]
    kernel = candidate.prepare(Shift(tensor((1,)), 1.0, bits=64))
    assert (kernel.kept, kernel.in_place) == (8, None)
