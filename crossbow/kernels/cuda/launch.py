"""Calls on the GPU: our own kernels, bound to their arguments, and the stream that receives calls."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda import dependent_launch
from crossbow.kernels.cuda.api import api, remember
from crossbow.types import Array, address

SOURCES = Path(__file__).parent / "sources"
BLOCK = 256
"""Number of threads of a block, unless a kernel needs another number."""
MOST_BLOCKS = 4096
"""Maximum number of blocks of a grid. Beyond it, each thread takes several elements."""
PACK = 16
"""Number of bytes that a thread of a pointwise kernel reads or writes at once, if the arrays' alignment allows it."""
LEAST_WIDE = 2**30
"""Minimum number of elements of an array for which positions (`Index` in the sources) have 64 bits."""
OPTIONS = ("-std=c++17",)
WIDE = ("-DWIDE=1",)
"""The option for positions of 64 bits."""
REALS = {"float32": "float", "float64": "double"}
"""Types in which kernels compute, by name: REAL in their sources."""
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
NARROW = ("float16", "bfloat16")
"""16-bit types of tensors, with which kernels compute in float32: STORED in the sources."""


@dataclass(frozen=True)
class Stream:
    """A CUDA stream, and the handles of the libraries that go with it."""

    device: int
    pointer: int
    cudnn: int = 0
    cublas: int = 0


_LEGACY = Stream(0, 0)


class _Current(threading.local):
    stream = _LEGACY
    has_context = False
    """Whether the thread has set a device and so has a CUDA context, which `cuLaunchKernel` needs."""


_current = _Current()


def current() -> Stream:
    """Return the stream of this thread's calls."""
    return _current.stream


