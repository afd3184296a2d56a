"""oneDNN's table of prototypes against the library's own header, its objects, and its errors."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_char, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.binding import PROTOTYPES, RESULTS, Dims, ExecutionArgument, OneDNNError
from crossbow.kernels.cpu.onednn.memory import attributes, engine, memory, plain
from crossbow.types import address

KINDS = {
    "dnnl_engine_t": dnnl.DnnlEngine,
    "dnnl_stream_t": dnnl.DnnlStream,
    "dnnl_memory_desc_t": dnnl.DnnlMemoryDesc,
    "dnnl_memory_t": dnnl.DnnlMemory,
    "dnnl_primitive_attr_t": dnnl.DnnlPrimitiveAttr,
    "dnnl_primitive_desc_t": dnnl.DnnlPrimitiveDesc,
    "dnnl_primitive_t": dnnl.DnnlPrimitive,
}
NUMBERS = {"int": c_int, "size_t": c_size_t, "float": c_float, "char": c_char, "dnnl_dim_t": c_int64}
ENUMERATIONS = ("engine_kind", "data_type", "format_tag", "query", "prop_kind", "alg_kind", "scratchpad_mode", "status")


def kind(declared: str) -> Any:
    """The type of the table for a type in C."""
    bare = declared.removeprefix("const_").removeprefix("const ")
    if bare in KINDS:
        return KINDS[bare]
    if bare.endswith("*"):
        target = bare.removesuffix("*").strip()
        if target == "dnnl_exec_arg_t":
            return POINTER(ExecutionArgument)
        return POINTER(KINDS[target]) if target in KINDS else c_void_p
    if bare == "dnnl_dims_t":
        return Dims
    if bare == "unsigned":
        return c_uint
    if re.fullmatch(rf"dnnl_({'|'.join(ENUMERATIONS)})_t", bare):
        return c_int
    return NUMBERS[bare]


def headers(*names: str) -> str:
    """Headers of a later version of oneDNN 3, which PyTorch installs, without comments."""
    found = importlib.util.find_spec("torch")
    folder = Path("" if found is None or found.origin is None else found.origin).parent / "include" / "oneapi" / "dnnl"
    if not (folder / "dnnl.h").is_file():
        pytest.skip("dnnl.h is not installed")
    text = "".join((folder / name).read_text() for name in names)
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def header() -> str:
    return headers("dnnl.h", "dnnl_common.h")


def enumerators(text: str) -> dict[str, int]:
    """The values of all enumerations, and of macros that are numbers."""
    known = dict[str, int]()
    for name, value in re.findall(r"#define (DNNL_ARG_\w+) (\w+)\s", text):
        known[name] = int(value) if value.isdigit() else known[value]
    for body in re.findall(r"typedef enum \{(.*?)\}", text, flags=re.DOTALL):
        value = -1
        for name, given in re.findall(r"(\w+)\s*(?:=\s*([^,]+))?", body):
            value = eval(given.replace("U", ""), {}, known) if given else value + 1
            known[name] = value
    return known


NAMES = {
    "TAG_ANY": "dnnl_format_tag_any", "TAG_ABCD16A16B": "dnnl_ABcd16a16b", "TAG_ABCD8A8B": "dnnl_ABcd8a8b",
    "TAG_ABCDE16B16C": "dnnl_aBCde16b16c", "TAG_ABCDE8B8C": "dnnl_aBCde8b8c",
}  # fmt: skip
"""Constants of the header whose names are not the binding's in other letters."""


def test_constants_are_those_of_the_headers() -> None:
    known = enumerators(headers("dnnl_types.h", "dnnl_common_types.h"))
    ours = {name: value for name, value in vars(dnnl).items() if name.isupper() and type(value) is int}
    assert ours.pop("MAXIMUM_DIMENSIONS") == 12
    assert len(ours) > 50
    for name, value in ours.items():
        theirs = f"DNNL_{name}" if name.startswith("ARG_") else f"dnnl_{name.removeprefix('TAG_').lower()}"
        theirs = re.sub("_use_dst$", "_use_dst_for_bwd", theirs)
        assert known.get(NAMES.get(name, theirs)) == value, name


