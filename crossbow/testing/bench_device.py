"""The device on which a bench's kernels run: the CPU, or a GPU with a mirror of the bench's memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import Call
from crossbow.testing.arguments import Numbers, gpu_number
from crossbow.types import address

if TYPE_CHECKING:
    from crossbow.runtime.cuda.stream import CudaStream


class BenchDevice(Protocol):
    """Allocates memory, and runs calls that were bound to it."""

    def current(self) -> AbstractContextManager[None]:
        """The context in which kernels are prepared, bound and called."""

    def allocate(self, nbytes: int) -> tuple[Numbers, Any]:
        """Zeroed bytes (uint8, 1-D) for the host, and the corresponding memory for kernels."""

    def run(self, calls: Sequence[Call], host: Numbers, device: Any) -> None:
        """Make the calls. Host memory is copied to the device before them, and back afterwards."""


class BenchCpu:
    """The CPU, where kernels and host share memory."""

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, nbytes: int) -> tuple[Numbers, Numbers]:
        memory: Numbers = aligned_zeros(nbytes)
        return memory, memory

    def run(self, calls: Sequence[Call], host: Numbers, device: Numbers) -> None:
        for call in calls:
            call()


class BenchGpu:
    """A GPU with its own stream. All memory is copied to it before calls, and back afterwards."""

    def __init__(self, stream: CudaStream) -> None:
        self.stream = stream

    def current(self) -> AbstractContextManager[None]:
        from crossbow.kernels.cuda.launch import on

        return on(self.stream.place)

    def allocate(self, nbytes: int) -> tuple[Numbers, Any]:
        from crossbow.kernels.cuda.api import api

        return api().pinned(nbytes), api().zeros(nbytes)

    def run(self, calls: Sequence[Call], host: Numbers, device: Any) -> None:
        from crossbow.kernels.cuda.api import api

        runtime, stream = api().runtime, self.stream.place.pointer
        try:
            runtime.memcpyAsync(address(device), address(host), host.nbytes, runtime.memcpyHostToDevice, stream)
            for call in calls:
                call()
        finally:  # also after an exception: the memory must not be freed before the copy is done
            runtime.streamSynchronize(stream)
        runtime.memcpyAsync(address(host), address(device), host.nbytes, runtime.memcpyDeviceToHost, stream)
        runtime.streamSynchronize(stream)


_streams: weakref.WeakKeyDictionary[Any, dict[tuple[int, bool], CudaStream]] = weakref.WeakKeyDictionary()
"""Streams by the libraries in use, the GPU, and the use of TF32, cached because handles are expensive to create."""


def bench_device(device: str, *, tf32: bool = False) -> BenchDevice:
    """The device on which a library's kernels run. Raises ConfigurationError for an unusable GPU."""
    if not device.startswith("cuda"):
        return BenchCpu()
    from crossbow.kernels.cuda.api import api
    from crossbow.runtime.cuda.stream import CudaStream

    streams, number = _streams.setdefault(api(), {}), gpu_number(device)
    if (number, tf32) not in streams:
        streams[number, tf32] = CudaStream("testing", number, libraries=True, tf32=tf32)
    return BenchGpu(streams[number, tf32])
