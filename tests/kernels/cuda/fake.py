"""A GPU that is none: CUDA's functions over the host's memory, with kernels run by the emulator.

Every call is recorded and checked when it is made: the types of its arguments, that the memory they name is there and
large enough, and that streams wait for each other where they use the same. What is given to the default stream is done
at once, the rest later (`fake_runtime.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda import dependent_launch, launch
from crossbow.kernels.cuda.api import replaced
from crossbow.types import address
from tests.kernels.cuda.emulator import Emulated, compile_kernels
from tests.kernels.cuda.fake_cublas import TYPES, FakeCublas
from tests.kernels.cuda.fake_cudnn import FakeCudnn
from tests.kernels.cuda.fake_memory import FakeError, extent
from tests.kernels.cuda.fake_runtime import FakeNccl, FakeRuntime

GUARD = 4096
"""Bytes before and behind a kernel's arrays that must stay what they are while it runs."""
UNTOUCHED = 0xFF
"""What they hold: floating-point numbers are NaN."""
Range = tuple[str, int, int, bool]
"""Function and argument, first byte, end, whether it is written."""


@dataclass(frozen=True)
class Recorded:
    """A call of a function by its name in C."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Bound:
    """An argument that a kernel was bound to."""

    dtype: np.dtype[Any]
    size: int
    """Bytes, of what is passed by value."""
    array: tuple[int, int] | None = None
    """The first byte of an array and the one behind its last."""
    nothing: bool = False
    """A null pointer."""


@dataclass
class FakeDriver:
    """cuXxx."""

    calls: list[Recorded]
    runtime: FakeRuntime
    functions: list[tuple[Emulated, int]] = field(default_factory=list)
    """Of each its device."""
    bound: dict[int, tuple[Bound, ...]] = field(default_factory=dict)
    """By the address that launches pass as `parameters`."""

    def launchKernel(
        self,
        function: int,
        x: int,
        y: int,
        z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> None:
        assert (y, z, block_y, block_z, extra) == (1, 1, 1, 1, 0)
        assert 1 <= block_x <= 1024
        assert 1 <= x < 2**31
        assert 0 <= shared <= 48 * 1024
        kernel, device = self.functions[function - 1]
        if self.runtime.strict and not self.runtime.has_context:
            raise FakeError(f"{kernel.name}: expected a thread that has set a device: it has no context")
        if device != self.runtime.getDevice():
            raise FakeError(f"{kernel.name}: compiled for cuda:{device}, launched on cuda:{self.runtime.getDevice()}")
        self.calls.append(Recorded(kernel.name, (x, block_x, shared, stream)))
        bound = self.bound[parameters]
        check_arguments(kernel, bound)
        ranges = _ranges(kernel, bound)
        uses, arguments = self.runtime.uses(stream, ranges), kernel.copy(parameters)
        run = GuardedLaunch(kernel, x, block_x, shared, arguments, ranges, bound, self.runtime)
        self.runtime.enqueue(stream, run, kernel.name, uses)


@dataclass(frozen=True)
class FakeDriverLibrary:
    """Functions of the driver that CuPy lacks."""

    driver: FakeDriver

    def cuLaunchKernelEx(self, configuration: Any, function: Any, parameters: Any, extra: None) -> int:
        assert extra is None
        given = configuration._obj
        (attribute,) = given.attributes[: given.number_of_attributes]
        assert (attribute.id, attribute.value) == (dependent_launch.PROGRAMMATIC_STREAM_SERIALIZATION, 1)
        grid = given.grid_x, given.grid_y, given.grid_z, given.block_x, given.block_y, given.block_z, given.shared
        kernel = self.driver.functions[function.value - 1][0]
        self.driver.launchKernel(function.value, *grid, given.stream or 0, parameters.value, 0)
        self.driver.calls.append(Recorded(f"{kernel.name} (dependent)", ()))
        return 0


def check_arguments(kernel: Emulated, bound: Sequence[Bound]) -> None:
    """The number and the types of arguments against the kernel's parameters."""
    if len(bound) != len(kernel.parameters):
        raise FakeError(f"{kernel.name}: expected {len(kernel.parameters)} arguments. Received: {len(bound)}")
    for number, (parameter, size, given) in enumerate(
        zip(kernel.parameters, kernel.sizes, bound, strict=True), start=1
    ):
        wanted = kernel.dtype(parameter)
        if not _fits(parameter.is_pointer, wanted, size, given):
            written = f"{parameter.type} {parameter.name}".replace("* ", "*")
            received = _received(parameter.is_pointer, wanted, given)
            raise FakeError(f"{kernel.name}: argument {number}: expected {written}, {size} bytes. Received: {received}")


