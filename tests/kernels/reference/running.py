"""What the tests of the reference kernels share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import PreparedKernel, State
from crossbow.types import Layout, Shape, Tensor

Numbers = NDArray[Any]
DTYPES = (np.float32, np.float64)


def tensor(shape: Shape, dtype: Any = np.float64, layout: Layout = Layout.PLAIN) -> Tensor:
    return Tensor(shape, np.dtype(dtype), layout)


def draw(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Numbers:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def channels_last(array: Numbers) -> Numbers:
    """The same image batch, N, H, W, C in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def nan(shape: Shape, dtype: Any = np.float64) -> Numbers:
    """An array that a kernel has to overwrite."""
    return np.full(shape, np.nan, dtype)


def state(**positions: int) -> Numbers:
    """A task state: `state(EXAMPLES=3)`."""
    values = np.zeros(State.SIZE, np.int64)
    for name, value in positions.items():
        values[getattr(State, name)] = value
    return values


def run(kernel: PreparedKernel, **buffers: Numbers) -> None:
    """Bind the roles that the kernel names, and call it. What it only reads must come out unchanged."""
    if kernel.kept and "kept" not in buffers:
        buffers["kept"] = aligned_zeros(kernel.kept)
    before = {role: buffers[role].copy() for role in kernel.reads if role not in kernel.writes}
    for call in kernel.bind({role: buffers[role] for role in (*kernel.reads, *kernel.writes)}):
        call()
    written = [buffers[role] for role in kernel.writes]
    for role, value in before.items():
        if not any(np.shares_memory(buffers[role], other) for other in written):
            np.testing.assert_array_equal(buffers[role], value)
