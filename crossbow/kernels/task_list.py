"""Task lists: bound calls that run in order, without Python between native calls.

A run of native calls is a table of integers. A compiled loop executes it without holding the interpreter's lock, so
that small steps of several learners run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from crossbow.kernels.interface import Call
from crossbow.kernels.native import ARGUMENTS, NativeCall, prototype
from crossbow.kernels.stamps import Stamps
from crossbow.types import Array, address


class Table(NamedTuple):
    """Native calls as a table of integers, for `compiled.run_rows`."""

    rows: int
    """Address of the table."""
    calls: int
    """Number of rows of the table."""
    together: Array
    """For each row, the number of calls, beginning with this one, that may run at the same time. The rows of the later
    calls of such a group have 1."""
    has_together: bool
    """Whether there are calls that may run at the same time."""
    references: tuple[object, ...]
    """Objects that must live as long as the table is used."""


class _NativeRun:
    """A maximal run of native calls of a task list, executed by the compiled loop."""

    def __init__(self, calls: Sequence[NativeCall], first: int, stamps: Stamps | None) -> None:
        # imported here, because numba takes long to import
        from crossbow.kernels.compiled import run_table, run_table_timed

        self.first = first
        self.calls = tuple(calls)
        self._table = np.zeros((len(calls), 1 + ARGUMENTS), np.int64)
        for row, call in zip(self._table, calls, strict=True):
            row[0] = call.function
            row[1 : 1 + len(call.arguments)] = call.arguments
        self.failed = np.zeros(1, np.int64)
        self.run = prototype()((run_table if stamps is None else run_table_timed).address)
        stamped = 0 if stamps is None else stamps.address
        self.arguments = (address(self._table), len(calls), address(self.failed), stamped)

    @property
    def table(self) -> Table:
        together = np.ones(len(self.calls), np.int64)
        first = 0
        for index, call in enumerate(self.calls):
            if call.together:
                together[first] += 1
            else:
                first = index
        return Table(self.arguments[0], len(self.calls), together, bool((together > 1).any()), (self,))

    def fail(self, status: int) -> NoReturn:
        self.calls[int(self.failed[0])].fail(status)


class TaskList:
    """The calls of a task, in order. `names[i]` is the operator that call i belongs to.

    `run` executes all calls, without allocations or decisions. If a call fails, its exception propagates, and `failed`
    is the name of its operator.
    """

    def __init__(self, calls: Sequence[Call], names: Sequence[str], stamps: Stamps | None = None) -> None:
        """stamps: receives the times of all calls in each run."""
        if len(calls) != len(names):
            raise ValueError(f"expected one name for each of the {len(calls)} calls. Received: {len(names)} names")
        self.calls = tuple(calls)
        self.names = tuple(names)
        self.failed: str | None = None
        """The operator whose call failed in the last run; None if no call failed, or if the run ended between calls."""
        self._stamps = stamps
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
                parts.append(_NativeRun(native, index - len(native), self._stamps))
                native = []
            if call is not None:
                parts.append((index, call))
        return parts

    @property
    def native_calls(self) -> int:
        """Number of calls that run without Python code."""
        return sum(len(part.calls) for part in self._parts if isinstance(part, _NativeRun))

    @property
    def table(self) -> Table | None:
        """The table of all calls; None if a call needs Python code."""
        return None if self._whole is None else self._whole.table

    def fail(self, call: int, status: int) -> NoReturn:
        """Raise the exception of a native call in the table that failed on another thread, and set `failed` to its
        operator."""
        assert self._whole is not None
        self.failed = self.names[call]
        self._whole.calls[call].fail(status)

    def run(self) -> None:
        """Execute the calls in order. Raises the exception of a call; for a native call `NativeError`, `Aborted`, or
        the exception of its `explain`."""
        self.failed = None
        if self._stamps is not None:
            self._stamps.begin()
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
                if self._stamps is not None:
                    self._stamps.add()