def _fits(is_pointer: bool, wanted: np.dtype[Any] | None, size: int, given: Bound) -> bool:
    if is_pointer:
        if given.array is None or wanted is None:
            return given.nothing or given.array is not None
        same = given.dtype.itemsize == wanted.itemsize and (given.dtype.kind == "f") == (wanted.kind == "f")
        return (same or given.dtype == np.uint8) and given.array[0] % wanted.itemsize == 0
    if given.array is not None or given.nothing:
        return False
    return given.size == size if wanted is None else given.dtype == wanted


def _received(is_pointer: bool, wanted: np.dtype[Any] | None, given: Bound) -> str:
    if not is_pointer:
        return "an array" if given.array is not None or given.nothing else f"{given.dtype}, {given.size} bytes"
    if given.array is None or wanted is None:
        return str(given.dtype)
    return f"an array of {given.dtype} at {given.array[0]:#x}"


def _ranges(kernel: Emulated, bound: Sequence[Bound]) -> list[Range]:
    return [
        (f"{kernel.name} ({parameter.name})", *given.array, parameter.is_written)
        for parameter, given in zip(kernel.parameters, bound, strict=True)
        if given.array is not None and given.array[0] < given.array[1]
    ]


@dataclass(frozen=True)
class GuardedLaunch:
    """A kernel that works on a copy of its arrays, those that overlap in one piece: there is nothing beside them.

    Pinned memory of the host that it writes to it must not read, and just the elements that it has written go there.
    """

    kernel: Emulated
    blocks: int
    threads: int
    shared: int
    arguments: tuple[NDArray[np.uint64], list[NDArray[np.uint8]]]
    ranges: Sequence[Range]
    bound: Sequence[Bound]
    runtime: FakeRuntime

    def __call__(self) -> None:
        places, values = self.arguments
        pieces: list[tuple[int, int, bool, NDArray[np.uint8], int]] = []
        for start, end, writes in _pieces(self.ranges):
            memory = np.full(end - start + 2 * GUARD + 512, UNTOUCHED, np.uint8)
            first = GUARD + (start - address(memory) - GUARD) % 256  # as aligned as the original
            if not (writes and self._is_pinned(start)):
                ctypes.memmove(address(memory) + first, start, end - start)
            pieces.append((start, end, writes, memory, first))
        for value, given in zip(values, self.bound, strict=True):
            if given.array is not None:
                for start, end, _, memory, first in pieces:
                    if start <= given.array[0] < end:
                        value.view(np.uint64)[0] = address(memory) + first + given.array[0] - start
                        break
                else:  # an empty array
                    memory = np.full(2 * GUARD, UNTOUCHED, np.uint8)
                    value.view(np.uint64)[0] = address(memory) + GUARD
                    pieces.append((given.array[0], given.array[0], False, memory, GUARD))
        self.kernel(self.blocks, self.threads, self.shared, address(places))
        for start, end, writes, memory, first in pieces:
            last = first + end - start
            if (memory[:first] != UNTOUCHED).any() or (memory[last:] != UNTOUCHED).any():
                beside = [name for name, a, b, written in self.ranges if written and start <= a and b <= end]
                raise FakeError(
                    f"{self.kernel.name} writes beside an array: {', '.join(beside) or 'one that it reads'}"
                )
            if writes and self._is_pinned(start):
                self._write_for_host(start, memory[first:last])
            elif writes:
                ctypes.memmove(start, address(memory) + first, end - start)

    def _is_pinned(self, start: int) -> bool:
        found = self.runtime.memory.find(start)
        return found is not None and found.device is None

    def _write_for_host(self, start: int, written: NDArray[np.uint8]) -> None:
        size = next(given.dtype.itemsize for given in self.bound if given.array is not None and given.array[0] == start)
        for element in np.flatnonzero((written.reshape(-1, size) != UNTOUCHED).any(axis=1)).tolist():
            place = element * size
            ctypes.memmove(start + place, address(written) + place, size)
            self.runtime.written_for_host(start + place, start + place + size)


def _pieces(ranges: Sequence[Range]) -> list[tuple[int, int, bool]]:
    """Ranges joined where they overlap."""
    pieces: list[tuple[int, int, bool]] = []
    for _, start, end, writes in sorted(ranges, key=lambda part: part[1:3]):
        if pieces and start < pieces[-1][1]:
            before = pieces.pop()
            start, end, writes = before[0], max(end, before[1]), writes or before[2]
        pieces.append((start, end, writes))
    return pieces


