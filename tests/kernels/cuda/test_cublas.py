"""cuBLAS's binding: handles, errors, and products on the fake."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels.cuda import cublas
from crossbow.kernels.cuda.cublas import CublasError, CublasMatrix, check, matrix_product
from crossbow.kernels.cuda.launch import Stream, on
from crossbow.types import ConfigurationError, CrossbowError
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_cublas import FakeCublas

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    """Everything as ever, but for cuBLAS, which computes at once and returns its status, whatever the stream."""
    with fake_cuda() as cuda:
        cuda.cublas = FakeCublas(cuda.calls)
        yield cuda


# Calls.


def made_handle() -> int:
    handle = ctypes.c_void_p()
    check("cublasCreate_v2", ctypes.byref(handle))
    assert handle.value is not None
    return handle.value


def test_handles(fake: FakeCuda) -> None:
    handle, memory = made_handle(), np.zeros(1024, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % 256
    check("cublasSetStream_v2", handle, 7)
    check("cublasSetWorkspace_v2", handle, ctypes.c_void_p(start), 512)
    check("cublasSetMathMode", handle, cublas.CUBLAS_PEDANTIC_MATH)
    state = fake.cublas.handles[handle]
    assert (state.stream, state.workspace, state.math_mode) == (7, (start, 512), cublas.CUBLAS_PEDANTIC_MATH)
    version = ctypes.c_int()
    check("cublasGetVersion_v2", handle, ctypes.byref(version))
    assert version.value >= 120000
    check("cublasDestroy_v2", handle)
    with pytest.raises(AssertionError, match="alive"):
        check("cublasDestroy_v2", handle)


def test_failure_names_function_and_status(fake: FakeCuda) -> None:
    with pytest.raises(CublasError, match=r"cublasSetMathMode returned 7 \(invalid_value\)") as caught:
        check("cublasSetMathMode", 0, 12345)
    assert caught.value.status == cublas.CUBLAS_STATUS_INVALID_VALUE
    assert isinstance(caught.value, CrossbowError)


def matrices(shape: tuple[int, int], dtype: np.dtype[Any], stride: int, count: int, leading: int) -> NDArray[Any]:
    """Memory of matrices with NaN between their rows."""
    memory = np.full((count - 1) * stride + shape[0] * leading, np.nan, dtype)
    generator = np.random.default_rng(shape[0])
    for number in range(count if stride else 1):
        rows = memory[number * stride :][: shape[0] * leading].reshape(shape[0], leading)
        rows[:, : shape[1]] = generator.standard_normal(shape)
    return memory


def taken(memory: NDArray[Any], shape: tuple[int, int], number: int, matrix: CublasMatrix) -> NDArray[Any]:
    rows = memory[matrix.start + number * matrix.stride :][: shape[0] * matrix.leading].reshape(shape[0], -1)
    part = rows[:, : shape[1]].astype(np.float64)
    return part.T if matrix.transposed else part


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize("a_turned", [False, True])
def test_product(fake: FakeCuda, a_turned: bool, b_turned: bool, count: int, beta: float, dtype: np.dtype[Any]) -> None:
    m, n, k = 4, 5, 3
    a_shape, b_shape = (k, m) if a_turned else (m, k), (n, k) if b_turned else (k, n)
    a_memory, b_memory = matrices(a_shape, dtype, 50, count, 7), matrices(b_shape, dtype, 0, 1, 9)
    y_memory = matrices((m, n), dtype, 40, count, 6)
    if beta == 0:
        y_memory[...] = np.nan
    a, b, y = (
        CublasMatrix(a_memory, 7, a_turned, 50),
        CublasMatrix(b_memory, 9, b_turned, 0),
        CublasMatrix(y_memory, 6, False, 40),
    )
    before, sizes = y_memory.copy(), (m, n, k)
    matrix_product(sizes, a, b, y, dtype, matrices=count, beta=beta)()
    for number in range(count):
        left, right = taken(a_memory, a_shape, number, a), taken(b_memory, b_shape, number, b)
        expected = left @ right + (beta * taken(before, (m, n), number, y) if beta else 0)
        np.testing.assert_allclose(taken(y_memory, (m, n), number, y), expected, rtol=1e-6, atol=1e-6)
    gaps = np.ones(y_memory.shape, bool)
    for number in range(count):
        gaps[number * 40 :][: m * 6].reshape(m, 6)[:, :n] = False
    np.testing.assert_array_equal(y_memory[gaps], before[gaps])


def test_product_starts_where_it_is_told(fake: FakeCuda) -> None:
    memory = np.arange(20, dtype=np.float32)
    a, b, y = CublasMatrix(memory, 2, start=1), CublasMatrix(memory, 2, start=6), CublasMatrix(memory, 2, start=12)
    expected = memory[1:5].reshape(2, 2) @ memory[6:10].reshape(2, 2)
    matrix_product((2, 2, 2), a, b, y, FLOAT32)()
    np.testing.assert_array_equal(memory[12:16].reshape(2, 2), expected)


def test_product_goes_to_the_handle_of_the_stream(fake: FakeCuda) -> None:
    handle, one = made_handle(), np.ones((1, 1), np.float32)
    call = matrix_product(
        (1, 1, 1), CublasMatrix(one, 1), CublasMatrix(one, 1), CublasMatrix(np.zeros((1, 1), np.float32), 1), FLOAT32
    )
    call()
    with on(Stream(0, 5, cublas=handle)):
        call()
    handles = [recorded.arguments[0] for recorded in fake.calls if recorded.name == "cublasGemmEx"]
    assert handles == [0, handle]


@pytest.mark.parametrize(
    ("dtype", "computing"),
    [(FLOAT32, cublas.CUBLAS_COMPUTE_32F), (FLOAT64, cublas.CUBLAS_COMPUTE_64F)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_the_type_of_a_product(fake: FakeCuda, dtype: np.dtype[Any], computing: int, count: int) -> None:
    x, y = np.ones(count, dtype), np.zeros(count, dtype)
    call = matrix_product(
        (1, 1, 1), CublasMatrix(x, 1), CublasMatrix(x, 1), CublasMatrix(y, 1, stride=1), dtype, matrices=count
    )
    assert call.arguments[-2] == computing
    call()
    assert fake.calls[-1].arguments[-2] == computing


def test_huge_matrices_are_refused(fake: FakeCuda) -> None:
    x = CublasMatrix(np.zeros(1, np.float32), 1)
    with pytest.raises(ConfigurationError, match=r"fewer than 2\*\*31 rows"):
        matrix_product((2**31, 1, 1), x, x, x, FLOAT32)


# What the fake finds wrong.


def arguments_of(**changes: object) -> list[object]:
    """Of cublasGemmEx, for matrices of 2 × 2."""
    scalar, x, y = (ctypes.c_float * 1)(1), (ctypes.c_float * 4)(), (ctypes.c_float * 4)()
    named: dict[str, object] = {"handle": 0, "turn_a": 0, "turn_b": 0, "m": 2, "n": 2, "k": 2, "alpha": scalar}
    named |= {"a": x, "a_type": cublas.CUDA_R_32F, "lda": 2, "b": x, "b_type": cublas.CUDA_R_32F, "ldb": 2}
    named |= {"beta": scalar, "c": y, "c_type": cublas.CUDA_R_32F, "ldc": 2}
    named |= {"computing": cublas.CUBLAS_COMPUTE_32F, "algorithm": cublas.CUBLAS_GEMM_DEFAULT}
    assert changes.keys() <= named.keys()
    return list({**named, **changes}.values())


def test_fake_computes_what_is_right(fake: FakeCuda) -> None:
    assert fake.cublas.cublasGemmEx(*arguments_of()) == 0


@pytest.mark.parametrize(
    "changes",
    [{"lda": 1}, {"ldb": 1}, {"ldc": 1}, {"m": -1}, {"turn_a": 5}, {"m": 3}],
    ids=str,
)
def test_fake_refuses_wrong_values(fake: FakeCuda, changes: dict[str, object]) -> None:
    with pytest.raises(CublasError, match="cublasGemmEx returned 7"):
        check("cublasGemmEx", *arguments_of(**changes))


@pytest.mark.parametrize("changes", [{"lda": 2.0}, {"m": ctypes.c_longlong(2)}, {"alpha": 1.0}], ids=str)
def test_fake_refuses_wrong_types(fake: FakeCuda, changes: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"cublasGemmEx: argument \d+"):
        check("cublasGemmEx", *arguments_of(**changes))


def test_fake_refuses_what_would_bring_the_library_down(fake: FakeCuda) -> None:
    with pytest.raises(TypeError, match=r"takes 19 arguments\. Received: 18"):
        check("cublasGemmEx", *arguments_of()[:-1])
    with pytest.raises(OverflowError, match="argument 3"):
        check("cublasGemmEx", *arguments_of(m=2**32 + 2))
    with pytest.raises(AssertionError, match="alive"):
        check("cublasGemmEx", *arguments_of(handle=99))
    with pytest.raises(AssertionError, match="null"):
        check("cublasGemmEx", *arguments_of(a=None))
    arguments = arguments_of()
    arguments[7] = arguments[14]
    with pytest.raises(AssertionError, match="overlaps"):
        check("cublasGemmEx", *arguments)
    with pytest.raises(AttributeError, match="cublasNothing"):
        check("cublasNothing")


def test_fake_refuses_products_that_overlap(fake: FakeCuda) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    call = matrix_product(
        (2, 2, 2), CublasMatrix(x, 2), CublasMatrix(x, 2), CublasMatrix(y, 2, stride=3), FLOAT32, matrices=2
    )
    with pytest.raises(AssertionError, match="products of a stack overlap"):
        call()


def test_fake_refuses_other_arithmetic(fake: FakeCuda) -> None:
    x, y = np.ones(1, np.float32), np.zeros(1, np.float32)
    call = matrix_product((1, 1, 1), CublasMatrix(x, 1), CublasMatrix(x, 1), CublasMatrix(y, 1), FLOAT32)
    for position, value in ((-2, cublas.CUBLAS_COMPUTE_64F), (-1, 7), (7, cublas.CUDA_R_64F)):
        arguments = list(call.arguments)
        arguments[position] = value
        with pytest.raises(CublasError, match="not_supported"):
            check("cublasGemmEx", 0, *arguments)
