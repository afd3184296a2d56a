"""Synchronous copies between the host and the current GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.types import Array, address


def to_device(values: NDArray[Any]) -> Array:
    """A copy in the GPU's memory, which is complete on return. For constants of kernels, while binding."""
    runtime, memory = api().runtime, api().zeros(values.nbytes)
    stage = api().pinned(values.nbytes)
    stage[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    # The default stream need not wait for the device's other streams.
    runtime.memcpyAsync(address(memory), address(stage), values.nbytes, runtime.memcpyHostToDevice, 0)
    runtime.streamSynchronize(0)
    array: Array = memory.view(values.dtype).reshape(values.shape)
    return array


def to_host(array: Array) -> NDArray[Any]:
    """A contiguous copy on the host, after the current stream's earlier work, for which this function waits."""
    runtime, stream, copy = api().runtime, current().pointer, api().pinned(array.nbytes)
    runtime.memcpyAsync(address(copy), address(array), array.nbytes, runtime.memcpyDeviceToHost, stream)
    runtime.streamSynchronize(stream)
    return copy.view(array.dtype).reshape(array.shape)


def through_host(vector: Array, work: Callable[[Array], None]) -> Callable[[], None]:
    """Return a call with which the host changes a vector: `work` gets a copy in the host's memory, after the current
    stream's earlier work, for which the call waits. The stream's later work sees the changed vector."""
    copy = api().pinned(vector.nbytes).view(vector.dtype)

    def call() -> None:
        runtime, stream = api().runtime, current().pointer
        runtime.memcpyAsync(address(copy), address(vector), copy.nbytes, runtime.memcpyDeviceToHost, stream)
        runtime.streamSynchronize(stream)
        work(copy)
        runtime.memcpyAsync(address(vector), address(copy), copy.nbytes, runtime.memcpyHostToDevice, stream)

    return call
