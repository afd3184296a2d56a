"""CUDA streams with the handles of their libraries, and events."""

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
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.kernels.cuda.launch import pointer as pointer_to

T = TypeVar("T")

NOT_READY = 600
"""cudaErrorNotReady."""
POLL_SECONDS = 1e-3
"""Between two looks whether a stream is done."""
CUBLAS_WORKSPACE = 32 << 20
"""Bytes. Given to cuBLAS so that it takes no memory of its own, least of all while a graph is captured; NVIDIA's
recommendation for Hopper."""


class CudaStream:
    """A stream of a GPU that does not wait for the default one. Work is submitted to it by whoever has made it the
    current one (`with on(stream.place):`).
    """

    def __init__(self, name: str, device: int, *, libraries: bool = False, tf32: bool = False) -> None:
        """libraries: with cuDNN's and cuBLAS's handles; tf32: whether their products may round factors to TF32."""
        self.name = name
        self._giving_back = threading.Lock()
        """Held while the stream is asked something from a thread that may not know whether it is still there."""
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
        # Parts of sums of numbers of 16 bits would else be of 16 bits too.
        mode |= cublas.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
        cublas.check("cublasCreate_v2", ctypes.byref(handle))
        cublas.check("cublasSetMathMode", handle, mode)
        cublas.check("cublasSetStream_v2", handle, ctypes.c_void_p(stream))  # which takes the workspace away
        self._workspace = api().zeros(CUBLAS_WORKSPACE)
        workspace = pointer_to(self._workspace)
        cublas.check("cublasSetWorkspace_v2", handle, workspace, ctypes.c_size_t(CUBLAS_WORKSPACE))
        return handle.value or 0

    @property
    def device(self) -> int:
        return self.place.device

    def call(self, work: Callable[[], T]) -> T:
        """Do `work`, whose calls go to this stream, and wait until all is done."""
        with on(self.place):
            result = work()
            api().runtime.streamSynchronize(self.place.pointer)
        return result

    def wait(self, timeout: float) -> bool:
        """Wait until everything submitted before is done; whether it was within `timeout` seconds. Another thread may
        close the stream meanwhile."""
        deadline = time.monotonic() + timeout
        while (status := self._status()) == NOT_READY:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return status == 0  # anything else is an error that does not go away

    def _status(self) -> int:
        """0 when everything is done, or the stream was given back."""
        with self._giving_back, on(self.place):
            return int(api().runtime.streamQuery(self.place.pointer)) if self.place.pointer else 0

    def wait_for(self, event: Event) -> None:
        """Do what is submitted from now on only after the event."""
        api().runtime.streamWaitEvent(self.place.pointer, event.pointer)

    def close(self, timeout: float | None = None) -> bool:
        """Give the stream back, after the work submitted so far; whether that was done within `timeout` seconds."""
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
    """Brings batches to the GPU."""
    submitting: threading.RLock
    """Held while work is submitted: handles and graphs are neither used twice nor given back then. One for all."""


class Event:
    """A point in a stream's work. Each time it is recorded it stands for a later one."""

    def __init__(self, device: int) -> None:
        runtime = api().runtime
        with on(Stream(device, 0)):
            # Whoever waits on the host sleeps, and leaves its core to the learners' launches.
            self.pointer = int(runtime.eventCreateWithFlags(runtime.eventDisableTiming | runtime.eventBlockingSync))
        weakref.finalize(self, runtime.eventDestroy, self.pointer).atexit = False  # then the process gives all back

    def record(self, stream: CudaStream) -> None:
        """Stand for everything submitted to the stream so far."""
        api().runtime.eventRecord(self.pointer, stream.place.pointer)

    def wait(self) -> None:
        """Return when it has happened. Raises what went wrong on the GPU."""
        api().runtime.eventSynchronize(self.pointer)
