"""A request to the CUDA library on the emulated GPU, and to the reference library, on the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.reference import Reference
from crossbow.types import Layout, Tensor
from tests.kernels.cuda.fake import fake_cuda

Numbers = NDArray[Any]
Tensors = Mapping[str, Tensor]
Prepare = Callable[[KernelLibrary, Tensors], PreparedKernel]
"""From a library and the tensors by role to a kernel."""
SOURCES = {"output": "input0", "input_gradient": "output_gradient"}


def run(
    prepare: Prepare, tensors: Tensors, values: Mapping[str, Any], *, in_place: bool = False, reference: bool = False
) -> dict[str, Numbers]:
    """What is written, by role and in logical order. Values of roles without a tensor are arrays as they are.

    Where it says so, the written role shares memory with what is read. The reference library computes in float64, all
    tensors plain.
    """
    if reference:
        tensors = {role: _exact(tensor) for role, tensor in tensors.items()}
        kernel = prepare(Reference(np.float64), tensors)
        return _run(kernel, tensors, values, in_place)
    with fake_cuda():
        floats = [tensor.dtype for role, tensor in tensors.items() if role != "labels"]
        kernel = prepare(Cuda(floats[0]), tensors)
        return _run(kernel, tensors, values, in_place)


def agree(
    prepare: Prepare, tensors: Tensors, values: Mapping[str, Any], tolerance: float = 0, *, in_place: bool = False
) -> dict[str, Numbers]:
    """Both libraries compute the same, relative to the largest magnitude. Returned: what the CUDA library wrote."""
    expected = run(prepare, tensors, values, reference=True)
    received = run(prepare, tensors, values, in_place=in_place)
    assert received.keys() == expected.keys()
    for role, value in expected.items():
        if role != "kept":
            scale = float(np.max(np.abs(value[np.isfinite(value)]), initial=0)) or 1.0
            np.testing.assert_allclose(received[role], value, rtol=0, atol=tolerance * scale, err_msg=role)
    return received


def _exact(tensor: Tensor) -> Tensor:
    return Tensor(tensor.shape, np.dtype(np.float64) if tensor.dtype.kind == "f" else tensor.dtype, Layout.PLAIN)


def _run(kernel: PreparedKernel, tensors: Tensors, values: Mapping[str, Any], in_place: bool) -> dict[str, Numbers]:
    buffers: dict[str, Numbers] = {}
    for role in dict.fromkeys((*kernel.reads, *kernel.writes)):
        if role in tensors:
            tensor = tensors[role]
            buffers[role] = tensor.view(aligned_zeros(tensor.nbytes))
            buffers[role][...] = values.get(role, np.nan)
        elif role != "kept" or "kept" in values:
            buffers[role] = np.array(values[role])
    if kernel.kept:
        buffers["kept"] = np.full(kernel.kept, 0xFF, np.uint8)
    if in_place:
        assert kernel.in_place is not None
        read, written = kernel.in_place
        buffers[written] = buffers[read]
    given = dict(buffers)
    if kernel.workspace:
        given["workspace"] = np.full(kernel.workspace, 0xFF, np.uint8)
    before = {role: buffers[role].copy() for role in kernel.reads}
    for call in kernel.bind(given):
        call()
    for role, value in before.items():
        if not any(np.shares_memory(buffers[role], buffers[other]) for other in kernel.writes):
            np.testing.assert_array_equal(buffers[role], value)
    return {role: buffers[role].copy(order="C") for role in kernel.writes}
