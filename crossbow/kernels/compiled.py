"""Passes over memory, written in Python, compiled by numba, and callable by address.

A pass is a function `int32 f(uintp, uintp, uintp, uintp)` that returns 0. Most take the address of an *argument block*,
which they declare and read by names (`crossbow.kernels.arguments`). Inside a pass, memory is accessed through typed
pointers: `x = float32_at(block.source)`, then `x[i]`. There are no checks: the code that binds a pass is responsible
for sizes.

Passes are compiled when their address is first requested, and cached on disk by numba (next to the source, or in the
user's cache directory if that is not writable, or not at all if neither is). `LOGGER` gets a message for each pass that
was compiled and written to disk.
"""

from __future__ import annotations

import functools
import logging
import platform
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from crossbow.clock import MONOTONIC
from crossbow.files import reason
from crossbow.kernels.arguments import Arguments, Value
from crossbow.kernels.interface import Buffers, Call, PreparedKernel, State
from crossbow.kernels.native import ARGUMENTS, NativeCall
from crossbow.kernels.random import ROUNDS
from crossbow.kernels.requests import Request
from crossbow.kernels.stamps import CLOCK, FIRST_STAMP, STAMPS, TIMESPEC
from crossbow.types import address

LOGGER = logging.getLogger(__name__)

SIGNATURE = types.int32(*[types.uintp] * ARGUMENTS)

TASK, SLOT, EXAMPLES, TICK = State.TASK, State.SLOT, State.EXAMPLES, State.TICK
"""The positions in the task state, as constants that compiled code can see."""

Pass = Callable[..., int]
"""Four addresses or numbers, or an argument block."""


def _checksum(folder: Path) -> str:
    """The checksum of all Python files in a folder and its subfolders."""
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in sorted(folder.rglob('*.py')))):08x}"


_SALT = _checksum(Path(__file__).parent)
"""Part of a pass's key in numba's cache, which only checks the pass's own file, although passes contain code from other
files."""


@functools.cache
def _warn_of_cache(why: str) -> None:
    """Warn once, before a long compilation."""
    warnings.warn(
        f"compiled kernels cannot be kept on disk ({why}): every process compiles them again, which may "
        "take a minute. Set NUMBA_CACHE_DIR to a directory that can be written",
        RuntimeWarning,
        stacklevel=2,
    )


class NativeFunction:
    """A compiled pass. `address` compiles it, or loads it from disk."""

    def __init__(self, function: Pass, arguments: Arguments | None = None) -> None:
        """arguments: the declaration of the function's argument block, if it takes one."""
        self.name = function.__name__
        self.arguments = arguments
        self._function = function
        # A block is passed by address. Callers pass four arguments; a function may ignore the last ones.
        self._signature = SIGNATURE if arguments is None else types.int32(arguments.block)
        self._compiled: Any = None
        self._lock = threading.Lock()

    @property
    def address(self) -> int:
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile()
        return int(self._compiled.address)

    def _compile(self) -> Any:
        self._function.__qualname__ = f"{self.name}_{_SALT}"
        try:
            made = numba.cfunc(self._signature, cache=True)(self._function)
            if not made.cache_hits:
                LOGGER.info("compiled %s", self.name)
            return made
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            _warn_of_cache("no directory for them can be written")
        except OSError as error:  # a full disk
            _warn_of_cache(reason(error))
        return numba.cfunc(self._signature)(self._function)

    @property
    def _block(self) -> Arguments:
        assert self.arguments is not None, f"{self.name} takes no argument block"
        return self.arguments

    def check(self, arguments: Iterable[str]) -> None:
        """Raise TypeError unless these are the names of the declared arguments."""
        self._block.check_names(self.name, tuple(arguments))

    def located(self, arguments: Mapping[str, Value], locate: Callable[[Value], Value]) -> dict[str, Value]:
        """The arguments, with `locate` applied to the values of addresses."""
        return self._block.located(arguments, locate)

    def call(self, name: str, /, *, references: Sequence[object] = (), **arguments: Value) -> NativeCall:
        """Return the call on a block of these arguments. name: name of the call in profiles and errors. references:
        further objects, in addition to arrays among the arguments, that must live as long as the call."""
        block, arrays = self._block.pack(self.name, arguments)
        return NativeCall(name, self.address, (address(block),), (block, *arrays, *references))


def native(function: Pass) -> NativeFunction:
    """Decorator: make a pass from a function of four numbers or addresses."""
    return NativeFunction(function)


def native_pass(arguments: Arguments) -> Callable[[Pass], NativeFunction]:
    """Decorator: make a pass from a function of an argument block."""
    return lambda function: NativeFunction(function, arguments)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: compile a function for calls from passes. As in NumPy, division by zero is not an error (a check would
    prevent vector code). Wrappers for other callers are not compiled."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made: Callable[..., Any] = numba.njit(**options)(function)
    return made