class OnStreams:
    """cuDNN's or cuBLAS's functions, those that compute put into the queue of their handle's stream."""

    def __init__(
        self,
        library: Any,
        runtime: FakeRuntime,
        computes: Callable[[str], bool],
        ranges: Callable[[Any, str, Sequence[int]], Sequence[Range]],
    ) -> None:
        self._library, self._runtime, self._computes, self._ranges = library, runtime, computes, ranges
        self._streams: dict[int, int] = {}
        self._devices: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            if "SetStream" in name:
                handle, stream = (_value(argument) for argument in arguments)
                self._streams[handle] = stream
                self._runtime.strict = self._runtime.strict or stream > 0
            if "Create" in name and len(arguments) == 1:
                status = function(*arguments)
                self._devices[_value(arguments[0]._obj)] = self._runtime.getDevice()
                return status
            if not self._computes(name):
                return function(*arguments)

            def compute() -> None:
                if status := function(*arguments):
                    raise FakeError(f"{name} returned {status}")

            handle = _value(arguments[0])
            stream = self._streams.get(handle, 0)
            if not handle and launch.current().pointer:
                raise FakeError(f"{name}: the current stream has no handle of the library")
            if handle and self._devices.get(handle, self._runtime.getDevice()) != self._runtime.getDevice():
                raise FakeError(f"{name}: expected cuda:{self._devices[handle]}, the handle's device, to be current")
            ranges = self._ranges(self._library, name, [_value(argument) for argument in arguments])
            self._runtime.enqueue(stream, compute, name, self._runtime.uses(stream, ranges))
            return 0

        return call


def _value(argument: Any) -> int:
    argument = getattr(argument, "_as_parameter_", argument)
    if isinstance(argument, type(ctypes.byref(ctypes.c_int()))):
        return ctypes.addressof(argument._obj)  # type: ignore[attr-defined]
    if isinstance(argument, ctypes._Pointer | ctypes.Array):
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    return int(argument.value or 0) if hasattr(argument, "value") else int(argument or 0)


class FakeNvtx:
    """NVTX, which remembers the names of ranges by depth."""

    def __init__(self) -> None:
        self.names: list[tuple[int, str]] = []
        self.depth = 0

    def RangePush(self, name: str) -> None:
        self.names.append((self.depth, name))
        self.depth += 1

    def RangePop(self) -> None:
        self.depth -= 1


class FakeCuda:
    """`crossbow.kernels.cuda.api.Api` without a GPU."""

    def __init__(self, devices: int = 1, seed: int = 0, *, races: bool = True, threads_tell: bool = False) -> None:
        self.calls: list[Recorded] = []
        self.remembered: dict[Hashable, Any] = {}
        self.runtime = FakeRuntime(devices, seed, races, threads_tell)
        self.driver = FakeDriver(self.calls, self.runtime)
        self.cuda = FakeDriverLibrary(self.driver)
        self.nccl: Any = FakeNccl(self.runtime)
        self.nvtx = FakeNvtx()
        self.cudnn: Any = OnStreams(FakeCudnn(self.calls), self.runtime, _computes, convolution_ranges)
        self.cublas: Any = OnStreams(
            FakeCublas(self.calls), self.runtime, lambda name: "gemm" in name.lower(), self._product_ranges
        )

    def compile(self, source: str, options: Sequence[str]) -> Callable[[str], int]:
        kernels, device = compile_kernels(source, options), self.runtime.getDevice()

        def function(name: str) -> int:
            self.driver.functions.append((kernels[name], device))
            return len(self.driver.functions)

        return function

    def zeros(self, nbytes: int) -> Any:
        memory = self.runtime.zeros(nbytes)
        self.runtime.streamSynchronize(0)
        return memory

    def free_memory(self) -> int:
        return int(self.runtime.memGetInfo()[0])

    @contextmanager
    def arrays(self, stream: int) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
        """NumPy, once the stream has done what it was given."""
        self.runtime.streamSynchronize(stream)
        yield np, lambda array: getattr(array, "_array", array)

    def pinned(self, nbytes: int) -> Any:
        return self.runtime.pinned(nbytes)

    def bind(self, parameters: int, references: Sequence[Any]) -> None:
        """A launch was made; references: its arguments, the memory that holds each, and the array of the addresses."""
        count = (len(references) - 1) // 2
        pairs = zip(references[:count], references[count : 2 * count], strict=True)
        self.driver.bound[parameters] = tuple(_bound(argument, value) for argument, value in pairs)

    def _product_ranges(self, library: FakeCublas, name: str, values: Sequence[int]) -> list[Range]:
        handle = library.handles.get(values[0])
        workspace, nbytes = handle.workspace if handle is not None else (0, 0)
        if handle is not None and not nbytes and self.runtime.streamIsCapturing(handle.stream):
            raise FakeError(f"{name}: without a workspace of ours, cuBLAS takes memory of its own in a capture")
        own = [(f"{name} (workspace)", workspace, workspace + nbytes, True)] if nbytes else []
        return [*product_ranges(name, values), *own]


