"""cuBLAS over the host's memory: takes what the real library takes, and says where that would be wrong."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda import cublas
from crossbow.kernels.cuda.cublas_library import PROTOTYPES
from crossbow.kernels.cuda.launch import computed_in

VERSION = 130000
STATUSES = {
    value: name.removeprefix("CUBLAS_STATUS_").lower()
    for name, value in vars(cublas).items()
    if name.startswith("CUBLAS_STATUS_")
}
COMPUTED_IN = {
    (np.dtype(np.float32), cublas.CUBLAS_COMPUTE_32F),
    (np.dtype(np.float32), cublas.CUBLAS_COMPUTE_32F_PEDANTIC),
    (np.dtype(np.float64), cublas.CUBLAS_COMPUTE_64F),
    (np.dtype(np.float16), cublas.CUBLAS_COMPUTE_32F),
    (np.dtype(ml_dtypes.bfloat16), cublas.CUBLAS_COMPUTE_32F),
}
TYPES = {
    cublas.CUDA_R_32F: np.dtype(np.float32),
    cublas.CUDA_R_64F: np.dtype(np.float64),
    cublas.CUDA_R_16F: np.dtype(np.float16),
    cublas.CUDA_R_16BF: np.dtype(ml_dtypes.bfloat16),
}


@dataclass
class Handle:
    """What was set for a handle."""

    stream: int = 0
    workspace: tuple[int, int] = (0, 0)
    math_mode: int = cublas.CUBLAS_DEFAULT_MATH


@dataclass(frozen=True)
class Operand:
    """A stack of matrices in column-major order, as a matrix product takes it."""

    address: int
    dtype: np.dtype[Any]
    leading: int
    stride: int
    rows: int
    columns: int
    matrices: int

    @property
    def elements(self) -> int:
        """Of one matrix, from the first to the last."""
        return self.leading * (self.columns - 1) + self.rows

    @property
    def bytes(self) -> range:
        """The addresses from the first matrix to the last."""
        elements = self.stride * (self.matrices - 1) + self.elements
        return range(self.address, self.address + elements * self.dtype.itemsize)

    def matrix(self, number: int) -> NDArray[Any]:
        """A matrix of the stack: a view of rows and columns, over its memory and none beside it."""
        start = self.address + number * self.stride * self.dtype.itemsize
        flat = numbers_at(start, self.elements, self.dtype)
        strides = (self.dtype.itemsize, self.leading * self.dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (self.rows, self.columns), strides)


class FakeCublas:
    """The functions of `cublas_library.PROTOTYPES`, called as those of the real library."""

    def __init__(self, calls: list[Any]) -> None:
        from tests.kernels.cuda.fake import Recorded

        self._recorded, self.calls = Recorded, calls
        self.handles: dict[int, Handle] = {0: Handle()}
        """By their value; 0 is what `launch` has before anybody made one."""
        self._numbers = itertools.count(0xB1A5)

    def __getattr__(self, name: str) -> Any:
        if name not in PROTOTYPES:
            raise AttributeError(f"no function {name} is declared")

        def function(*arguments: object) -> Any:
            values = received(name, arguments)
            if name != "cublasGetStatusString":
                self.calls.append(self._recorded(name, values))
            return getattr(self, f"_{name}")(*values)

        return function

    def _cublasGetStatusString(self, status: int) -> bytes:
        return STATUSES.get(status, "unknown").encode()

    def _cublasCreate_v2(self, place: int) -> int:
        handle = next(self._numbers)
        self.handles[handle] = Handle()
        ctypes.c_void_p.from_address(place).value = handle
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasDestroy_v2(self, handle: int) -> int:
        self._alive(handle)
        assert handle != 0, "nobody made this handle"
        del self.handles[handle]
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasGetVersion_v2(self, handle: int, place: int) -> int:
        self._alive(handle)
        ctypes.c_int.from_address(place).value = VERSION
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasSetStream_v2(self, handle: int, stream: int) -> int:
        self._alive(handle).stream = stream
        self._alive(handle).workspace = (0, 0)  # as the real library: the next stream begins with its own
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasSetWorkspace_v2(self, handle: int, address: int, nbytes: int) -> int:
        if address % 256:
            return cublas.CUBLAS_STATUS_INVALID_VALUE
        self._alive(handle).workspace = (address, nbytes)
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasSetMathMode(self, handle: int, mode: int) -> int:
        known = (cublas.CUBLAS_DEFAULT_MATH, cublas.CUBLAS_PEDANTIC_MATH, cublas.CUBLAS_TF32_TENSOR_OP_MATH)
        if mode & ~cublas.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION not in known:
            return cublas.CUBLAS_STATUS_INVALID_VALUE
        self._alive(handle).math_mode = mode
        return cublas.CUBLAS_STATUS_SUCCESS

    def _cublasGemmEx(self, *arguments: int) -> int:
        handle, turn_a, turn_b, m, n, k, alpha, a, *types_and_more = arguments
        kind_a, lda, b, kind_b, ldb, beta, c, kind_c, ldc, computing, algorithm = types_and_more
        if (dtype := chosen((kind_a, kind_b, kind_c), computing, algorithm)) is None:
            return cublas.CUBLAS_STATUS_NOT_SUPPORTED
        parts = ((a, dtype, lda, 0), (b, dtype, ldb, 0), (c, dtype, ldc, 0))
        return self._gemm(handle, (turn_a, turn_b), (m, n, k), (alpha, beta), parts, 1)

    def _cublasGemmStridedBatchedEx(self, *arguments: int) -> int:
        handle, turn_a, turn_b, m, n, k, alpha, a, kind_a, lda, step_a, b, kind_b, *more = arguments
        ldb, step_b, beta, c, kind_c, ldc, step_c, many, computing, algorithm = more
        if (dtype := chosen((kind_a, kind_b, kind_c), computing, algorithm)) is None:
            return cublas.CUBLAS_STATUS_NOT_SUPPORTED
        parts = ((a, dtype, lda, step_a), (b, dtype, ldb, step_b), (c, dtype, ldc, step_c))
        return self._gemm(handle, (turn_a, turn_b), (m, n, k), (alpha, beta), parts, many)

    def _gemm(
        self,
        handle: int,
        turned: tuple[int, int],
        sizes: tuple[int, int, int],
        scalars: tuple[int, int],
        parts: tuple[tuple[int, np.dtype[Any], int, int], ...],
        matrices: int,
    ) -> int:
        """C ← alpha op(A) op(B) + beta C, column-major, summed in float64 and rounded once."""
        self._alive(handle)
        m, n, k = sizes
        stored = ((k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n))
        operands = [Operand(*part, *shape, matrices) for part, shape in zip(parts, stored, strict=True)]
        if not set(turned) <= {cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T} or min(*sizes, matrices) < 0:
            return cublas.CUBLAS_STATUS_INVALID_VALUE
        if any(operand.leading < max(1, operand.rows) for operand in operands):
            return cublas.CUBLAS_STATUS_INVALID_VALUE
        assert min(*sizes, matrices) > 0, "nothing to compute"
        a, b, c = operands
        alpha, beta = (float(numbers_at(scalar, 1, computed_in(c.dtype))[0]) for scalar in scalars)
        if matrices > 1:
            assert c.stride >= c.elements, "the products of a stack overlap"
            assert a.stride >= 0
            assert b.stride >= 0
        for operand in (a, b):
            apart = operand.bytes.stop <= c.bytes.start or c.bytes.stop <= operand.bytes.start
            assert apart, "the product overlaps a factor"
        for number in range(matrices):
            left, right = (operand.matrix(number).astype(np.float64) for operand in (a, b))
            product = alpha * ((left.T if turned[0] else left) @ (right.T if turned[1] else right))
            result = c.matrix(number)
            result[...] = product if beta == 0 else product + beta * result  # what is not read may be NaN
        return cublas.CUBLAS_STATUS_SUCCESS

    def _alive(self, handle: int) -> Handle:
        assert handle in self.handles, f"no handle {handle} is alive"
        return self.handles[handle]


def received(name: str, arguments: tuple[object, ...]) -> tuple[int, ...]:
    """What a function gets of its arguments, converted as ctypes does it: numbers, and pointers as addresses."""
    types = PROTOTYPES[name]
    if len(arguments) != len(types):
        raise TypeError(f"{name} takes {len(types)} arguments. Received: {len(arguments)}")
    values = []
    for number, (kind, argument) in enumerate(zip(types, arguments, strict=True)):
        try:
            kind.from_param(argument)  # type: ignore[attr-defined]
        except TypeError as error:
            raise TypeError(f"{name}: argument {number}: {error}") from error
        if kind is ctypes.c_void_p:
            values.append(ctypes.cast(argument, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]
            continue
        value = getattr(argument, "value", argument)
        if kind(value).value != value:
            raise OverflowError(f"{name}: argument {number}: expected a number that {kind.__name__} holds: {value}")
        values.append(int(value))
    return tuple(values)


def chosen(kinds: tuple[int, int, int], computing: int, algorithm: int) -> np.dtype[Any] | None:
    """The type of all three matrices; None where the library would not compute so."""
    dtype = TYPES.get(kinds[0])
    supported = len(set(kinds)) == 1 and (dtype, computing) in COMPUTED_IN and algorithm == cublas.CUBLAS_GEMM_DEFAULT
    return dtype if supported else None


def numbers_at(address: int, elements: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """So many numbers that lie there."""
    assert address != 0, "a null pointer"
    assert address % dtype.itemsize == 0, "numbers lie on multiples of their size"
    return np.frombuffer((ctypes.c_char * (elements * dtype.itemsize)).from_address(address), dtype)
