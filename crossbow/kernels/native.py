"""Task lists: bound calls run in order, with no Python between those that are native.

A *native* call is the address of a function `int32 f(uintp, uintp, uintp, uintp)` and its arguments; 0 is success.
`dnnl_primitive_execute(primitive, stream, nargs, args)` is one as it stands, and so are the compiled passes of
`crossbow.kernels.compiled`. A run of them is one table of integers, walked by one compiled loop that does not hold
the interpreter's lock, so that small steps of several learners really run at the same time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from crossbow.kernels.interface import Call
from crossbow.types import Aborted, CrossbowError, address

ARGUMENTS = 4
"""Arguments of a native function."""
ABORTED = -1
"""The status of a wait that was given up."""
BAD_LABEL = -2
"""The status of a loss or measure that met a label outside the classes."""
BAD_INDEX = -3
"""The status of an operator whose input names a row that a variable has not."""

_MEANINGS = {
    BAD_LABEL: "a label is not one of the classes (from 0 to their number − 1)",
    BAD_INDEX: "an index is not a whole number from 0 to the number of rows − 1",
}
"""What is said where nothing else explains the failure (`NativeCall.explain`)."""


class NativeError(CrossbowError, RuntimeError):
    """A native call did not succeed. `status` is what it returned."""

    def __init__(self, name: str, status: int) -> None:
        meaning = _MEANINGS.get(status, f"it returned status {status}, expected 0")
        super().__init__(f"the native call {name} failed: {meaning}")
        self.status = status


@functools.cache
def _prototype() -> Callable[[int], Callable[..., int]]:
    # CFUNCTYPE, unlike PYFUNCTYPE, lets go of the interpreter's lock during the call.
    prototype: Callable[[int], Callable[..., int]] = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_size_t] * ARGUMENTS)
    return prototype


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A native function with its arguments. Calling it is the readable path; task lists read its numbers instead."""

    name: str
    """What a profile and an error call it."""
    function: int
    """The function's address."""
    arguments: tuple[int, ...]
    """At most four numbers or addresses."""
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    """Whatever the addresses point into; it lives as long as the call."""
    explain: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    """Looks at what the call has read after it failed, and raises an exception that says more than a status can."""

    def __post_init__(self) -> None:
        if len(self.arguments) > ARGUMENTS:
            raise ValueError(f"a native call has at most {ARGUMENTS} arguments. Received: {self.arguments}")

    def __call__(self) -> None:
        padded = (*self.arguments, *[0] * (ARGUMENTS - len(self.arguments)))
        status = _prototype()(self.function)(*padded)
        if status:
            self.fail(status)

    def fail(self, status: int) -> NoReturn:
        """Raise the exception for a status that is not 0."""
        if status == ABORTED:
            raise Aborted
        if self.explain is not None:
            self.explain()
        raise NativeError(self.name, status)


class _NativeRun:
    """A maximal run of native calls of a task list: a table walked by the compiled loop."""

    def __init__(self, calls: Sequence[NativeCall], first: int) -> None:
        from crossbow.kernels.compiled import run_table

        self.first = first
        self.calls = tuple(calls)
        self._table = np.zeros((len(calls), 1 + ARGUMENTS), np.int64)
        for row, call in zip(self._table, calls, strict=True):
            row[0] = call.function
            row[1 : 1 + len(call.arguments)] = call.arguments
        self.failed = np.zeros(1, np.int64)
        self.run = _prototype()(run_table.address)
        self.arguments = (address(self._table), len(calls), address(self.failed), 0)

    def fail(self, status: int) -> NoReturn:
        self.calls[int(self.failed[0])].fail(status)


class TaskList:
    """The calls of a task, in order. `names[i]` is the operator that call i belongs to.

    `run` executes all of them; nothing is allocated and nothing is decided in it. When a call fails, the exception
    passes through untouched and `failed` is the name of its operator.
    """

    def __init__(self, calls: Sequence[Call], names: Sequence[str]) -> None:
        if len(calls) != len(names):
            raise ValueError(f"expected one name for each of the {len(calls)} calls. Received: {len(names)} names")
        self.calls = tuple(calls)
        self.names = tuple(names)
        self.failed: str | None = None
        """The operator whose call failed in the last run; None where none did, or where it ended between calls."""
        self._parts = self._group()
        only = self._parts[0] if len(self._parts) == 1 else None
        self._whole = only if isinstance(only, _NativeRun) else None

    def _group(self) -> list[tuple[int, Call] | _NativeRun]:
        parts: list[tuple[int, Call] | _NativeRun] = []
        native: list[NativeCall] = []
        for index, call in enumerate((*self.calls, None)):
            if isinstance(call, NativeCall):
                native.append(call)
                continue
            if native:
                parts.append(_NativeRun(native, index - len(native)))
                native = []
            if call is not None:
                parts.append((index, call))
        return parts

    @property
    def native_calls(self) -> int:
        """How many calls run without Python."""
        return sum(len(part.calls) for part in self._parts if isinstance(part, _NativeRun))

    def run(self) -> None:
        """Execute the calls in order. Raises whatever a call raises; for a native one `NativeError`, `Aborted`, or what
        its `explain` raises."""
        self.failed = None
        whole = self._whole
        if whole is None:
            self._run_parts()
            return
        status = whole.run(*whole.arguments)
        if status:
            self.failed = self.names[int(whole.failed[0])]
            whole.fail(status)

    def _run_parts(self) -> None:
        for part in self._parts:
            if isinstance(part, _NativeRun):
                status = part.run(*part.arguments)
                if status:
                    self.failed = self.names[part.first + int(part.failed[0])]
                    part.fail(status)
            else:
                index, call = part
                try:
                    call()
                except BaseException:
                    self.failed = self.names[index]
                    raise
