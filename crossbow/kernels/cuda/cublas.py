"""cuBLAS through ctypes: functions under the library's names, and products of row-major matrices.

Products are computed in their factors' type, or for 16 bits in float32; the handle's math mode applies to float32. If
streams run concurrently, results are bit-identical only if each handle has its own workspace (`cublasSetWorkspace_v2`,
after `cublasSetStream_v2`, which resets it).
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import computed_in, current
from crossbow.types import Array, ConfigurationError, CrossbowError, address

# Constants, as in cublas_api.h and library_types.h.
CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED = 0, 1, 3
CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_MAPPING_ERROR = 7, 8, 11
CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_INTERNAL_ERROR, CUBLAS_STATUS_NOT_SUPPORTED = 13, 14, 15
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_DEFAULT_MATH, CUBLAS_PEDANTIC_MATH, CUBLAS_TF32_TENSOR_OP_MATH = 0, 2, 3
CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_64F = 68, 69, 70
CUBLAS_GEMM_DEFAULT = -1
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14


class CublasError(CrossbowError, RuntimeError):
    """A failed call of the library. `status` is the library's number."""

    def __init__(self, call: str, status: int, text: str) -> None:
        super().__init__(f"{call} returned {status} ({text})")
        self.status = status


def check(name: str, *arguments: object) -> None:
    """Call a function of the library. Raises CublasError unless it returns success."""
    library = api().cublas
    status = getattr(library, name)(*arguments)
    if status != CUBLAS_STATUS_SUCCESS:
        raise CublasError(name, status, library.cublasGetStatusString(status).decode())


@dataclass(frozen=True)
class CublasMatrix:
    """A row-major matrix, or a stack of them."""

    array: Array
    """The array that contains the matrix; only its address is used."""
    leading: int
    """Number of elements from the beginning of one row to that of the next."""
    transposed: bool = False
    """Whether its transpose is multiplied."""
    stride: int = 0
    """Number of elements from one matrix of a stack to the next; with 0, the same matrix is repeated."""
    start: int = 0
    """Number of elements before the first matrix."""


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix product with its arguments: a call. It keeps its arguments alive."""

    function: str
    arguments: tuple[object, ...]
    """All arguments except the handle, which belongs to the stream that the calling thread has set."""
    references: tuple[object, ...] = field(repr=False, default=())
    capturable: ClassVar[bool] = True
    """Whether it may become a part of a CUDA graph."""

    def __call__(self) -> None:
        check(self.function, current().cublas, *self.arguments)


def matrix_product(
    sizes: tuple[int, int, int],
    a: CublasMatrix,
    b: CublasMatrix,
    y: CublasMatrix,
    dtype: np.dtype[np.generic],
    *,
    matrices: int = 1,
    beta: float = 0.0,
) -> MatrixProduct:
    """Return the call y ← a b + beta · y, or one such product for each matrix of a stack. If beta is 0, y is not read.

    sizes: rows of y, columns of y, columns of a (which are the rows of b), after transposition.

    cuBLAS reads matrices column by column, so each matrix is the transpose of ours, and it computes yᵀ = bᵀ aᵀ.
    """
    rows, columns, inner = sizes
    if max(*sizes, a.leading, b.leading, y.leading, matrices) >= 2**31:
        raise ConfigurationError(
            f"expected matrices of fewer than 2**31 rows and columns. Received: {rows} × {inner} times "
            f"{inner} × {columns}, {matrices} times"
        )
    kind, computing = _TYPES[dtype.name]
    one, factor = _scalar(computed_in(dtype), 1.0), _scalar(computed_in(dtype), beta)
    stacked = matrices > 1

    def operand(matrix: CublasMatrix) -> tuple[object, ...]:
        pointer = ctypes.c_void_p(address(matrix.array) + matrix.start * dtype.itemsize)
        return (pointer, kind, matrix.leading, *((matrix.stride,) if stacked else ()))

    arguments = (
        *(CUBLAS_OP_T if matrix.transposed else CUBLAS_OP_N for matrix in (b, a)),
        *(columns, rows, inner),
        *(ctypes.c_void_p(address(one)), *operand(b), *operand(a)),
        *(ctypes.c_void_p(address(factor)), *operand(y)),
        *((matrices,) if stacked else ()),
        *(computing, CUBLAS_GEMM_DEFAULT),
    )
    function = "cublasGemmStridedBatchedEx" if stacked else "cublasGemmEx"
    return MatrixProduct(function, arguments, (a.array, b.array, y.array, one, factor))


_TYPES = {
    "float32": (CUDA_R_32F, CUBLAS_COMPUTE_32F),
    "float64": (CUDA_R_64F, CUBLAS_COMPUTE_64F),
    "float16": (CUDA_R_16F, CUBLAS_COMPUTE_32F),
    "bfloat16": (CUDA_R_16BF, CUBLAS_COMPUTE_32F),
}


@functools.cache
def _scalar(dtype: np.dtype[np.generic], value: float) -> Array:
    """A number in the host's memory, where calls read it."""
    return np.full(1, value, dtype)