def in_any_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `inlined`, for a function whose sums may be computed in any order, for example by lanes of vectors."""
    made: Callable[..., Any] = numba.njit(error_model="numpy", fastmath={"reassoc", "contract"})(function)
    return made


def prepared_pass(
    request: Request,
    function: NativeFunction,
    *,
    explain: Callable[[Buffers], object] | None = None,
    workspace: int = 0,
    nbytes_kept: int = 0,
    in_place: bool = True,
    **arguments: Value,
) -> PreparedKernel:
    """A prepared kernel that is one pass.

    arguments: arguments of the pass; addresses are given as roles of the request, or "workspace". workspace,
    nbytes_kept: sizes in bytes. explain: function of the buffers that raises an exception for a failed call
    (`NativeCall.explain`).
    """
    function.address  # noqa: B018 - compile while preparing, not while binding
    function.check(arguments)

    def bind(buffers: Buffers) -> Sequence[Call]:
        call = function.call(request.label, **function.located(arguments, lambda place: _buffer(place, buffers)))
        return (call if explain is None else replace(call, explain=functools.partial(explain, buffers)),)

    return request.prepared("numba", bind, workspace=workspace, kept=nbytes_kept, in_place=in_place)


def _buffer(place: Value, buffers: Buffers) -> Value:
    return buffers[place] if isinstance(place, str) else place


# Typed pointers and indirect calls.


def instruction(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: make an instruction, for use in passes, from a function that returns its signature and its
    generator."""
    made: Callable[..., Any] = intrinsic(generator)
    return made


def _pointer_to(element: Any) -> Callable[..., Any]:
    kind: Callable[[Any], Any] = types.CPointer

    @instruction
    def pointer(typing_context: Any, location: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return kind(element)(location), generate

    return pointer


int64_at = _pointer_to(types.int64)
int32_at = _pointer_to(types.int32)
uint32_at = _pointer_to(types.uint32)
uint8_at = _pointer_to(types.uint8)
float32_at = _pointer_to(types.float32)
float64_at = _pointer_to(types.float64)


@instruction
def address_of(typing_context: Any, block: Any) -> Any:
    """The address of an argument block, or of a group of its fields."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.int64(block), generate


@instruction
def tail(typing_context: Any, block: Any) -> Any:
    """The address of the integers after the fields of an argument block."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(builder.ptrtoint(arguments[0], ir.IntType(64)), ir.IntType(64)(block.size))

    return types.int64(block), generate


@instruction
def call_address(typing_context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Call the function at an address: int32 f(int64, int64, int64, int64)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.IntType(32), [word] * ARGUMENTS)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int32(*[types.int64] * (1 + ARGUMENTS)), generate


@inlined
def run_row(table: int, first: int) -> int:
    """Call the function at a position of a table, where its four arguments follow it."""
    row = int64_at(table)
    status: int = call_address(row[first], row[first + 1], row[first + 2], row[first + 3], row[first + 4])
    return status


@inlined
def run_rows(table: int, count: int, failed: int) -> int:
    """Call the functions of a table of rows (function, four arguments) until one does not return 0. failed: address of
    the number of that row."""
    for index in range(count):
        status: int = run_row(table, index * (1 + ARGUMENTS))
        if status != 0:
            int64_at(failed)[0] = index
            return status
    return 0


@native
def run_table(table: int, count: int, failed: int, unused: int) -> int:
    """Call the functions of a table, as `run_rows` does."""
    status: int = run_rows(np.int64(table), np.int64(count), np.int64(failed))
    return status


# The clock.


@inlined
def nanoseconds(clock: int, timespec: int) -> Any:
    """The time of the monotonic clock, or 0 if there is none. clock: address of `clock_gettime`. timespec: memory for
    the two words that it writes."""
    if clock == 0:
        return np.int64(0)
    call_address(clock, MONOTONIC, timespec, 0, 0)
    return int64_at(timespec)[0] * np.int64(1_000_000_000) + int64_at(timespec)[1]


@native
def run_table_timed(table: int, count: int, failed: int, stamps: int) -> int:
    """Call the functions of a table as `run_table` does, and record the time after every call (`Stamps`)."""
    memory, timespec = int64_at(stamps), np.int64(stamps) + 8 * TIMESPEC
    for index in range(np.int64(count)):
        status: int = run_row(np.int64(table), index * (1 + ARGUMENTS))
        memory[FIRST_STAMP + memory[STAMPS]] = nanoseconds(memory[CLOCK], timespec)
        memory[STAMPS] += 1
        if status != 0:
            int64_at(failed)[0] = index
            return status
    return 0


# Random numbers.


@inlined
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four words of 32 bits: `crossbow.kernels.random.philox`, everything in np.uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> half) ^ c1 ^ k0, p1 & low
        c2, c3 = (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3


# Numbers that several threads read and write


@instruction
def load_acquire(typing_context: Any, location: Any) -> Any:
    """Read an int64. Later reads of this thread see all writes before the matching `store_release`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@instruction
def store_release(typing_context: Any, location: Any, value: Any) -> Any:
    """Write an int64 after all earlier writes of this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@instruction
def fetch_add(typing_context: Any, location: Any, value: Any) -> Any:
    """Add to an int64 that other threads may also change. Returns the previous number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@instruction
def compare_exchange(typing_context: Any, location: Any, expected: Any, value: Any) -> Any:
    """Write an int64 if its current value is the expected one. Returns whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        found = builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@instruction
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one address to another. The two ranges must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = ir.IntType(8).as_pointer()
        copy = builder.module.declare_intrinsic("llvm.memcpy", [place, place, ir.IntType(64)])
        pointers = [builder.inttoptr(argument, place) for argument in arguments[:2]]
        builder.call(copy, [*pointers, arguments[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@instruction
def pause(typing_context: Any) -> Any:
    """Tell the processor that this is a spin loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), nothing), [])
        return context.get_dummy_value()

    return types.void(), generate
