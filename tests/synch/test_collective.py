"""Sums between devices. All collectives pass the same tests, NCCL's on GPUs that are none, and on those there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels.cuda.api import gpus
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.cuda.transfer import to_device, to_host
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.runtime.cuda.synchroniser import NcclCollective
from crossbow.synch import Collective, HostCollective
from crossbow.testing import FakeCollective
from crossbow.types import Array
from tests.cluster.fake_network import FakeNetwork
from tests.kernels.cuda.fake import fake_cuda
from tests.support import SECONDS


@dataclass(frozen=True)
class Group:
    """A collective, with the ways to its devices' memory."""

    collective: Collective
    send: Callable[[Sequence[Array]], list[Any]]
    """A vector of one's own to each device; any number of vectors."""
    fetch: Callable[[Sequence[Any]], list[Array]]


@contextmanager
def host(devices: int) -> Iterator[Group]:
    yield Group(HostCollective(devices), lambda own: [vector.copy() for vector in own], list)


@contextmanager
def fake(devices: int) -> Iterator[Group]:
    yield Group(FakeCollective(devices), lambda own: [vector.copy() for vector in own], list)


@contextmanager
def nccl(devices: int) -> Iterator[Group]:
    """On GPUs, each with a stream."""
    streams = [CudaStream(f"sum-{device}", device) for device in range(devices)]
    collective = NcclCollective(streams, FakeNetwork(1).ranks()[0])

    def send(own: Sequence[Array]) -> list[Any]:
        vectors = []
        for number, values in enumerate(own):
            with on(streams[number % devices].place):
                vectors.append(to_device(values))
        return vectors

    def fetch(vectors: Sequence[Any]) -> list[Array]:
        fetched = []
        for number, vector in enumerate(vectors):
            with on(streams[number % devices].place):
                fetched.append(to_host(vector).copy())
        return fetched

    yield Group(collective, send, fetch)
    for stream in streams:
        assert stream.wait(SECONDS)
    collective.close()
    for stream in streams:
        assert stream.close()


@contextmanager
def nccl_on_no_gpu(devices: int) -> Iterator[Group]:
    with fake_cuda(devices), nccl(devices) as group:
        yield group


KINDS = [host, fake, nccl_on_no_gpu]
EVERYWHERE = pytest.mark.parametrize("kind", [*KINDS, pytest.param(nccl, marks=pytest.mark.gpu)])
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# What holds of all of them.


@EVERYWHERE
@TYPES
@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_every_device_has_the_sum(kind: Any, devices: int, dtype: Any) -> None:
    """And each keeps its own memory, so that the next sum is of all again. On as many GPUs as there are, if so many."""
    if kind is nccl and devices > len(gpus()):
        pytest.skip(f"needs {devices} GPUs")
    own = [np.arange(1000, dtype=dtype) * 4**place for place in range(devices)]
    expected = np.sum(own, axis=0)
    with kind(devices) as group:
        vectors = group.send(own)
        for times in (1, devices, devices**2):
            group.collective.all_reduce(vectors)
            for vector in group.fetch(vectors):
                assert vector.dtype == dtype
                np.testing.assert_array_equal(vector, times * expected)


@pytest.mark.parametrize("kind", KINDS)
@TYPES
@settings(max_examples=30)
@given(data=st.data())
def test_the_sum_runs_in_device_order_on_all_devices(kind: Any, dtype: Any, data: st.DataObject) -> None:
    """Rounding depends on the order, so the order is part of the result: ((a + b) + c) + …, bit for bit everywhere."""
    devices = data.draw(st.integers(1, 5))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    scales = 10.0 ** generator.integers(-6, 7, (devices, 17))
    own = [(generator.standard_normal(17) * scale).astype(dtype) for scale in scales]
    expected = own[0].copy()
    for vector in own[1:]:
        expected = expected + vector
    with kind(devices) as group:
        vectors = group.send(own)
        group.collective.all_reduce(vectors)
        for vector in group.fetch(vectors):
            assert vector.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_matters_so_it_must_be_kept(kind: Any) -> None:
    """In float32 1 is lost beside 2³⁰: (2³⁰ + 1) − 2³⁰ = 0, but 2³⁰ − 2³⁰ + 1 = 1."""
    big = 2.0**30
    for values, expected in (((big, 1, -big), 0), ((big, -big, 1), 1)):
        with kind(3) as group:
            vectors = group.send([np.array([value], np.float32) for value in values])
            group.collective.all_reduce(vectors)
            assert [vector[0] for vector in group.fetch(vectors)] == [expected] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("own", "received"),
    [
        ([np.ones(3)], r"1 of \[\(\(3,\), 'float64'\)\]"),
        ([np.ones(3)] * 3, r"3 of \[\(\(3,\), 'float64'\)\]"),
        ([], r"0 of \[\]"),
        ([np.ones(3), np.ones(4)], r"2 of \[\(\(3,\), 'float64'\), \(\(4,\), 'float64'\)\]"),
        ([np.ones(3), np.ones(3, np.float32)], r"2 of \[\(\(3,\), 'float32'\), \(\(3,\), 'float64'\)\]"),
    ],
)
def test_vectors_that_do_not_go_together_are_refused(kind: Any, own: list[Array], received: str) -> None:
    """Before anything is done: nothing has changed, and the next sum is right."""
    text = rf"all_reduce: expected 2 vectors of one size and type\. Received: {received}$"
    with kind(2) as group:
        vectors = group.send(own)
        with pytest.raises(ValueError, match=text):
            group.collective.all_reduce(vectors)
        for vector, before in zip(group.fetch(vectors), own, strict=True):
            np.testing.assert_array_equal(vector, before)
        vectors = group.send([np.ones(3), np.ones(3)])
        group.collective.all_reduce(vectors)
        assert [vector.tolist() for vector in group.fetch(vectors)] == [[2, 2, 2]] * 2