@pytest.mark.parametrize("name", PROTOTYPES)
def test_prototypes_are_those_of_the_header(header: str, name: str) -> None:
    place = re.search(rf"([\w]+)\s+DNNL_API\s+{name}\s*\(([^;]*)\);", header)
    assert place is not None
    result, arguments = place.groups()
    declared = [re.match(r"\s*((?:const\s+)?\w+\s*\**)\s*\w*(\[\])?\s*$", part) for part in arguments.split(",")]
    parameters = [" ".join(part[1].split()).replace(" *", "*") for part in declared if part is not None]
    assert len(parameters) == len(declared)
    assert tuple(map(kind, parameters)) == PROTOTYPES[name]
    expected = c_void_p if kind(result) is dnnl.DnnlMemoryDesc else kind(result)
    assert RESULTS.get(name, c_int) is expected


def test_a_primitive_computes() -> None:
    source, target = np.array([[-1.0, 2.0]], np.float32), np.zeros((1, 2), np.float32)
    rows = plain(source.shape)
    relu = dnnl.primitive_desc(
        "eltwise_forward", engine(), dnnl.FORWARD_INFERENCE, dnnl.ELTWISE_RELU, rows, rows, 0.5, 0.0, attributes()
    )
    primitive = dnnl.create("dnnl_primitive_create", relu)
    stream = dnnl.create("dnnl_stream_create", engine(), dnnl.STREAM_IN_ORDER)
    memories = {dnnl.ARG_SRC: memory(rows, address(source)), dnnl.ARG_DST: memory(rows, address(target))}
    dnnl.call("dnnl_primitive_execute", primitive, stream, len(memories), dnnl.execution_arguments(memories))
    assert target.tolist() == [[-0.5, 2.0]]


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(ctypes.ArgumentError, match=r"argument 2: .*wrong type"):
        dnnl.create("dnnl_primitive_create", plain((2, 3)))


def test_what_the_library_refuses() -> None:
    with pytest.raises(
        OneDNNError, match=r"dnnl_memory_desc_create_with_tag returned 2 \(invalid_arguments\)"
    ) as error:
        dnnl.memory_desc((-2, 3), dnnl.TAG_AB)
    assert error.value.status == 2


def test_objects_are_destroyed_with_their_last_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[int] = []
    function = dnnl.function

    def noting(name: str) -> Any:
        if name != "dnnl_memory_desc_destroy":
            return function(name)
        return lambda handle: (destroyed.append(handle.value), function(name)(handle))

    monkeypatch.setattr(dnnl, "function", noting)
    made = plain((2, 3))
    value = made.value
    assert not destroyed
    del made
    assert destroyed == [value]


def test_properties_of_a_memory_descriptor() -> None:
    blocked = dnnl.memory_desc((20, 3, 5, 5), dnnl.TAG_ABCD16A16B)
    assert dnnl.size(blocked) == 4 * 32 * 16 * 25
    count = dnnl.query_int(blocked, dnnl.QUERY_INNER_NBLKS_S32)
    assert dnnl.query_dims(blocked, dnnl.QUERY_INNER_BLKS, count) == (16, 16)
    assert dnnl.equal(plain((2, 3)), dnnl.strided_memory_desc((2, 3), (3, 1)))
    assert not dnnl.equal(plain((2, 3)), dnnl.strided_memory_desc((2, 3), (1, 2)))


def test_threads_share_one_handle() -> None:
    """The first thread is slow to make the handle: the others wait for it."""
    begun, made = threading.Event(), []

    @dnnl.shared
    def slow() -> dnnl.Handle:
        begun.set()
        time.sleep(0.05)
        made.append(dnnl.create("dnnl_engine_create", dnnl.CPU, 0))
        return made[-1]

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(slow)
        begun.wait(30)
        others = [threads.submit(slow) for _ in range(2)]
        assert [each.result(30) is first.result(30) for each in others] == [True, True]
    assert len(made) == 1
