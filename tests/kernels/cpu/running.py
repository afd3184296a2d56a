"""The same request to the reference library and to oneDNN, on the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import PreparedKernel, State, Storage, Variable
from crossbow.kernels.native import NativeCall
from crossbow.kernels.reference import Reference
from crossbow.types import Shape, Tensor
from tests.kernels.cpu import REASON

if REASON is not None:
    pytest.skip(f"oneDNN is not usable here: {REASON}", allow_module_level=True)

from crossbow.kernels.cpu.library import Cpu

Numbers = NDArray[Any]
FLOAT32 = np.dtype(np.float32)
REFERENCE = Reference(np.float64)
ONEDNN = Cpu()


def tensor(shape: Shape, dtype: Any = np.float32, library: Any = ONEDNN) -> Tensor:
    """An activation as the compiler would describe it."""
    return Tensor(shape, np.dtype(dtype), library.layout(shape))


def draw(shape: Shape, seed: int = 0) -> Numbers:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def memory(kind: Tensor, values: Numbers | None = None) -> Numbers:
    """Memory for a tensor, filled with values, or with NaN so that whatever is not written shows."""
    view = kind.view(aligned_zeros(kind.nbytes + 64))
    view[...] = (np.nan if kind.dtype.kind == "f" else 0) if values is None else values
    return view


def state(**positions: int) -> Numbers:
    values = np.zeros(State.SIZE, np.int64)
    for name, value in positions.items():
        values[getattr(State, name)] = value
    return values


def stored(values: Numbers, storage: Storage | None) -> Numbers:
    """A variable as the replica holds it."""
    if storage is None:
        return values.copy()
    flat = np.full(storage.elements, np.nan, np.float32)
    storage.pack(values, flat)
    np.testing.assert_array_equal(unstored(flat, storage, values.shape), values)
    return flat


def unstored(flat: Numbers, storage: Storage | None, shape: Shape) -> Numbers:
    if storage is None:
        return flat
    plain = np.full(shape, np.nan, np.float32)
    storage.unpack(flat, plain)
    padding = np.count_nonzero(flat) - np.count_nonzero(plain)
    assert padding == 0, f"the padding of {storage} does not stay zero"
    return plain


def execute(kernel: PreparedKernel, buffers: Mapping[str, Numbers], *, native: bool = True) -> None:
    """Bind and call; `native`: no Python may run in the call."""
    extra = {"workspace": aligned_zeros(kernel.workspace)}
    if kernel.kept and "kept" not in buffers:
        raise AssertionError("the kernel needs memory that is kept")
    missing = {*kernel.reads, *kernel.writes} - set(buffers)
    assert not missing, f"the kernel wants {missing}"
    calls = kernel.bind({**buffers, **extra})
    if native:
        assert all(isinstance(call, NativeCall) for call in calls), kernel.name
    for call in calls:
        call()


def close(actual: Numbers, expected: Numbers, terms: int = 1) -> None:
    """Float32 against float64: rounding grows with the root of the number of terms."""
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * scale * max(1.0, np.sqrt(terms)))


def with_storage(variable: Variable, kernel: PreparedKernel, name: str = "weights") -> Variable:
    return replace(variable, storage=kernel.storages.get(name))
