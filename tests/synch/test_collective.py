"""Sums between devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.synch import FakeCollective, HostCollective
from crossbow.types import Array

Kinds = pytest.mark.parametrize("kind", [HostCollective, FakeCollective])


@Kinds
@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_every_device_has_the_sum(kind: Any, devices: int) -> None:
    vectors = [np.full(4, 10.0**index) for index in range(devices)]
    kind(devices).all_reduce(vectors)
    expected = sum(10.0**index for index in range(devices))
    for vector in vectors:
        assert vector.tolist() == [expected] * 4
    assert len({id(vector) for vector in vectors}) == devices  # each keeps its own memory


@Kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_the_sum_runs_in_device_order_on_all_devices(kind: Any, dtype: Any, data: st.DataObject) -> None:
    """Rounding depends on the order, so the order is part of the result: ((a + b) + c) + …, bit for bit everywhere."""
    devices = data.draw(st.integers(1, 5))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    scales = 10.0 ** generator.integers(-6, 7, (devices, 17))
    vectors = [(generator.standard_normal(17) * scale).astype(dtype) for scale in scales]
    expected = vectors[0].copy()
    for vector in vectors[1:]:
        expected = expected + vector
    kind(devices).all_reduce(vectors)
    for vector in vectors:
        assert vector.tobytes() == expected.tobytes()


def test_the_order_matters_so_it_must_be_kept() -> None:
    """In float32 1 is lost beside 2³⁰: (2³⁰ + 1) − 2³⁰ = 0, but 2³⁰ − 2³⁰ + 1 = 1."""
    big = np.float32(2**30)
    vectors = [np.array([value], np.float32) for value in (big, np.float32(1), -big)]
    HostCollective(3).all_reduce(vectors)
    assert [vector[0] for vector in vectors] == [0, 0, 0]
    vectors = [np.array([value], np.float32) for value in (big, -big, np.float32(1))]
    HostCollective(3).all_reduce(vectors)
    assert [vector[0] for vector in vectors] == [1, 1, 1]


@Kinds
@pytest.mark.parametrize(
    ("vectors", "received"),
    [
        ([np.zeros(3)], r"1 of \[\(\(3,\), 'float64'\)\]"),
        ([np.zeros(3)] * 3, r"3 of \[\(\(3,\), 'float64'\)\]"),
        ([], r"0 of \[\]"),
        ([np.zeros(3), np.zeros(4)], r"2 of \[\(\(3,\), 'float64'\), \(\(4,\), 'float64'\)\]"),
        ([np.zeros(3), np.zeros(3, np.float32)], r"2 of \[\(\(3,\), 'float32'\), \(\(3,\), 'float64'\)\]"),
    ],
)
def test_vectors_that_do_not_go_together_are_refused(kind: Any, vectors: list[Array], received: str) -> None:
    before = [vector.copy() for vector in vectors]
    with pytest.raises(
        ValueError, match=rf"all_reduce: expected 2 vectors of one size and type\. Received: {received}"
    ):
        kind(2).all_reduce(vectors)
    for vector, old in zip(vectors, before, strict=True):
        np.testing.assert_array_equal(vector, old)


# The fake one.


def test_it_records_the_sizes_of_every_call() -> None:
    fake = FakeCollective(2)
    for size in (3, 7):
        fake.all_reduce([np.ones(size), np.ones(size)])
    assert fake.calls == [(3, 3), (7, 7)]


def test_it_does_what_is_injected_before_the_sum() -> None:
    seen: list[int] = []

    def damage(call: int, vectors: Sequence[Any]) -> None:
        seen.append(call)
        vectors[0][0] = 100

    vectors = [np.ones(2), np.ones(2)]
    fake = FakeCollective(2, inject=damage)
    fake.all_reduce(vectors)
    fake.all_reduce(vectors)
    assert seen == [0, 1]
    assert vectors[1].tolist() == [201, 4]  # damaged twice: 100 + 1 = 101, then 100 + 101; undamaged: 2, then 4


def test_what_is_raised_is_not_caught_and_nothing_is_summed() -> None:
    def fail(call: int, vectors: Sequence[Array]) -> None:
        if call == 1:
            raise ConnectionError("device 1 is gone")

    fake = FakeCollective(2, inject=fail)
    vectors = [np.ones(2), np.ones(2)]
    fake.all_reduce(vectors)
    with pytest.raises(ConnectionError, match="device 1 is gone"):
        fake.all_reduce(vectors)
    assert vectors[0].tolist() == [2, 2]
    assert fake.calls == [(2, 2)]
