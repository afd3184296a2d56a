"""Small arrays between the host and the current GPU, at once: while binding, and where the host has to see a result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current
from crossbow.types import Array, address


def to_device(values: NDArray[Any]) -> Array:
    """A copy in the GPU's memory, which is there when this returns. For constants of kernels, while binding."""
    runtime, memory = api().runtime, api().zeros(values.nbytes)
    stage = api().pinned(values.nbytes)
    stage[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    # On the default stream: this device's others need not be waited for.
    runtime.memcpyAsync(address(memory), address(stage), values.nbytes, runtime.memcpyHostToDevice, 0)
    runtime.streamSynchronize(0)
    array: Array = memory.view(values.dtype).reshape(values.shape)
    return array


def to_host(array: Array) -> NDArray[Any]:
    """A copy of an array without gaps, once the current stream has done what it was given before. This waits."""
    runtime, stream, copy = api().runtime, current().pointer, api().pinned(array.nbytes)
    runtime.memcpyAsync(address(copy), address(array), array.nbytes, runtime.memcpyDeviceToHost, stream)
    runtime.streamSynchronize(stream)
    return copy.view(array.dtype).reshape(array.shape)
