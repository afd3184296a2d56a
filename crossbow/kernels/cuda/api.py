"""The CUDA functions that Crossbow calls: CuPy's bindings, and cuDNN and cuBLAS through ctypes.

All code obtains these functions here: those of cuDNN and cuBLAS by their names in C, the others by CuPy's.
Tests can therefore replace them (`replaced`) with a fake that records every call, on machines without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from crossbow.kernels.cuda import cublas_library, cudnn_library
from crossbow.kernels.cuda.shared_library import INSTALL
from crossbow.types import Array, ConfigurationError, bytes_text

T = TypeVar("T")


class Api(Protocol):
    """The libraries. A function that fails raises an exception; functions of cuDNN and cuBLAS return a status
    instead."""

    @property
    def runtime(self) -> Any:
        """cudaMemcpyAsync is `runtime.memcpyAsync`, and so on."""

    @property
    def driver(self) -> Any:
        """cuLaunchKernel is `driver.launchKernel`."""

    @property
    def cuda(self) -> Any:
        """`cuda.cuLaunchKernelEx`, which CuPy lacks: a ctypes function, which returns a status."""

    @property
    def nccl(self) -> Any:
        """CuPy's binding of NCCL."""

    @property
    def nvtx(self) -> Any:
        """CuPy's binding of NVTX."""

    @property
    def cudnn(self) -> Any:
        """`cudnn.cudnnCreate`, …: ctypes functions, or objects that behave like them."""

    @property
    def cublas(self) -> Any:
        """`cublas.cublasCreate_v2`, …, likewise."""

    @property
    def remembered(self) -> dict[Hashable, Any]:
        """Cached results of compiling and measuring with these libraries, by key."""

    def compile(self, source: str, options: Sequence[str]) -> Callable[[str], int]:
        """Compile CUDA C++ for the current device, or load it from the cache. Returns a lookup of functions by name."""

    def zeros(self, nbytes: int) -> Any:
        """Zeroed bytes on the current device, for any stream: an array of uint8 with an address, and with views and
        slices as in NumPy."""

    def free_memory(self) -> int:
        """Free bytes of the current device (`runtime.memGetInfo`), after releasing all cached memory."""

    def pinned(self, nbytes: int) -> Array:
        """Zeroed, pinned bytes of the host, which devices copy directly, and which kernels may write."""

    def arrays(self, stream: int) -> AbstractContextManager[tuple[Any, Callable[[Any], Any]]]:
        """A context with a module like NumPy whose work goes to a stream, and a function that converts an array from
        `zeros` to the module's type."""


@dataclass(frozen=True)
class _OurStream:
    """A stream that CuPy did not create, as an object that CuPy accepts."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer  # the version of this protocol, and the stream


class CuPy:
    """CUDA through CuPy."""

    def __init__(self) -> None:
        try:
            import cupy
            from cupy.cuda import driver, runtime
        except ImportError as error:
            raise ConfigurationError(f"expected CuPy for devices 'cuda:i': {INSTALL}. Received: {error}") from error
        # The driver's maximum number of queues: streams that share a queue wait for each other's events.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self._cupy, self._runtime, self._driver = cupy, runtime, driver
        self._remembered: dict[Hashable, Any] = {}

    @property
    def runtime(self) -> Any:
        return self._runtime

    @property
    def driver(self) -> Any:
        return self._driver

    @property
    def remembered(self) -> dict[Hashable, Any]:
        return self._remembered

    @functools.cached_property
    def cuda(self) -> Any:
        return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")

    @functools.cached_property
    def nccl(self) -> Any:
        from cupy.cuda import nccl

        if not nccl.available:
            raise ConfigurationError(
                f"expected NCCL, which several GPUs need, also those of several ranks: {INSTALL}. Received: none"
            )
        return nccl

    @functools.cached_property
    def nvtx(self) -> Any:
        from cupy.cuda import nvtx

        return nvtx

    @functools.cached_property
    def cudnn(self) -> Any:
        return cudnn_library.load()

    @functools.cached_property
    def cublas(self) -> Any:
        return cublas_library.load()

    def compile(self, source: str, options: Sequence[str]) -> Callable[[str], int]:
        module, held = self._cupy.RawModule(code=source, options=tuple(options)), []
        try:
            module.module  # noqa: B018 - compiled now, for the current device
        except RuntimeError as error:
            if "CUDA headers" not in str(error):
                raise
            raise ConfigurationError(
                f"expected the headers of CUDA's runtime for devices 'cuda:i': {INSTALL}. Received: {error}"
            ) from error

        def function(name: str) -> int:
            kernel = module.get_function(name).kernel
            held.append(kernel)  # CuPy's own cache of modules may be cleared
            return int(kernel.ptr)

        return function

    def zeros(self, nbytes: int) -> Any:
        try:
            memory = self._cupy.zeros(nbytes, self._cupy.uint8)
        except MemoryError as error:
            raise ConfigurationError(
                f"expected {bytes_text(nbytes)} more of the GPU's memory; lower the batch size or the number of "
                f"learners. Received: {error}"
            ) from error
        self._cupy.cuda.get_current_stream().synchronize()  # our streams do not wait for the one that clears it
        return memory

    def free_memory(self) -> int:
        self._cupy.get_default_memory_pool().free_all_blocks()
        return int(self._runtime.memGetInfo()[0])

    @contextmanager
    def arrays(self, stream: int) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
        with self._cupy.cuda.Stream.from_external(_OurStream(stream)):
            yield self._cupy, lambda array: array

    def pinned(self, nbytes: int) -> Array:
        memory: Array = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        memory[:] = 0
        return memory


_replacement: list[Api] = []


@functools.cache
def _real() -> Api:
    return CuPy()


def api() -> Api:
    """Return the libraries in use. Raises ConfigurationError, with the packages to install, if they are absent."""
    return _replacement[-1] if _replacement else _real()


def remember(key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make`, called once for each key and each current device."""
    table = api().remembered
    key = (int(api().runtime.getDevice()), key)
    if key not in table:
        table[key] = make()
    found: T = table[key]
    return found


@contextmanager
def replaced(other: Api) -> Iterator[None]:
    """Use other libraries within a context. For tests."""
    _replacement.append(other)
    try:
        yield
    finally:
        _replacement.pop()


def gpus() -> list[str]:
    """Return the names of the GPUs. Raises ConfigurationError, with the reason, if none can be used."""
    runtime = api().runtime
    try:
        count = int(runtime.getDeviceCount())
        properties = [runtime.getDeviceProperties(number) for number in range(count)]
    except Exception as error:  # CuPy's, of several kinds: no driver, too old a driver, no GPU
        raise ConfigurationError(f"expected an NVIDIA GPU. Received: {error}") from error
    return [bytes(found["name"]).decode(errors="replace") for found in properties]
