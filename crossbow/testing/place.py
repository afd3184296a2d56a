"""Where a bench's kernels run: on the processor, or on a GPU with a mirror of the bench's memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from crossbow.kernels.interface import Call
from crossbow.testing.arguments import Numbers, gpu_number
from crossbow.types import address, aligned_zeros

if TYPE_CHECKING:
    from crossbow.runtime.cuda.stream import CudaStream


class Place(Protocol):
    """Has memory, and runs calls that were bound to it."""

    def current(self) -> AbstractContextManager[None]:
        """Kernels are prepared, bound and called within."""

    def allocate(self, nbytes: int) -> tuple[Numbers, Any]:
        """Zeroed bytes as the host sees them, and as kernels do (uint8, 1-D)."""

    def run(self, calls: Sequence[Call], host: Numbers, device: Any) -> None:
        """Make the calls, on memory that holds what the host's does, and which the host's holds afterwards."""


class Processor:
    """Kernels and host have one memory."""

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, nbytes: int) -> tuple[Numbers, Numbers]:
        memory: Numbers = aligned_zeros(nbytes)
        return memory, memory

    def run(self, calls: Sequence[Call], host: Numbers, device: Numbers) -> None:
        for call in calls:
            call()


class Gpu:
    """A GPU, with a stream of its own; all memory is copied to it before calls, and back afterwards."""

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
        finally:  # also after a call that raises: the memory is not given back before the copy is done
            runtime.streamSynchronize(stream)
        runtime.memcpyAsync(address(host), address(device), host.nbytes, runtime.memcpyDeviceToHost, stream)
        runtime.streamSynchronize(stream)


_streams: weakref.WeakKeyDictionary[Any, dict[tuple[int, bool], CudaStream]] = weakref.WeakKeyDictionary()
"""By the libraries in use, the GPU and whether factors are rounded to TF32: handles are expensive to make."""


def place_of(device: str, *, tf32: bool = False) -> Place:
    """Where the kernels of a device run. Raises ConfigurationError for a GPU that cannot be used."""
    if not device.startswith("cuda"):
        return Processor()
    from crossbow.kernels.cuda.api import api
    from crossbow.runtime.cuda.stream import CudaStream

    streams, number = _streams.setdefault(api(), {}), gpu_number(device)
    if (number, tf32) not in streams:
        streams[number, tf32] = CudaStream("testing", number, libraries=True, tf32=tf32)
    return Gpu(streams[number, tf32])
