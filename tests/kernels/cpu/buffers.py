"""Buffers for kernels of the CPU library, and the same request to it and to the reference library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels import why_not_compiled
from crossbow.kernels.interface import PreparedKernel, State, Storage, Variable
from crossbow.kernels.native import NativeCall
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import ConvolutionGeometry, Request
from crossbow.types import Shape, Tensor

if why_not_compiled() is not None:
    pytest.skip(f"no compiled kernels: {why_not_compiled()}", allow_module_level=True)

from crossbow.kernels.cpu.library import Cpu

Numbers = NDArray[Any]
FLOAT32 = np.dtype(np.float32)
REFERENCE = Reference(np.float64)
SINGLE = Reference(np.float32)
COMPILED = Cpu(onednn=False)
"""The passes, whether oneDNN is installed or not."""
SHAPES: list[Shape] = [(3, 10), (1, 1), (4, 33), (2, 20, 3, 5), (1, 1, 4, 4), (2, 16, 2, 2)]
"""Of element-wise kernels: shorter than a vector and longer, with a remainder and without, images channels-last."""


def tensor(shape: Shape, dtype: Any = np.float32, library: Any = COMPILED) -> Tensor:
    """An activation as the compiler would describe it."""
    return Tensor(shape, np.dtype(dtype), library.layout(shape))


def output_shape(x: Shape, outputs: int, g: ConvolutionGeometry) -> Shape:
    """Of a convolution."""
    sizes = tuple(
        (size + before + after - extent) // s + 1
        for size, extent, s, (before, after) in zip(x[2:], g.extent, g.stride, g.padding, strict=True)
    )
    return (x[0], outputs, *sizes)


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


def both(
    library: Cpu, request: Request, tensors: Mapping[str, Tensor], values: Mapping[str, Numbers], *, by: str
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """The results of the library's kernel and the reference's. Roles without a tensor receive their values unchanged.

    `by` is in the name of the library's kernel. It has the roles of the reference's kernel (and may have `kept`),
    its calls run without Python, and in place it gives the same bits.
    """
    fast, plain = library.prepare(request), SINGLE.prepare(request)
    assert by in fast.name.split(" (fallback")[0]
    assert tuple(role for role in fast.reads if role != "kept") == tuple(r for r in plain.reads if r != "kept")
    assert tuple(role for role in fast.writes if role != "kept") == tuple(r for r in plain.writes if r != "kept")
    results = []
    for kernel in (fast, plain):
        buffers = {role: memory(kind, values.get(role)) for role, kind in tensors.items()}
        buffers |= {role: value.copy() for role, value in values.items() if role not in tensors}
        if kernel.kept:
            buffers["kept"] = aligned_zeros(kernel.kept)
        before = {role: buffers[role].copy() for role in kernel.reads if role not in kernel.writes}
        execute(kernel, buffers, native=kernel is fast)
        for role, value in before.items():
            np.testing.assert_array_equal(buffers[role], value, err_msg=role)
        results.append({role: buffers[role] for role in plain.writes})
        if kernel.in_place is not None and kernel is fast:
            source, target = kernel.in_place
            shared = memory(tensors[source], values[source])
            execute(kernel, {**buffers, source: shared, target: shared})
            np.testing.assert_array_equal(shared, buffers[target])
    return results[0], results[1]
