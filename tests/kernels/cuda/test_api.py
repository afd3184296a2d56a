"""What is called of CuPy is there and takes what it is given: by the signatures of the CuPy that is installed."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from crossbow.kernels.cuda import cublas_library, cudnn_library
from crossbow.kernels.cuda.api import CuPy, _OurStream
from tests.kernels.cuda.fake import FakeCuda

ROOT = Path(__file__).parent.parent.parent.parent
MODULES = {
    "runtime": "runtime",
    "_runtime": "runtime",
    "driver": "driver",
    "nccl": "nccl",
    "communicator": "communicator",
}
"""What the objects are called in our code whose members are CuPy's."""


@dataclass(frozen=True)
class Used:
    """A member of one of CuPy's modules in our code."""

    module: str
    name: str
    where: str
    arguments: int | None = None
    """How many it is called with; None where it is not called."""


@dataclass(frozen=True)
class Arity:
    """How many arguments a function takes."""

    least: int
    most: int


def members(source: str, file: str) -> list[Used]:
    """What a source uses of CuPy's modules."""
    found = []
    tree = ast.parse(source)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name not in MODULES or (isinstance(owner, ast.Attribute) and ast.unparse(owner).startswith("crossbow")):
            continue
        call, arguments = called.get(id(node)), None
        if call is not None:
            assert not call.keywords, f"{file}: {ast.unparse(call)}: CuPy's functions are called by position"
            assert not any(isinstance(argument, ast.Starred) for argument in call.args)
            arguments = len(call.args)
        found.append(Used(MODULES[name], node.attr, f"{file}:{node.lineno}", arguments))
    return found


@cache
def all_used() -> tuple[Used, ...]:
    files = [
        *(ROOT / "crossbow/kernels/cuda").glob("*.py"),
        *(ROOT / "crossbow/runtime/cuda").glob("*.py"),
        *(ROOT / "benchmarks").glob("gpu_*.py"),
    ]
    return tuple(
        used for path in sorted(files) for used in members(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    )


def arity(signature: str) -> Arity:
    """Of a function whose documentation begins with its signature, as Cython writes it.

    >>> arity("memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)")
    Arity(least=5, most=5)
    >>> arity("NcclCommunicator.initAll(devices=None)"), arity("memGetInfo()"), arity("Rank.destroy(self)")
    (Arity(least=0, most=1), Arity(least=0, most=0), Arity(least=0, most=0))
    """
    (inside,) = re.findall(r"^[\w.]+\((.*)\)", signature.strip().split("\n", 1)[0])
    parameters = [text.strip() for text in inside.split(",") if text.strip() and text.strip() != "self"]
    required = [text for text in parameters if "=" not in text]
    return Arity(len(required), len(parameters))


@pytest.fixture(scope="module")
def cupy() -> dict[str, Any]:
    """CuPy's modules by our names for them."""
    cuda = pytest.importorskip("cupy.cuda", reason="cupy is not installed")
    pytest.importorskip("cupy.cuda.nccl", reason="cupy is not installed")
    from cupy.cuda import driver, nccl, runtime

    assert cuda is not None
    if not nccl.available:
        pytest.skip("NCCL, which cupy needs for its binding, is not installed")
    return {"runtime": runtime, "driver": driver, "nccl": nccl, "communicator": nccl.NcclCommunicator}


@pytest.mark.slow
def test_what_is_called_is_there_and_takes_what_it_is_given(cupy: dict[str, Any]) -> None:
    wrong = []
    for used in all_used():
        member = getattr(cupy[used.module], used.name, None)
        if member is None:
            wrong.append(f"{used.where}: CuPy has no {used.module}.{used.name}")
        elif used.arguments is not None:
            takes = arity(member.__doc__ or "")
            if not takes.least <= used.arguments <= takes.most:
                wrong.append(f"{used.where}: {used.module}.{used.name} takes {takes}. Received: {used.arguments}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_fake_takes_nothing_that_cupy_does_not(cupy: dict[str, Any]) -> None:
    """No more arguments, and no fewer."""
    fake = FakeCuda()
    known = 0
    for used in {(used.module, used.name) for used in all_used() if used.arguments is not None}:
        module, name = used
        function = getattr(getattr(fake, module, None), name, None)
        if not inspect.ismethod(function):
            continue
        parameters = inspect.signature(function).parameters.values()
        required = [parameter for parameter in parameters if parameter.default is parameter.empty]
        takes = arity(getattr(cupy[module], name).__doc__ or "")
        assert takes.least <= len(required) <= len(parameters) <= takes.most, f"{module}.{name}"
        known += 1
    assert known >= 15


def test_all_that_is_used_was_found() -> None:
    names = {(used.module, used.name) for used in all_used()}
    assert {
        *(("runtime", "memcpyAsync"), ("runtime", "graphInstantiate"), ("runtime", "streamNonBlocking")),
        *(("driver", "launchKernel"), ("nccl", "groupStart"), ("communicator", "allReduce")),
        *(("runtime", "deviceGetPCIBusId"), ("runtime", "eventDestroy")),
    } <= names


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("api().runtime.streamDestroy(1, 2)", Used("runtime", "streamDestroy", "a.py:1", 2)),
        ("runtime, x = api().runtime, 1\nruntime.getDevice()", Used("runtime", "getDevice", "a.py:2", 0)),
        ("weakref.finalize(self, runtime.eventDestroy, p)", Used("runtime", "eventDestroy", "a.py:1")),
        ("import crossbow.runtime.cuda\nx = crossbow.runtime.cuda", None),
    ],
)
def test_members_of_a_source(source: str, expected: Used | None) -> None:
    assert members(source, "a.py") == ([] if expected is None else [expected])


