"""Description of the GPU, the driver and the libraries of a measurement."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from crossbow.kernels.cuda import cublas
from crossbow.kernels.cuda.api import api, gpus
from crossbow.runtime.cuda.stream import CudaStream
from crossbow.types import bytes_text

CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
"""Names under which CuPy may be installed."""
DRIVER = Path("/proc/driver/nvidia/version")


def describe_gpu(number: int) -> dict[str, str]:
    """Description of a GPU and its libraries, in printing order. Raises ConfigurationError without a GPU."""
    name = gpus()[number]
    return {
        "GPU": f"{name}, {_asked(lambda: _hardware(number))}",
        "driver": f"{_driver()}, for CUDA {_asked(lambda: _cuda(api().runtime.driverGetVersion()))}",
        "CUDA": _asked(lambda: _cuda(api().runtime.runtimeGetVersion())),
        "cuDNN": _asked(lambda: _cudnn(int(api().cudnn.cudnnGetVersion()))),
        "cuBLAS": _asked(lambda: _cublas(number)),
        "NCCL": _asked(lambda: _nccl(int(api().nccl.get_version()))),
        "CuPy": next((f"{_version(package)} ({package})" for package in CUPY if _version(package)), "absent"),
    }


def _asked(question: Callable[[], str]) -> str:
    """The answer, or its error: one library's failure must not affect the others."""
    try:
        return question()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _hardware(number: int) -> str:
    found = api().runtime.getDeviceProperties(number)
    memory = bytes_text(int(found["totalGlobalMem"]))
    return f"sm_{found['major']}{found['minor']}, {found['multiProcessorCount']} multiprocessors, {memory}"


def _driver() -> str:
    """The driver's version in NVIDIA's numbering, which the runtime does not report."""
    if not DRIVER.is_file():
        return "version unknown"
    words = DRIVER.read_text("utf-8").split("\n", 1)[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "version unknown")


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _cudnn(version: int) -> str:
    return f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"


def _nccl(version: int) -> str:
    return f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"


def _cublas(number: int) -> str:
    version, stream = ctypes.c_int(), CudaStream("version", number, libraries=True)
    try:
        cublas.check("cublasGetVersion_v2", ctypes.c_void_p(stream.place.cublas), ctypes.byref(version))
    finally:
        stream.close()
    return f"{version.value // 10_000}.{version.value % 10_000 // 100}.{version.value % 100}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
