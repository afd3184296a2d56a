"""oneDNN's shared library, and GNU OpenMP, whose threads it uses."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

PACKAGE = "onednn-cpu-gomp"
HIDING = "CROSSBOW_WITHOUT_ONEDNN"
"""Environment variable; with the value 1, oneDNN is treated as not installed."""


def _library_file() -> Path:
    """The shared library that the package installed. Raises PackageNotFoundError or OSError."""
    files = importlib.metadata.files(PACKAGE) or []
    for file in files:
        if file.name == "libdnnl.so.3":
            return Path(str(file.locate())).resolve()
    raise OSError(f"the package {PACKAGE} does not contain libdnnl.so.3")


@functools.cache
def library() -> ctypes.CDLL:
    """oneDNN, loaded once."""
    return ctypes.CDLL(str(_library_file()))


@functools.cache
def openmp() -> ctypes.CDLL:
    """GNU OpenMP, the copy that oneDNN uses."""
    return ctypes.CDLL("libgomp.so.1")


@functools.cache
def why_unusable() -> str | None:
    """A sentence with the reason why oneDNN cannot be used here; None if it can."""
    if os.environ.get(HIDING) == "1":
        return f"the environment variable {HIDING} is 1"
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return f"the package {PACKAGE} exists for Linux on x86_64 only, and this is {system} on {machine}"
    if not numba_is_installed():
        return "the package numba, which compiles the passes between oneDNN's primitives, is not installed"
    try:
        openmp()
    except OSError:
        return "the system library libgomp.so.1 (package libgomp1), which oneDNN needs, is missing"
    try:
        library()
    except importlib.metadata.PackageNotFoundError:
        return f"the package {PACKAGE} is not installed"
    except OSError as error:
        return f"oneDNN's library cannot be loaded: {error}"
    if version()[0] != 3:
        return f"oneDNN 3 is needed, and {PACKAGE} contains {'.'.join(map(str, version()))}"
    return None


def numba_is_installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # an entry of sys.modules without a specification
        return False


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


def version() -> tuple[int, int, int]:
    """`dnnl_version`: (major, minor, patch)."""
    function = library().dnnl_version
    function.restype = ctypes.POINTER(_Version)
    found = function().contents
    return found.major, found.minor, found.patch


def omp_set_num_threads(threads: int) -> None:
    """Set the team size of the calling thread, for which oneDNN prepares and executes primitives."""
    openmp().omp_set_num_threads(ctypes.c_int(threads))


def omp_get_max_threads() -> int:
    """The team size of the calling thread."""
    return int(openmp().omp_get_max_threads())
