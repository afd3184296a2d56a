"""Copies between the host and the emulated GPU, which reports missing waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import CudaKernel, on
from crossbow.kernels.cuda.transfer import through_host, to_device, to_host
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.types import Array
from tests.kernels.cuda.fake import fake_cuda

FLOAT32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24, dtype=np.int64).reshape(2, 3, 4),
        np.arange(24, dtype=np.float32).reshape(4, 6).T,  # not contiguous
        np.arange(10, dtype=np.int32)[::-2],
        np.zeros((3, 1), np.float64),
    ],
    ids=["numbers", "transposed", "backwards", "a column"],
)
def test_values_arrive_and_come_back(values: np.ndarray[Any, Any]) -> None:
    with fake_cuda():
        array = to_device(values)
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        back = to_host(array)
    np.testing.assert_array_equal(back, values)
    assert back.flags.c_contiguous


def test_reading_waits_for_the_streams_earlier_work() -> None:
    with fake_cuda(seed=3):
        stream = CudaStream("learner-0", 0, libraries=True)
        x = to_device(np.arange(8, dtype=np.float32))
        with on(stream.place):
            y = api().zeros(32).view(FLOAT32)
            CudaKernel("inner_product", "repeat", FLOAT32).each(8, x, y, *map(np.int64, (8, 1, 1)))()
            assert to_host(y).tolist() == list(range(8))


def test_the_host_may_change_its_values_afterwards() -> None:
    values = np.arange(8, dtype=np.float32)
    with fake_cuda():
        array = to_device(values)
        values[:] = -1
        assert to_host(array).tolist() == list(range(8))


@pytest.mark.parametrize("seed", [0, 3])
def test_the_host_changes_a_vector_in_the_order_of_the_stream(seed: int) -> None:
    seen: list[list[float]] = []

    def double(vector: Array) -> None:
        seen.append(vector.tolist())
        vector[...] *= 2

    with fake_cuda(seed=seed):
        stream = CudaStream("learner-0", 0, libraries=True)
        x = to_device(np.arange(8, dtype=np.float32))
        with on(stream.place):
            y, z = (api().zeros(32).view(FLOAT32) for _ in range(2))
            change = through_host(y, double)
            before, after = (
                CudaKernel("inner_product", "repeat", FLOAT32).each(8, *pair, *map(np.int64, (8, 1, 1)))
                for pair in ((x, y), (y, z))
            )
            for call in (before, change, after):
                call()
            assert to_host(z).tolist() == [2.0 * each for each in range(8)]
    assert seen == [list(range(8))]
