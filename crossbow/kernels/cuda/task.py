"""Kernels of a task outside its operators: load the batch, store results, find numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.four import four
from crossbow.kernels.cuda.launch import BLOCK, NARROW, REALS, CudaKernel, Launch, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.cuda.transfer import to_host
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import CheckFinite, LoadBatch
from crossbow.types import Array, Layout, NonFiniteError, Shape, Tensor

LOADERS = {"uint8": "load_bytes", "float32": "load_floats", "float64": "load_doubles"}
"""Kernels by the slots' type."""
WORD = 4
"""Bytes of a label."""
SEARCH_BLOCKS = 256
"""Number of blocks, each of which searches a share of the numbers for those that are not finite."""


@CUDA.kernel(LoadBatch)
def load_batch(request: LoadBatch) -> PreparedKernel:
    slots, x, slot_labels, labels, scale = request.slots, request.x, request.slot_labels, request.labels, request.scale
    if slots.dtype.name not in LOADERS:
        raise ValueError(f"expected slots of {', '.join(LOADERS)}. Received: {slots.dtype}")
    if slot_labels.dtype != labels.dtype or labels.nbytes % WORD:
        raise ValueError(f"expected labels of the slots' type, {slot_labels.dtype}. Received: {labels.dtype}")
    kernel = CudaKernel("task", LOADERS[slots.dtype.name], x.dtype)
    channels, positions, threads = 1, x.elements, -(-x.elements // kernel.pack)
    if not x.in_logical_order:
        channels, positions, threads = x.shape[1], x.shape[2] * x.shape[3], x.elements
    numbers = (x.elements, channels, positions, labels.nbytes // WORD)

    def bind(buffers: Buffers) -> Sequence[Call]:
        arrays = (buffers[role] for role in request.roles)
        return (kernel.each(threads, *arrays, *map(np.int64, numbers), computed_in(x.dtype).type(scale)),)

    return request.prepared("cuda", bind)


def store_results(loss: Array | None, accuracy: Array | None, state: Array, results: Array) -> Launch:
    """loss, accuracy (one element each, of the same type; or None) → results, row state[TURN].

    results: (turns, 2) of float64, in pinned memory. "All host memory allocated through all devices using
    cudaMallocHost() and cudaHostAlloc() is always directly accessible from all devices that support unified
    addressing", at the same address, whatever the flags; "unified addressing is automatically enabled in 64-bit
    processes" (CUDA Runtime API, "Unified Addressing"). CuPy's `alloc_pinned_memory` calls cudaHostAlloc. The host sees
    a kernel's writes once it has waited for an event recorded after the kernel (CUDA Programming Guide, "Mapped
    Memory").
    """
    types = [value.dtype for value in (loss, accuracy) if value is not None]
    if len(set(types)) != 1:
        raise ValueError(f"expected a loss and an accuracy of one type. Received: {', '.join(map(str, types))}")
    return CudaKernel("task", "store_results", types[0]).blocks(1, loss, accuracy, state, results)


@CUDA.kernel(CheckFinite)
def check_finite(request: CheckFinite) -> PreparedKernel:
    what = request.what

    def bind(buffers: Buffers) -> Sequence[Call]:
        value = buffers["value"]
        if value.dtype.name not in (*REALS, *NARROW):
            return ()  # integers are finite
        blocks = min(max(1, -(-value.size // BLOCK)), SEARCH_BLOCKS)
        found = api().zeros(3 * 8 * blocks).view(np.int64).reshape(blocks, 3)
        channels_last = value.ndim == 4 and value.strides[1] == value.dtype.itemsize
        layout = Layout.CHANNELS_LAST if channels_last else Layout.PLAIN
        shape, kernel = (
            four(Tensor(value.shape, value.dtype, layout)),
            CudaKernel("task", "find_not_finite", value.dtype),
        )
        search = kernel.blocks(blocks, value, shape, np.int64(value.size), found, shared=8 * BLOCK)
        return (BoundFiniteCheck(search, found, what, value.shape),)

    return request.prepared("cuda", bind)


@dataclass(frozen=True)
class BoundFiniteCheck:
    """The bound call: a search, and a report of its result on the host."""

    search: Launch
    found: Array
    """For every block: the number of NaN, the number of infinite elements, and the first of them."""
    what: str
    shape: Shape

    def __call__(self) -> None:
        self.search()
        report(to_host(self.found), self.what, self.shape)


def report(found: Array, what: str, shape: Shape) -> None:
    """Raise NonFiniteError if a block has found a number that is not finite. found: as in `BoundFiniteCheck`, on the
    host."""
    nans, infinite, first = (int(v) for v in (*found[:, :2].sum(axis=0), found[:, 2].min()))
    if nans or infinite:
        place = ", ".join(str(int(index)) for index in np.unravel_index(first, shape))
        raise NonFiniteError(
            f"expected finite numbers in the {what}. Received: {nans} NaN and {infinite} infinite of "
            f"{int(np.prod(shape))}, the first at ({place})"
        )