class on:  # noqa: N801 - read as a word: `with on(stream):`
    """Direct this thread's calls to a stream, and make its device the current one.

    It is a class, because a generator takes twice as long, and every task does this twice.
    """

    __slots__ = ("_before", "_device", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream, runtime = self._stream, api().runtime
        self._before, self._device = _current.stream, runtime.getDevice()
        if self._device != stream.device or not _current.has_context:
            runtime.setDevice(stream.device)
            _current.has_context = True
        _current.stream = stream

    def __exit__(self, *_: object) -> None:
        _current.stream = self._before
        if self._device != self._stream.device:
            api().runtime.setDevice(self._device)


@dataclass(frozen=True, repr=False)
class Launch:
    """A kernel with its arguments: a call. It keeps its arguments alive."""

    name: str
    function: int
    blocks: int
    threads: int
    shared: int
    parameters: int
    """Address of the array of the arguments' addresses, for cuLaunchKernel."""
    references: Sequence[object]
    kernel: CudaKernel
    arguments: Sequence[Argument]
    elements: int
    """Number of elements, if they may be divided among the threads of any grid; 0 if the grid is fixed."""
    work: int
    """Number of elements that are read for one of these elements, if it is small enough for a series; otherwise 0."""
    pointwise: bool
    """Whether, of tensors that are written, a thread reads and writes only its own elements."""
    dependent: bool
    """Whether the kernel is launched before earlier kernels have ended, and then waits for them
    (`dependent_launch`)."""
    capturable: ClassVar[bool] = True
    """Whether it may become part of a CUDA graph: its work depends only on the GPU's memory."""

    def __call__(self) -> None:
        if self.dependent:
            grid = self.blocks, self.threads, self.shared
            dependent_launch.launch(self.function, *grid, current().pointer, self.parameters)
            return
        api().driver.launchKernel(
            self.function, self.blocks, 1, 1, self.threads, 1, 1, self.shared, current().pointer, self.parameters, 0
        )


class Structure:
    """Numbers that a kernel receives as one struct, by value."""

    def __init__(self, *values: int) -> None:
        self.values = np.array(values, np.int64)


Argument = Array | np.generic | Structure | None
"""An argument of a kernel. An array is passed as its address (None as a null pointer), a number by value, in its
type."""


@dataclass(frozen=True)
class CudaKernel:
    """A `__global__` function of `sources/<file>.cu`, for tensors of one type.

    Positions have 32 bits unless an argument is an array that needs more.
    """

    file: str
    name: str
    dtype: np.dtype[np.generic]
    generated: str = ""
    """Code that follows the file's, for kernels generated during preparation."""
    constants: tuple[tuple[str, int], ...] = ()
    """Names and values of constants that the file's code uses, but does not define."""

    def each(
        self, elements: int, *arguments: Argument, shared: int = 0, work: int = 0, pointwise: bool = False
    ) -> Launch:
        """Return the call with a thread for each element, or for several elements: those of `PACK` bytes in pointwise
        kernels, and more if there are very many elements. The kernel must work with any number of blocks. shared, work,
        pointwise: as in `Launch`."""
        threads = -(-elements // self.pack) if pointwise else elements
        blocks = min(max(1, -(-threads // BLOCK)), MOST_BLOCKS)
        return self._launch(blocks, arguments, BLOCK, shared, elements, work or int(pointwise), pointwise)

    def blocks(self, blocks: int, *arguments: Argument, threads: int = BLOCK, shared: int = 0) -> Launch:
        """Return the call with these numbers of blocks and threads. shared: bytes of dynamic shared memory."""
        return self._launch(blocks, arguments, threads, shared, 0, 0, False)

    def _launch(
        self,
        blocks: int,
        arguments: Sequence[Argument],
        threads: int,
        shared: int,
        elements: int,
        work: int,
        pointwise: bool,
    ) -> Launch:
        values = [_by_value(argument) for argument in arguments]
        pointers = np.array([address(value) for value in values], np.uint64)
        if not len(values):
            pointers = np.zeros(1, np.uint64)
        source, dependent = text_of("") + self.source, dependent_launch.is_on()
        if dependent:
            source = dependent_launch.with_waits(source)
        wide = is_wide(max(elements, *map(_elements, arguments), 0))
        functions = remember(("source", source, self.dtype, wide), lambda: self._compiled(source, wide))
        function = functions(self.name)
        references = (*arguments, *values, pointers)
        return Launch(
            *(self.name, function, blocks, threads, shared, address(pointers), references),
            kernel=self,
            arguments=arguments,
            elements=elements,
            work=work,
            pointwise=pointwise,
            dependent=dependent,
        )

    @property
    def source(self) -> str:
        """The kernel's source, without the code that all files share."""
        defined = "".join(f"enum {{ {name} = {value} }};\n" for name, value in self.constants)
        return defined + text_of(self.file) + self.generated

    @property
    def pack(self) -> int:
        """Number of elements that a thread processes at once in pointwise kernels."""
        return max(PACK // self.dtype.itemsize, 1)

    def _compiled(self, source: str, wide: bool) -> Callable[[str], int]:
        options = (*OPTIONS, *options_for(self.dtype), *(WIDE if wide else ()))
        return functools.cache(api().compile(source, options))


def power_of_two(value: int) -> int:
    """The smallest power of two ≥ value."""
    return 1 << (value - 1).bit_length()


def is_wide(elements: int) -> bool:
    """Whether kernels use positions of 64 bits for an array of this size."""
    return elements >= LEAST_WIDE


def _elements(argument: Argument) -> int:
    """The number of elements of an array; 0 for other arguments and for bytes. (Positions in workspaces count elements
    of other types, and other arrays of bytes have the number of elements of a tensor.)"""
    if argument is None or isinstance(argument, Structure | np.generic) or argument.dtype == np.uint8:
        return 0
    return argument.size


def _by_value(argument: Argument) -> NDArray[Any]:
    """Memory that holds the value that the kernel receives."""
    if argument is None:
        return np.zeros(1, np.uint64)
    if isinstance(argument, Structure):
        return argument.values
    if isinstance(argument, np.generic):
        return np.array(argument)
    return np.array(address(argument), np.uint64)


@functools.cache
def text_of(file: str) -> str:
    """The text of a .cu file and of the files that it includes; without a name, the code that all files share."""
    text = (SOURCES / (f"{file}.cu" if file else "common.cuh")).read_text("utf-8")
    return _INCLUDE.sub(lambda found: (SOURCES / found[1]).read_text("utf-8"), text)


def options_for(dtype: np.dtype[np.generic]) -> tuple[str, ...]:
    """The compiler's options for tensors of this type."""
    real = f"-DREAL={REALS[computed_in(dtype).name]}"
    return (real, f"-DSTORED={dtype.name}") if dtype.name in NARROW else (real,)


def computed_in(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type in which kernels compute for tensors of this type, and the type of numbers that they receive by
    value."""
    return np.dtype(np.float32) if dtype.name in NARROW else dtype


def pointer(array: Array) -> ctypes.c_void_p:
    """An array as an argument of cuDNN's and cuBLAS's functions."""
    return ctypes.c_void_p(address(array))
