"""cuDNN's table of functions, structures and constants against its C headers; versions that are refused."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow.kernels.cuda import cudnn, cudnn_library
from crossbow.types import ConfigurationError

DESCRIPTORS = {f"cudnn{kind.__name__}_t": kind for kind in cudnn_library.DESCRIPTORS}
PERFORMANCE = [f"cudnnConvolution{kind}AlgoPerf_t" for kind in ("Fwd", "BwdData", "BwdFilter")]
TYPES = {
    "int": c_int,
    "unsigned": c_uint,
    "unsigned long long": c_ulonglong,
    "size_t": c_size_t,
    "float": c_float,
    "double": c_double,
    "cudnnHandle_t": c_void_p,
    "cudaStream_t": c_void_p,
    "cudnnStatus_t": c_int,
    **DESCRIPTORS,
    **dict.fromkeys(PERFORMANCE, cudnn_library.AlgorithmPerformance),
}
"""Of C, beside the enums."""


# The headers


def include_directory() -> Path | None:
    try:
        from cuda.pathfinder import locate_nvidia_header_directory
    except ImportError:
        return None
    found = locate_nvidia_header_directory("cudnn")
    return None if found is None else Path(str(found.abs_path))


@pytest.fixture(scope="module")
def headers() -> str:
    folder = include_directory()
    if folder is None:
        pytest.skip("cuDNN's C headers are not installed")
    return without_comments("\n".join((folder / f"cudnn_{part}.h").read_text() for part in ("graph", "ops", "cnn")))


def without_comments(text: str) -> str:
    """Nor directives of the preprocessor."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)


def enumerations(text: str) -> dict[str, dict[str, int]]:
    """The constants of every enum, by its name."""
    return {
        name: {
            constant: int(value.rstrip("U"), 0)
            for constant, value in re.findall(r"(CUDNN_\w+)\s*(?:CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d\w*)", body)
        }
        for body, name in re.findall(r"typedef\s+enum\s*\w*\s*\{([^}]*)\}\s*(\w+)", text)
    }


