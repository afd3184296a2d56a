"""Finds the NVIDIA libraries that are called through ctypes: cuDNN and cuBLAS.

Three ways are tried one after the other: cuda-pathfinder, if it is installed and knows the library (cuDNN from version
1.7 on); the files of NVIDIA's Python packages; and the plain file name, which the system's loader looks up.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crossbow.types import ConfigurationError

INSTALL = "pip install 'crossbow[cuda13]' (or 'crossbow[cuda12]')"

LINE_END = "\n"


@dataclass(frozen=True)
class Library:
    """A library, and its possible locations."""

    name: str
    """Name in NVIDIA's spelling."""
    known_as: str
    """Name in cuda-pathfinder."""
    packages: tuple[str, ...]
    """Python packages that contain it, the newest CUDA first."""
    files: tuple[str, ...]
    """Possible names of its file."""
    needs: tuple[Library, ...] = ()
    """Libraries that it loads by plain file names, which the system's loader may not find."""


_CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu12")
CUBLAS_LT = Library(
    "cuBLASLt",
    "cublasLt",
    _CUBLAS_PACKAGES,
    ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll", "cublasLt64_12.dll"),
)
CUBLAS = Library(
    "cuBLAS",
    "cublas",
    _CUBLAS_PACKAGES,
    ("libcublas.so.13", "libcublas.so.12", "cublas64_13.dll", "cublas64_12.dll"),
    (CUBLAS_LT,),
)
CUDNN = Library(
    "cuDNN",
    "cudnn",
    ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    ("libcudnn.so.9", "cudnn64_9.dll"),
    (CUBLAS_LT,),
)


@dataclass(frozen=True)
class Found:
    """A loaded library."""

    library: ctypes.CDLL
    path: str
    """Its file; a plain name if the system's loader found it."""
    by: str
    """The way in which it was found."""

    def __str__(self) -> str:
        return f"{self.path} (found by {self.by})"


def find(wanted: Library) -> Found:
    """Load a library. Raises ConfigurationError, with the reason why each way failed, if it is not found."""
    failures: list[str] = []
    for way in (_by_pathfinder, _in_packages, _by_name):
        try:
            return way(wanted)
        except Exception as error:  # an error of another package: the next way may still work
            failures.append(f"{_WAYS[way]}: {str(error).strip().split(LINE_END)[0] or type(error).__name__}")
    raise ConfigurationError(
        f"expected {wanted.name} for devices 'cuda:i': {INSTALL}. Received: none ({'; '.join(failures)})"
    )


def _by_pathfinder(wanted: Library) -> Found:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = str(load_nvidia_dynamic_lib(wanted.known_as).abs_path)  # also loads libraries that it depends on
    return Found(ctypes.CDLL(path), path, f"cuda-pathfinder {importlib.metadata.version('cuda-pathfinder')}")


def _in_packages(wanted: Library) -> Found:
    failure: OSError | None = None
    for package, path in _files(wanted):
        try:
            for needed in wanted.needs:
                find(needed)
            return Found(ctypes.CDLL(path), path, f"the package {package}")
        except OSError as error:
            failure = error
    raise failure or LookupError(f"no {wanted.files[0]} in {' or '.join(wanted.packages)}")


def _files(wanted: Library) -> Iterator[tuple[str, str]]:
    """The packages, and the library's file in each."""
    for package in wanted.packages:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from ((package, str(file.locate())) for file in files if file.name in wanted.files)


def _by_name(wanted: Library) -> Found:
    failures = []
    for name in wanted.files:
        try:
            return Found(ctypes.CDLL(name), name, "the system's loader")
        except OSError as error:
            failures.append(error)
    raise failures[0]


_WAYS: dict[Callable[[Library], Found], str] = {
    _by_pathfinder: "cuda-pathfinder",
    _in_packages: "packages",
    _by_name: "the system's loader",
}
