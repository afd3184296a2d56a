"""cuBLAS's shared library: the C types of every function that Crossbow calls."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from crossbow.kernels.cuda.shared_library import CUBLAS, find

_HANDLE = _STREAM = _POINTER = ctypes.c_void_p
_INT = _ENUM = ctypes.c_int
_LONG = ctypes.c_longlong


def _gemm(*, types: bool, strides: bool) -> tuple[type, ...]:
    """The types of a matrix product's arguments: with the matrices' types or not, and with their strides in a stack or
    not."""
    matrix = (_POINTER, *((_ENUM,) if types else ()), _INT, *((_LONG,) if strides else ()))
    end = (*((_INT,) if strides else ()), *((_ENUM, _ENUM) if types else ()))
    return (_HANDLE, _ENUM, _ENUM, _INT, _INT, _INT, _POINTER, *matrix, *matrix, _POINTER, *matrix, *end)


PROTOTYPES: Mapping[str, tuple[type, ...]] = {
    "cublasCreate_v2": (_POINTER,),
    "cublasDestroy_v2": (_HANDLE,),
    "cublasGetVersion_v2": (_HANDLE, _POINTER),
    "cublasSetStream_v2": (_HANDLE, _STREAM),
    "cublasSetWorkspace_v2": (_HANDLE, _POINTER, ctypes.c_size_t),
    "cublasSetMathMode": (_HANDLE, _ENUM),
    "cublasGetStatusString": (_ENUM,),
    "cublasSgemm_v2": _gemm(types=False, strides=False),
    "cublasDgemm_v2": _gemm(types=False, strides=False),
    "cublasGemmEx": _gemm(types=True, strides=False),
    "cublasSgemmStridedBatched": _gemm(types=False, strides=True),
    "cublasDgemmStridedBatched": _gemm(types=False, strides=True),
    "cublasGemmStridedBatchedEx": _gemm(types=True, strides=True),
}
"""Every function that Crossbow calls, and the types of its arguments."""

RESULTS: Mapping[str, type] = {"cublasGetStatusString": ctypes.c_char_p}
"""Result types of the functions that do not return a status."""


def load() -> Any:
    """Load the library and declare its functions. Raises ConfigurationError, which says what to install, if it is
    absent."""
    library = find(CUBLAS).library
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, RESULTS.get(name, ctypes.c_int)
    return library
