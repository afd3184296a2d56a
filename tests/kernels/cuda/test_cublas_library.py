"""cuBLAS's table of functions and constants against the library's own header, and the library where it is."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow.kernels.cuda import cublas, cublas_library
from crossbow.kernels.cuda.cublas_library import PROTOTYPES, RESULTS
from crossbow.types import ConfigurationError

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


NUMBERS = {
    "CUBLAS_STATUS_SUCCESS": 0, "CUBLAS_STATUS_NOT_INITIALIZED": 1, "CUBLAS_STATUS_ALLOC_FAILED": 3,
    "CUBLAS_STATUS_INVALID_VALUE": 7, "CUBLAS_STATUS_ARCH_MISMATCH": 8, "CUBLAS_STATUS_MAPPING_ERROR": 11,
    "CUBLAS_STATUS_EXECUTION_FAILED": 13, "CUBLAS_STATUS_INTERNAL_ERROR": 14, "CUBLAS_STATUS_NOT_SUPPORTED": 15,
    "CUBLAS_OP_N": 0, "CUBLAS_OP_T": 1,
    "CUBLAS_DEFAULT_MATH": 0, "CUBLAS_PEDANTIC_MATH": 2, "CUBLAS_TF32_TENSOR_OP_MATH": 3,
    "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION": 16,
    "CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_GEMM_DEFAULT": -1,
    "CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16F": 2, "CUDA_R_16BF": 14,
}  # fmt: skip
"""The headers' numbers, for where they are not installed: the fake has the package's."""


def test_constants_are_as_recorded() -> None:
    ours = {name: value for name, value in vars(cublas).items() if re.match(r"CUBLAS_|CUDA_R_", name)}
    assert ours == NUMBERS


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
        (changed("cublasGemmEx", 6, ctypes.c_float), "cublasGemmEx"),
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


def test_functions_get_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(**{name: SimpleNamespace() for name in PROTOTYPES})
    monkeypatch.setattr(cublas_library, "find", lambda wanted: SimpleNamespace(library=library))
    assert cublas_library.load() is library
    for name, types in PROTOTYPES.items():
        function = getattr(library, name)
        assert (function.argtypes, function.restype) == (types, RESULTS.get(name, ctypes.c_int))
