"""Kernels in CUDA C++, compiled as C++ and run on the processor: what they compute can be tested without a GPU."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HEADER = Path(__file__).parent / "emulate.h"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-parameter")
FLAGS = ("-x", "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", *WARNINGS)
SIGNATURE = re.compile(r"KERNEL\s+(?:__launch_bounds__\(\d+\)\s+)?(\w+)\s*\(([^)]*)\)\s*\{", re.DOTALL)


SCALARS: dict[str, type[np.generic]] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int": np.int32,
    "int64": np.int64,
    "Size": np.int64,
    "uint64": np.uint64,
    "uint32": np.uint32,
}
"""Types of kernels' parameters, as they are written."""
WORDS = "uint32"
"""Of which memory of any type consists."""


@dataclass(frozen=True)
class Parameter:
    """Of a kernel, as it is written."""

    type: str
    name: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type

    @property
    def is_written(self) -> bool:
        return self.is_pointer and "const" not in self.type


@dataclass(frozen=True)
class Emulated:
    """A kernel that runs here."""

    name: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[int, ...]
    """Bytes of each parameter."""
    run: Callable[..., int]
    real: str = "float"
    """What REAL is,"""
    stored: str = "float"
    """and what STORED."""

    def dtype(self, parameter: Parameter) -> np.dtype[np.generic] | None:
        """The type of a number, or of what a pointer points to; None where that is a structure, or anything."""
        return _dtype(parameter, self.real, self.stored)

    def copy(self, arguments: int) -> tuple[NDArray[np.uint64], list[NDArray[np.uint8]]]:
        """The arguments as they are now (a launch copies them): an array of their addresses, and their bytes."""
        places = (ctypes.c_uint64 * len(self.sizes)).from_address(arguments)
        values = [
            np.frombuffer(ctypes.string_at(place, size), np.uint8).copy()
            for place, size in zip(places, self.sizes, strict=True)
        ]
        return np.array([value.ctypes.data for value in values], np.uint64), values

    def __call__(self, blocks: int, threads: int, shared: int, arguments: int) -> None:
        """`arguments`: the address of an array of the arguments' addresses."""
        if self.run(arguments, blocks, threads, shared):
            raise AssertionError(f"{self.name} writes behind its {shared} bytes of shared memory")


@functools.cache
def _dtype(parameter: Parameter, real: str, stored: str) -> np.dtype[np.generic] | None:
    name = re.sub(r"\bconst\b|\*", "", parameter.type).strip()
    if parameter.is_pointer and name == WORDS:
        return None
    name = {"real": real, "stored": stored}.get(name, name)
    return np.dtype(SCALARS[name]) if name in SCALARS else None


def compile_kernels(source: str, options: Sequence[str]) -> dict[str, Emulated]:
    """The kernels of CUDA C++ source code, by name."""
    library = ctypes.CDLL(str(_compiled(source, tuple(option for option in options if option.startswith("-D")))))
    defined = dict(option.removeprefix("-D").split("=") for option in options if option.startswith("-D"))
    real = defined.get("REAL", "float")
    kernels = {}
    for name, text in SIGNATURE.findall(source):
        run = getattr(library, f"run_{name}")
        run.argtypes = (ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
        run.restype = ctypes.c_int
        count = len(text.split(","))
        sizes = (ctypes.c_size_t * count)()
        getattr(library, f"sizes_{name}")(sizes)
        parameters = [re.fullmatch(r"(.*?)(\w+)", part.strip(), re.DOTALL) for part in text.split(",")]
        named = tuple(Parameter(p[1].strip(), p[2]) for p in parameters if p)
        kernels[name] = Emulated(name, named, tuple(sizes), run, real, defined.get("STORED", real))
    return kernels


@functools.cache
def _compiled(source: str, options: tuple[str, ...]) -> Path:
    glue = []
    meets = _meeting(source)
    for name, _ in SIGNATURE.findall(source):
        meeting = str(name in meets).lower()
        glue.append(
            f'extern "C" int run_{name}(size_t p, unsigned blocks, unsigned threads, unsigned bytes) {{'
            f" return emulated::run(emulated::unpack<{name}>, (void **)p, blocks, threads, bytes, {meeting}); }}\n"
            f'extern "C" void sizes_{name}(size_t *sizes) {{ emulated::sizes_of({name}, sizes); }}'
        )
    text = "\n".join([HEADER.read_text(), source, *glue])
    digest = hashlib.sha256(repr((text, options, FLAGS)).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"crossbow-emulated-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{digest}.so"
    if not path.exists():
        unfinished = folder / f"{digest}.{os.getpid()}.{threading.get_ident()}.so"  # ranks of one test are threads
        command = [*compiler(), *FLAGS, *options, "-", "-o", str(unfinished)]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
        unfinished.replace(path)
    return path


def _meeting(source: str) -> set[str]:
    """The kernels whose threads meet."""
    starts = [(match.start(), match[1]) for match in SIGNATURE.finditer(source)]
    ends = [start for start, _ in starts[1:]] + [len(source)]
    waits = re.compile(r"\b(__syncthreads|reduce\w*)\s*\(")
    return {name for (start, name), end in zip(starts, ends, strict=True) if waits.search(source[start:end])}


@functools.cache
def compiler() -> tuple[str, ...]:
    """The system's C++ compiler. (That of the `ziglang` package would be a download of 100 MB.)"""
    wanted = tuple(filter(None, (os.environ.get("CXX"), "g++", "clang++")))
    for name in wanted:
        if shutil.which(name):
            return (name,)
    raise RuntimeError(
        f"expected a C++ compiler that knows C++17, to run CUDA kernels on the processor: Debian's package g++, or any "
        f"that the environment variable CXX names. Received: none of {', '.join(wanted)} on the PATH"
    )
