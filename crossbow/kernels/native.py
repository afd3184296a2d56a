"""Native calls: functions that are called by address, from Python or by a compiled loop.

A *native* call is the address of a function `int32 f(uintp, uintp, uintp, uintp)` and its arguments; 0 means success.
`dnnl_primitive_execute(primitive, stream, nargs, args)` is such a function, and so are the compiled passes of
`crossbow.kernels.compiled`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from crossbow.types import Aborted, CrossbowError

ARGUMENTS = 4
"""Number of arguments of a native function."""
ABORTED = -1
"""Status of an aborted wait."""
BAD_LABEL = -2
"""Status of a loss or metric that found a label outside the classes."""
BAD_INDEX = -3
"""Status of an operator whose input contains an index that is not a row of a variable."""
LATE = -4
"""Status of a wait that has reached its limit."""

_MEANINGS = {
    BAD_LABEL: "a label is not one of the classes (from 0 to their number − 1)",
    BAD_INDEX: "an index is not a whole number from 0 to the number of rows − 1",
}
"""Messages for failures without another explanation (`NativeCall.explain`)."""


class NativeError(CrossbowError, RuntimeError):
    """A failed native call. `status` is its return value."""

    def __init__(self, name: str, status: int) -> None:
        meaning = _MEANINGS.get(status, f"it returned status {status}, expected 0")
        super().__init__(f"the native call {name} failed: {meaning}")
        self.status = status


@functools.cache
def prototype() -> Callable[[int], Callable[..., int]]:
    # CFUNCTYPE, unlike PYFUNCTYPE, releases the GIL during the call.
    prototype: Callable[[int], Callable[..., int]] = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_size_t] * ARGUMENTS)
    return prototype


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A native function with its arguments. It can be called, for tests; task lists read its numbers instead."""

    name: str
    """Name in profiles and errors."""
    function: int
    """Address of the function."""
    arguments: tuple[int, ...]
    """At most four numbers or addresses."""
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    """Objects to which the addresses refer. They live as long as the call."""
    explain: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    """Function that examines a failed call's inputs, and raises an exception with more information than a status."""
    together: bool = False
    """Whether it may run at the same time as the previous call."""

    def __post_init__(self) -> None:
        if len(self.arguments) > ARGUMENTS:
            raise ValueError(f"a native call has at most {ARGUMENTS} arguments. Received: {self.arguments}")

    def __call__(self) -> None:
        padded = (*self.arguments, *[0] * (ARGUMENTS - len(self.arguments)))
        status = prototype()(self.function)(*padded)
        if status:
            self.fail(status)

    def fail(self, status: int) -> NoReturn:
        """Raise the exception for a status that is not 0."""
        if status == ABORTED:
            raise Aborted
        if self.explain is not None:
            self.explain()
        raise NativeError(self.name, status)