def test_arities() -> None:
    assert arity("streamWaitEvent(intptr_t stream, intptr_t event, unsigned int flags=0)") == Arity(2, 3)
    assert arity("memGetInfo()") == Arity(0, 0)
    assert arity("NcclCommunicator.allReduce(self, intptr_t sendbuf, size_t count)") == Arity(2, 2)


def test_a_stream_of_ours_is_given_to_cupy_as_it_wants_it(
    cupy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a warning that something is deprecated; and CuPy does not destroy it."""
    from cupy.cuda import Stream

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = Stream.from_external(_OurStream(0x1230))
    assert stream.ptr == 0x1230
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    del stream
    gc.collect()
    assert not raised  # destroying one that is none, or without a driver, would be an error


def test_arrays_on_a_stream_use_nothing_deprecated(cupy: dict[str, Any]) -> None:
    """As far as that goes without a driver, which is asked for when the stream is made the current one."""
    try:
        cupy["runtime"].getDeviceCount()
    except cupy["runtime"].CUDARuntimeError as error:
        missing = error
    else:
        pytest.skip("there is a GPU: tests/runtime/cuda/test_gpu.py uses such arrays on it")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(type(missing)), CuPy().arrays(0x1230):
            pass


# The functions of cuDNN and cuBLAS that are declared.


def named_in(text: str) -> set[str]:
    """Patterns of the functions of cuDNN and cuBLAS that code names, in which `\\w+` is a value that it inserts."""
    found, inserted = set(), set[ast.AST]()
    for node in ast.walk(ast.parse(text)):
        if node in inserted:  # part of a text that has been seen
            continue
        parts: list[ast.expr] | list[ast.AST] = [node]
        if isinstance(node, ast.JoinedStr):
            parts = node.values
            inserted.update(parts)
        pattern = "".join(
            re.escape(part.value) if isinstance(part, ast.Constant) and isinstance(part.value, str) else r"\w+"
            for part in parts
        )
        if re.fullmatch(r"(cudnn|cublas)[A-Z][\w\\+]*", pattern):
            found.add(pattern)
        if isinstance(node, ast.Attribute):
            found.add(re.escape(node.attr))
    return found


def test_names_of_functions_are_found() -> None:
    found = named_in("check('cudnnCreate')\ncheck(f'cudnnDestroy{kind}Descriptor')\nlibrary.cublasGet(f'{x} b')")
    assert found - {"check"} == {"cudnnCreate", r"cudnnDestroy\w+Descriptor", "cublasGet"}


@pytest.mark.slow
def test_every_function_that_is_declared_is_called() -> None:
    """In the package, or in a benchmark."""
    files = [file for folder in ("crossbow", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    libraries = {Path(library.__file__) for library in (cudnn_library, cublas_library)}
    # A library's module itself calls what an attribute names: its table has the names as strings.
    patterns = {pattern for file in files if file not in libraries for pattern in named_in(file.read_text("utf-8"))}
    called = re.compile("|".join(sorted(patterns)))
    declared = {*cudnn_library.PROTOTYPES, *cublas_library.PROTOTYPES}
    assert {name for name in declared if not called.fullmatch(name)} == set()
