"""CUDA streams, with their library handles, and events."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from crossbow.kernels.cuda import cublas, cudnn
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import Stream, current, on
from crossbow.kernels.cuda.launch import pointer as pointer_to

T = TypeVar("T")

NOT_READY = 600
"""cudaErrorNotReady."""
WAIT_EXTERNAL = 1
"""cudaEventWaitExternal: in a capture, a wait of the graph itself for an event of other work."""
POLL_SECONDS = 1e-3
"""Seconds between two queries of a stream."""
CUBLAS_WORKSPACE = 32 << 20
"""Bytes of cuBLAS's workspace, as NVIDIA recommends for Hopper. Without it, cuBLAS would allocate memory, also while a
graph is captured."""


class CudaStream:
    """A stream of a GPU that does not wait for the default stream. Work is submitted in `with on(stream.place):`, which
    makes it the current stream.
    """

    def __init__(self, name: str, device: int, *, libraries: bool = False, tf32: bool = False) -> None:
        """libraries: whether to create handles of cuDNN and cuBLAS. tf32: whether products may round factors to
        TF32."""
        self.name = name
        self._giving_back = threading.Lock()
        """Held by threads that query a stream which another thread may destroy."""
        runtime = api().runtime
        with on(Stream(device, 0)):
            pointer = int(runtime.streamCreateWithFlags(runtime.streamNonBlocking))
            self.place = Stream(device, pointer)
            if libraries:
                self.place = Stream(device, pointer, self._cudnn(pointer), self._cublas(pointer, tf32))

    def _cudnn(self, stream: int) -> int:
        handle = ctypes.c_void_p()
        cudnn.check("cudnnCreate", ctypes.byref(handle))
        cudnn.check("cudnnSetStream", handle, ctypes.c_void_p(stream))
        return handle.value or 0

    def _cublas(self, stream: int, tf32: bool) -> int:
        handle, mode = ctypes.c_void_p(), cublas.CUBLAS_TF32_TENSOR_OP_MATH if tf32 else cublas.CUBLAS_DEFAULT_MATH
        # Otherwise partial sums of 16-bit numbers would have 16 bits, too.
        mode |= cublas.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
        cublas.check("cublasCreate_v2", ctypes.byref(handle))
        cublas.check("cublasSetMathMode", handle, mode)
        cublas.check("cublasSetStream_v2", handle, ctypes.c_void_p(stream))  # resets the workspace
        self._workspace = api().zeros(CUBLAS_WORKSPACE)
        workspace = pointer_to(self._workspace)
        cublas.check("cublasSetWorkspace_v2", handle, workspace, ctypes.c_size_t(CUBLAS_WORKSPACE))
        return handle.value or 0

    @property
    def device(self) -> int:
        return self.place.device

    def call(self, work: Callable[[], T]) -> T:
        """Do `work` on this stream, and wait until it is done."""
        with on(self.place):
            result = work()
            api().runtime.streamSynchronize(self.place.pointer)
        return result

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted work is done. Returns whether it was within `timeout` seconds. Another thread may
        close the stream at the same time."""
        deadline = time.monotonic() + timeout
        while (status := self._status()) == NOT_READY:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return status == 0  # any other status is a permanent error

    def _status(self) -> int:
        """0 if all work is done, or the stream was destroyed."""
        with self._giving_back, on(self.place):
            return int(api().runtime.streamQuery(self.place.pointer)) if self.place.pointer else 0

    def wait_for(self, event: Event) -> None:
        """Make work that is submitted from now on wait for the event."""
        api().runtime.streamWaitEvent(self.place.pointer, event.pointer)

    def close(self, timeout: float | None = None) -> bool:
        """Destroy the stream, after the submitted work. Returns whether this was done within `timeout` seconds."""
        if not self.place.pointer:
            return True
        done = self.wait(60.0 if timeout is None else timeout)
        if done:
            with self._giving_back, on(self.place):
                if self.place.cudnn:
                    cudnn.check("cudnnDestroy", ctypes.c_void_p(self.place.cudnn))
                    cublas.check("cublasDestroy_v2", ctypes.c_void_p(self.place.cublas))
                api().runtime.streamDestroy(self.place.pointer)
                self.place = Stream(self.place.device, 0)
        return done


@dataclass(frozen=True)
class LearnerStreams:
    """The streams of a learner."""

    compute: CudaStream
    copies: CudaStream
    """The stream that copies batches to the GPU."""
    submitting: threading.RLock
    """Held while work is submitted, so that handles and graphs are not used twice or destroyed. Shared by all
    streams."""


class Event:
    """A point in a stream's work. Recording it again moves it to a later point."""

    def __init__(self, device: int) -> None:
        runtime = api().runtime
        with on(Stream(device, 0)):
            # Waiting threads of the host sleep, and leave their cores to the learners' launches.
            self.pointer = int(runtime.eventCreateWithFlags(runtime.eventDisableTiming | runtime.eventBlockingSync))
        # the end of the process frees all events
        weakref.finalize(self, runtime.eventDestroy, self.pointer).atexit = False

    def record(self, stream: CudaStream) -> None:
        """Record the event after all work submitted to the stream so far."""
        api().runtime.eventRecord(self.pointer, stream.place.pointer)

    def wait(self) -> None:
        """Wait for the event. Raises errors of the GPU."""
        api().runtime.eventSynchronize(self.pointer)


class WaitFor:
    """A call that makes the current stream wait for an event. In a graph, each launch waits for the latest record of
    the event that was submitted before the launch."""

    capturable = True
    name = "event"
    """Name of the call in timelines."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __call__(self) -> None:
        runtime, stream = api().runtime, current().pointer
        flags = WAIT_EXTERNAL if runtime.streamIsCapturing(stream) else 0
        runtime.streamWaitEvent(stream, self._event.pointer, flags)
