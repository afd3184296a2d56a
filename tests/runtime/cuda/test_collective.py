"""NCCL's sum of one vector per GPU: on GPUs that are none, and on those that are there, be it one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.api import gpus
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.cuda.transfer import to_device, to_host
from crossbow.runtime.cuda.collective import NcclCollective
from crossbow.runtime.cuda.stream import CudaStream
from tests.kernels.cuda.fake import fake_cuda

types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def sums(devices: Sequence[int], dtype: Any) -> None:
    """Twice on the same streams, in the order of what else they are given."""
    streams = [CudaStream(f"sum-{device}", device) for device in devices]
    collective = NcclCollective(streams)
    own = [np.arange(1000, dtype=dtype) * 10**place for place in range(len(devices))]
    expected = np.sum(own, axis=0)
    vectors = []
    for stream, values in zip(streams, own, strict=True):
        with on(stream.place):
            vectors.append(to_device(values))
    for times in (1, len(devices)):
        collective.all_reduce(vectors)
        for stream, vector in zip(streams, vectors, strict=True):
            with on(stream.place):
                np.testing.assert_array_equal(to_host(vector), times * expected)
    for stream in streams:
        assert stream.wait(10.0)
    collective.close()
    for stream in streams:
        assert stream.close()


@types
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_every_gpu_has_the_sum(devices: int, dtype: Any) -> None:
    with fake_cuda(devices):
        sums(range(devices), dtype)


def test_vectors_that_are_not_alike_are_refused() -> None:
    with fake_cuda(2):
        streams = [CudaStream("sum", device) for device in range(2)]
        collective = NcclCollective(streams)
        with pytest.raises(ValueError, match=r"expected 2 vectors of one size and type. Received: 1 of"):
            collective.all_reduce([np.zeros(3)])
        with pytest.raises(ValueError, match=r"expected 2 vectors of one size and type. Received: 2 of"):
            collective.all_reduce([np.zeros(3), np.zeros(4)])


@types
@pytest.mark.gpu
def test_every_gpu_that_is_there_has_the_sum(dtype: Any) -> None:
    sums(range(len(gpus())), dtype)


@types
@pytest.mark.gpu
def test_a_rank_alone_has_its_own(dtype: Any) -> None:
    sums([0], dtype)