def declarations(text: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """What every function returns and takes, as ctypes has it; a type that we have no use for as its text."""
    enums = enumerations(text)
    found = {}
    for result, name, parameters in re.findall(r"([\w\s*]+?)\bCUDNNWINAPI\s+(\w+)\s*\(([^)]*)\)\s*;", text):
        words = [word for word in result.replace("*", " * ").split() if word not in ("CUDNN_DEPRECATED", "extern")]
        taken = [] if parameters.strip() == "void" else parameters.split(",")
        found[name] = (type_of(" ".join(words), enums), tuple(type_of(named(text), enums) for text in taken))
    return found


def named(parameter: str) -> str:
    """A parameter's type, its name taken away."""
    match = re.fullmatch(r"(.*?)\w+\s*(\[\s*\])?", parameter.strip(), re.DOTALL)
    assert match is not None, parameter
    return match[1] + (" *" if match[2] else "")


def type_of(text: str, enums: Mapping[str, object]) -> Any:
    words = [word for word in text.replace("*", " * ").split() if word != "const"]
    stars, base = words.count("*"), " ".join(word for word in words if word != "*")
    if base in ("void", "char"):
        return {("void", 0): None, ("void", 1): c_void_p, ("char", 1): c_char_p}.get((base, stars), text)
    kind = c_int if base in enums else TYPES.get(base)
    if kind is None or stars > 1:
        return text
    return POINTER(kind) if stars else kind


def disagreements(
    table: Mapping[str, tuple[Any, ...]], results: Mapping[str, Any], declared: Mapping[str, object]
) -> list[str]:
    """The functions of the table that are not declared so."""
    wrong = []
    for name, types in table.items():
        ours = (results.get(name, c_int), tuple(types))
        if declared.get(name) != ours:
            wrong.append(f"{name}: expected {declared.get(name)}. Received: {ours}")
    return wrong


def test_prototypes_agree_with_the_headers(headers: str) -> None:
    declared = declarations(headers)
    assert len(declared) > 150
    assert disagreements(cudnn_library.PROTOTYPES, cudnn_library.RESULTS, declared) == []


def test_any_wrong_prototype_would_be_noticed(headers: str) -> None:
    declared = declarations(headers)
    others = (c_int, c_size_t, c_double, c_float, c_void_p, POINTER(c_int), *cudnn_library.DESCRIPTORS)
    for name, types in cudnn_library.PROTOTYPES.items():
        wrong = [(*types, c_int), *([types[:-1]] if types else [])]
        for position, kind in enumerate(types):
            wrong += [(*types[:position], other, *types[position + 1 :]) for other in others if other is not kind]
        for table in wrong:
            assert disagreements({name: table}, cudnn_library.RESULTS, declared), table
        assert disagreements({name: types}, {**cudnn_library.RESULTS, name: c_double}, declared)


SAMPLE = """
typedef enum { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_DOUBLE CUDNN_DEPRECATED_ENUM = 1, } cudnnDataType_t;
CUDNN_DEPRECATED cudnnStatus_t CUDNNWINAPI cudnnSample(cudnnHandle_t handle, const void *alpha,
    const cudnnTensorDescriptor_t xDesc, cudnnDataType_t type, const int sizes[], size_t *bytes, /* an int */ int n);
size_t CUDNNWINAPI cudnnVersion(void);
const char *CUDNNWINAPI cudnnText(unsigned number);
"""
SAMPLE_TABLE = {
    "cudnnSample": (
        c_void_p,
        c_void_p,
        cudnn_library.TensorDescriptor,
        c_int,
        POINTER(c_int),
        POINTER(c_size_t),
        c_int,
    ),
    "cudnnVersion": (),
    "cudnnText": (c_uint,),
}
SAMPLE_RESULTS = {"cudnnVersion": c_size_t, "cudnnText": c_char_p}


def test_the_checker_reads_declarations() -> None:
    text = without_comments(SAMPLE)
    assert disagreements(SAMPLE_TABLE, SAMPLE_RESULTS, declarations(text)) == []
    assert enumerations(text) == {"cudnnDataType_t": {"CUDNN_DATA_FLOAT": 0, "CUDNN_DATA_DOUBLE": 1}}


@pytest.mark.parametrize(
    ("position", "wrong"),
    [
        (1, c_int),
        (2, cudnn_library.FilterDescriptor),
        (2, c_void_p),
        (3, c_size_t),
        (4, c_int),
        (5, POINTER(c_int)),
        (6, c_uint),
    ],
)
def test_the_checker_notices_a_wrong_kind(position: int, wrong: Any) -> None:
    types = list(SAMPLE_TABLE["cudnnSample"])
    types[position] = wrong
    declared = declarations(without_comments(SAMPLE))
    assert len(disagreements({**SAMPLE_TABLE, "cudnnSample": tuple(types)}, SAMPLE_RESULTS, declared)) == 1


def test_the_checker_notices_a_wrong_number_result_or_name() -> None:
    declared = declarations(without_comments(SAMPLE))
    types = SAMPLE_TABLE["cudnnSample"]
    for table, results in (
        ({"cudnnSample": types[:-1]}, SAMPLE_RESULTS),
        ({"cudnnSample": (*types, c_int)}, SAMPLE_RESULTS),
        ({"cudnnVersion": ()}, {}),
        ({"cudnnOther": ()}, {}),
    ):
        assert len(disagreements(table, results, declared)) == 1, (table, results)


def test_constants_agree_with_the_headers(headers: str) -> None:
    declared = {name: value for constants in enumerations(headers).values() for name, value in constants.items()}
    ours = {f"CUDNN_{name}": value for name, value in vars(cudnn).items() if name.isupper() and type(value) is int}
    assert len(ours) > 35
    assert ours == {name: declared.get(name) for name in ours}


NUMBERS = {
    "STATUS_SUCCESS": 0, "STATUS_BAD_PARAM": 2000, "STATUS_NOT_SUPPORTED": 3000,
    "DATA_FLOAT": 0, "DATA_DOUBLE": 1, "DATA_HALF": 2, "DATA_BFLOAT16": 9,
    "DEFAULT_MATH": 0, "TENSOR_OP_MATH": 1, "TENSOR_OP_MATH_ALLOW_CONVERSION": 2, "FMA_MATH": 3,
    "TENSOR_NCHW": 0, "TENSOR_NHWC": 1, "CROSS_CORRELATION": 1,
    "CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM": 0, "CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM": 1,
    "CONVOLUTION_FWD_ALGO_GEMM": 2, "CONVOLUTION_FWD_ALGO_DIRECT": 3, "CONVOLUTION_FWD_ALGO_FFT": 4,
    "CONVOLUTION_FWD_ALGO_FFT_TILING": 5, "CONVOLUTION_FWD_ALGO_WINOGRAD": 6,
    "CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED": 7, "CONVOLUTION_FWD_ALGO_COUNT": 8,
    "CONVOLUTION_BWD_DATA_ALGO_0": 0, "CONVOLUTION_BWD_DATA_ALGO_1": 1, "CONVOLUTION_BWD_DATA_ALGO_FFT": 2,
    "CONVOLUTION_BWD_DATA_ALGO_FFT_TILING": 3, "CONVOLUTION_BWD_DATA_ALGO_WINOGRAD": 4,
    "CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED": 5, "CONVOLUTION_BWD_DATA_ALGO_COUNT": 6,
    "CONVOLUTION_BWD_FILTER_ALGO_0": 0, "CONVOLUTION_BWD_FILTER_ALGO_1": 1, "CONVOLUTION_BWD_FILTER_ALGO_FFT": 2,
    "CONVOLUTION_BWD_FILTER_ALGO_3": 3, "CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD": 4,
    "CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED": 5, "CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING": 6,
    "CONVOLUTION_BWD_FILTER_ALGO_COUNT": 7,
}  # fmt: skip
"""The headers' numbers, for where they are not installed: the fake has the package's."""


def test_constants_are_as_recorded() -> None:
    assert {name: value for name, value in vars(cudnn).items() if name.isupper() and type(value) is int} == NUMBERS


def test_structures_agree_with_the_headers(headers: str) -> None:
    enums = enumerations(headers)
    for name in PERFORMANCE:
        body = re.search(r"\{([^{}]*)\}\s*" + name, headers)
        assert body is not None
        fields = re.findall(r"([\w ]+?)\s+(\w+)(?:\[(\d+)\])?\s*;", body[1])
        types = [(field, type_of(kind, enums), int(size or 0)) for kind, field, size in fields]
        declared = [(field, kind * size if size else kind) for field, kind, size in types]
        assert declared == [*cudnn_library.AlgorithmPerformance._fields_]


# Loading


def library_of(version: int) -> Any:
    made = SimpleNamespace(**{name: SimpleNamespace() for name in cudnn_library.PROTOTYPES})
    made.cudnnGetVersion = type("Version", (), {"__call__": lambda self: version})()
    return made


@pytest.mark.parametrize("version", [8907, 89_999, 100_000])
def test_another_version_is_refused(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library, "find", lambda library: SimpleNamespace(library=library_of(version)))
    with pytest.raises(ConfigurationError, match=rf"cuDNN 9 .*crossbow\[cuda13\].*Received: version {version}$"):
        cudnn_library.load()


def test_a_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library, "find", lambda library: SimpleNamespace(library=SimpleNamespace()))
    with pytest.raises(ConfigurationError, match=r"expected cuDNN 9 .*Received: a library without cudnn\w+$"):
        cudnn_library.load()


@pytest.mark.parametrize("version", [90_000, 90_100, 99_999])
def test_functions_get_their_types(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = library_of(version)
    monkeypatch.setattr(cudnn_library, "find", lambda wanted: SimpleNamespace(library=library))
    assert cudnn_library.load() is library
    for name, types in cudnn_library.PROTOTYPES.items():
        function = getattr(library, name)
        assert (function.argtypes, function.restype) == (types, cudnn_library.RESULTS.get(name, ctypes.c_int))
