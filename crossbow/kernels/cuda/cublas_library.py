"""cuBLAS's shared library: the C types of every function that Crossbow calls."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from crossbow.kernels.cuda.shared_library import CUBLAS, find

_HANDLE = _STREAM = _POINTER = ctypes.c_void_p
_INT = _ENUM = ctypes.c_int
_LONG = ctypes.c_longlong


_PRODUCT = (_HANDLE, _ENUM, _ENUM, _INT, _INT, _INT, _POINTER)
"""The first arguments of a matrix product, up to alpha."""
_MATRIX = (_POINTER, _ENUM, _INT)
_STACK = (*_MATRIX, _LONG)


PROTOTYPES: Mapping[str, tuple[type, ...]] = {
    "cublasCreate_v2": (_POINTER,),
    "cublasDestroy_v2": (_HANDLE,),
    "cublasGetVersion_v2": (_HANDLE, _POINTER),
    "cublasSetStream_v2": (_HANDLE, _STREAM),
    "cublasSetWorkspace_v2": (_HANDLE, _POINTER, ctypes.c_size_t),
    "cublasSetMathMode": (_HANDLE, _ENUM),
    "cublasGetStatusString": (_ENUM,),
    "cublasGemmEx": (*_PRODUCT, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, _ENUM, _ENUM),
    "cublasGemmStridedBatchedEx": (*_PRODUCT, *_STACK, *_STACK, _POINTER, *_STACK, _INT, _ENUM, _ENUM),
}
"""Every function that Crossbow and its benchmarks call, and the types of its arguments."""

RESULTS: Mapping[str, type] = {"cublasGetStatusString": ctypes.c_char_p}
"""Result types of the functions that do not return a status."""


def load() -> Any:
    """Load the library and declare its functions. Raises ConfigurationError, with the packages to install, if it is
    absent."""
    library = find(CUBLAS).library
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, RESULTS.get(name, ctypes.c_int)
    return library