def _bound(argument: Any, value: NDArray[Any]) -> Bound:
    if argument is None:
        return Bound(np.dtype(np.uint64), value.nbytes, nothing=True)
    if isinstance(argument, launch.Structure):
        return Bound(np.dtype((np.void, value.nbytes)), value.nbytes)
    if isinstance(argument, np.generic):
        return Bound(argument.dtype, value.nbytes)
    return Bound(argument.dtype, value.nbytes, extent(argument))


COMPUTING = ("Forward", "Backward")


def _computes(name: str) -> bool:
    """Whether a function of cuDNN's gives work to a stream."""
    asks = name.startswith(("cudnnGet", "cudnnSet", "cudnnFind", "cudnnCreate", "cudnnDestroy"))
    return not asks and any(word in name for word in COMPUTING)


def convolution_ranges(library: FakeCudnn, name: str, values: Sequence[int]) -> list[Range]:
    """What a convolution of cuDNN's, or a gradient of one, reads and writes."""
    if not name.startswith("cudnnConvolution"):
        raise FakeError(f"{name}: nobody has said here which of its arguments it reads and writes")
    _, _, first, first_data, second, second_data, _, _, workspace, nbytes, _, result, result_data = values
    ranges = [(f"{name} (workspace)", workspace, workspace + nbytes, True)] if nbytes else []
    operands = ((first, first_data, False), (second, second_data, False), (result, result_data, True))
    for descriptor, place, writes in operands:
        made = library.objects.get(descriptor)
        if made is None or made.setting is None:
            return []  # which the call itself refuses
        tensor = made.setting
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
        ranges.append((f"{name} (at {place:#x})", place, place + span * tensor.dtype.itemsize, writes))
    return ranges


def product_ranges(name: str, values: Sequence[int]) -> list[Range]:
    """What a matrix product of cuBLAS's reads and writes."""
    typed, stacked = "Ex" in name, "Strided" in name
    rest = iter(values[1:])

    def take(count: int) -> list[int]:
        return [next(rest) for _ in range(count)]

    turn_a, turn_b, m, n, k, _ = take(6)
    operands = []
    for operand in "abc":
        place, kind = take(1)[0], take(1)[0] if typed else int("Dgemm" in name)
        leading, stride = take(1)[0], take(1)[0] if stacked else 0
        operands.append((operand, place, kind, leading, stride))
        if operand == "b":
            take(1)
    matrices = take(1)[0] if stacked else 1
    ranges = []
    stored = ((k, m) if turn_a else (m, k), (n, k) if turn_b else (k, n), (m, n))
    for (operand, place, kind, leading, stride), (rows, columns) in zip(operands, stored, strict=True):
        elements = stride * (matrices - 1) + leading * (columns - 1) + rows
        ranges.append((f"{name} ({operand})", place, place + elements * TYPES[kind].itemsize, operand == "c"))
    return ranges


@contextmanager
def fake_cuda(devices: int = 1, seed: int = 0, *, races: bool = True, threads_tell: bool = False) -> Iterator[FakeCuda]:
    """Let the CUDA library run here. seed: of the order in which streams go on; races: whether they are looked for;
    threads_tell: whether threads know what others have waited for."""
    fake = FakeCuda(devices, seed, races=races, threads_tell=threads_tell)
    original = launch.CudaKernel._launch

    def made(*arguments: Any) -> launch.Launch:
        call = original(*arguments)
        fake.bind(call.parameters, call.references)
        return call

    launch.CudaKernel._launch = made  # type: ignore[assignment, method-assign]
    try:
        with replaced(fake):
            yield fake
    finally:
        launch.CudaKernel._launch = original  # type: ignore[method-assign]
