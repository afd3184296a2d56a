"""cuBLAS's binding: its table against the library's own header, the library where it is, and products on the fake."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels.cuda import cublas, cublas_library
from crossbow.kernels.cuda.cublas import CublasError, CublasMatrix, check, matrix_product
from crossbow.kernels.cuda.cublas_library import PROTOTYPES, RESULTS
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


# The table and the header.


@pytest.fixture(scope="module")
def header() -> str:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder, which finds CUDA, is not installed")
    folder = pathfinder.find_nvidia_header_directory("cublas")
    file = Path(folder or "", "cublas_api.h")
    if not file.is_file():
        pytest.skip("cublas_api.h is not installed")
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", file.read_text(), flags=re.DOTALL)


def kind(declared: str) -> type | None:
    """The ctypes type of a type in C."""
    if "*" in declared or declared in ("cublasHandle_t", "cudaStream_t"):
        return ctypes.c_char_p if declared == "const char*" else ctypes.c_void_p
    if declared in ("int", "cudaDataType") or re.fullmatch(r"cublas\w+_t", declared):
        return ctypes.c_int  # every enumeration is an int
    return {"long long int": ctypes.c_longlong, "size_t": ctypes.c_size_t}.get(declared)


def declared(header: str, name: str) -> tuple[type | None, tuple[type | None, ...]]:
    """What a function returns and takes."""
    # From the name backwards: a pattern that begins with any word would be tried at every letter of the header.
    place = re.search(rf"\bCUBLASWINAPI\s+{name}\s*\(", header)
    before = 0 if place is None else max(header.rfind(end, 0, place.start()) for end in ";{}") + 1
    found = re.search(rf"([\w ]+\*?)\s+CUBLASWINAPI\s+{name}\s*\(([^)]*)\)\s*;", header[before : before + 4000])
    assert found is not None, f"the header declares no {name}"
    arguments = [re.fullmatch(r"(.*?)\s*\b\w+", " ".join(part.split())) for part in found[2].split(",")]
    return kind(found[1].strip()), tuple(kind(argument[1]) if argument else None for argument in arguments)


def differences(header: str, prototypes: Mapping[str, tuple[type, ...]], results: Mapping[str, type]) -> list[str]:
    """The functions whose declaration in the header is another one."""
    return [
        name
        for name, arguments in prototypes.items()
        if declared(header, name) != (results.get(name, ctypes.c_int), arguments)
    ]


def enumerators(header: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"\b(CUBLAS_\w+)\s*=\s*(-?\d+)", header)}


def wrong_constants(header: str, constants: Mapping[str, object]) -> list[str]:
    known = enumerators(header)
    return [name for name, value in constants.items() if name.startswith("CUBLAS_") and known.get(name) != value]


def test_functions_are_declared_as_in_the_header(header: str) -> None:
    assert differences(header, PROTOTYPES, RESULTS) == []


def test_constants_are_those_of_the_header(header: str) -> None:
    assert len([name for name in vars(cublas) if name.startswith("CUBLAS_")]) > 15
    assert wrong_constants(header, vars(cublas)) == []


def test_every_status_of_the_fake_is_one(header: str) -> None:
    statuses = {name: value for name, value in enumerators(header).items() if name.startswith("CUBLAS_STATUS_")}
    ours = {name: value for name, value in vars(cublas).items() if name.startswith("CUBLAS_STATUS_")}
    assert set(statuses.items()) - set(ours.items()) == {("CUBLAS_STATUS_LICENSE_ERROR", 16)}


def changed(name: str, position: int, *types: type) -> dict[str, tuple[type, ...]]:
    """The table with other types in place of one."""
    arguments = PROTOTYPES[name]
    return {**PROTOTYPES, name: (*arguments[:position], *types, *arguments[position + 1 :])}


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (changed("cublasGemmEx", 3), "cublasGemmEx"),
        (changed("cublasGemmEx", 3, ctypes.c_int, ctypes.c_int), "cublasGemmEx"),
        (changed("cublasGemmEx", 3, ctypes.c_longlong), "cublasGemmEx"),
        (changed("cublasGemmStridedBatchedEx", 10, ctypes.c_int), "cublasGemmStridedBatchedEx"),
        (changed("cublasSetWorkspace_v2", 2, ctypes.c_int), "cublasSetWorkspace_v2"),
        (changed("cublasSetStream_v2", 1, ctypes.c_int), "cublasSetStream_v2"),
        (changed("cublasSgemm_v2", 6, ctypes.c_float), "cublasSgemm_v2"),
    ],
)
def test_a_wrong_table_would_be_noticed(header: str, table: dict[str, tuple[type, ...]], name: str) -> None:
    assert differences(header, table, RESULTS) == [name]


def test_a_wrong_result_or_constant_would_be_noticed(header: str) -> None:
    assert differences(header, PROTOTYPES, {}) == ["cublasGetStatusString"]
    wrong = {"CUBLAS_OP_T": 2, "CUBLAS_OF_MINE": 0, "CUBLAS_OP_N": 0}
    assert wrong_constants(header, wrong) == ["CUBLAS_OP_T", "CUBLAS_OF_MINE"]
    with pytest.raises(AssertionError, match="declares no cublasNothing"):
        differences(header, {"cublasNothing": ()}, {})


def test_types_of_numbers_are_those_of_cuda() -> None:
    runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    assert (runtime.CUDA_R_32F, runtime.CUDA_R_64F) == (cublas.CUDA_R_32F, cublas.CUDA_R_64F)


# The library.


@pytest.fixture(scope="module")
def library() -> Any:
    try:
        return cublas_library.load()
    except ConfigurationError as error:
        pytest.skip(str(error))


def test_library_has_the_functions(library: Any) -> None:
    assert all(getattr(library, name).argtypes == arguments for name, arguments in PROTOTYPES.items())


def test_library_says_its_version(library: Any) -> None:
    version = ctypes.c_int()
    assert library.cublasGetVersion_v2(None, ctypes.byref(version)) == 0
    assert version.value >= 120000


def test_library_explains_a_status(library: Any) -> None:
    assert b"unsupported value or parameter" in library.cublasGetStatusString(cublas.CUBLAS_STATUS_INVALID_VALUE)


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
    """Of cublasSgemm_v2, for matrices of 2 × 2."""
    scalar, x, y = (ctypes.c_float * 1)(1), (ctypes.c_float * 4)(), (ctypes.c_float * 4)()
    named: dict[str, object] = {"handle": 0, "turn_a": 0, "turn_b": 0, "m": 2, "n": 2, "k": 2, "alpha": scalar}
    named |= {"a": x, "lda": 2, "b": x, "ldb": 2, "beta": scalar, "c": y, "ldc": 2}
    assert changes.keys() <= named.keys()
    return list({**named, **changes}.values())


def test_fake_computes_what_is_right(fake: FakeCuda) -> None:
    assert fake.cublas.cublasSgemm_v2(*arguments_of()) == 0


@pytest.mark.parametrize(
    "changes",
    [{"lda": 1}, {"ldb": 1}, {"ldc": 1}, {"m": -1}, {"turn_a": 5}, {"m": 3}],
    ids=str,
)
def test_fake_refuses_wrong_values(fake: FakeCuda, changes: dict[str, object]) -> None:
    with pytest.raises(CublasError, match="cublasSgemm_v2 returned 7"):
        check("cublasSgemm_v2", *arguments_of(**changes))


@pytest.mark.parametrize("changes", [{"lda": 2.0}, {"m": ctypes.c_longlong(2)}, {"alpha": 1.0}], ids=str)
def test_fake_refuses_wrong_types(fake: FakeCuda, changes: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"cublasSgemm_v2: argument \d+"):
        check("cublasSgemm_v2", *arguments_of(**changes))


def test_fake_refuses_what_would_bring_the_library_down(fake: FakeCuda) -> None:
    with pytest.raises(TypeError, match=r"takes 14 arguments\. Received: 13"):
        check("cublasSgemm_v2", *arguments_of()[:-1])
    with pytest.raises(OverflowError, match="argument 3"):
        check("cublasSgemm_v2", *arguments_of(m=2**32 + 2))
    with pytest.raises(AssertionError, match="alive"):
        check("cublasSgemm_v2", *arguments_of(handle=99))
    with pytest.raises(AssertionError, match="null"):
        check("cublasSgemm_v2", *arguments_of(a=None))
    arguments = arguments_of()
    arguments[7] = arguments[12]
    with pytest.raises(AssertionError, match="overlaps"):
        check("cublasSgemm_v2", *arguments)
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


@pytest.mark.parametrize(("function", "dtype"), [("Sgemm", FLOAT32), ("Dgemm", FLOAT64)])
def test_fake_has_the_functions_of_one_type(fake: FakeCuda, function: str, dtype: np.dtype[Any]) -> None:
    """Column-major, as the library has it: a is 2 × 3, b is 3 × 1."""
    a, b, y, scalars = np.arange(12, dtype=dtype), np.arange(6, dtype=dtype), np.zeros(4, dtype), np.ones(2, dtype)
    scalars[1] = 0
    pa, pb, py, one, zero = (ctypes.c_void_p(x.ctypes.data) for x in (a, b, y, scalars, scalars[1:]))
    expected = [a[:6].reshape(3, 2).T @ b[:3], a[6:].reshape(3, 2).T @ b[3:]]
    check(f"cublas{function}_v2", 0, 0, 0, 2, 1, 3, one, pa, 2, pb, 3, zero, py, 2)
    np.testing.assert_array_equal(y[:2], expected[0])
    check(f"cublas{function}StridedBatched", 0, 0, 0, 2, 1, 3, one, pa, 2, 6, pb, 3, 3, zero, py, 2, 2, 2)
    np.testing.assert_array_equal(y.reshape(2, 2), expected)
