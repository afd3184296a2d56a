"""Native calls: functions that are called by address, from Python or by a compiled loop.

A *native* call is the address of a function `int32 f(uintp, uintp, uintp, uintp)` and its arguments; 0 is success.
`dnnl_primitive_execute(primitive, stream, nargs, args)` is one as it stands, and so are the compiled passes of
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
def prototype() -> Callable[[int], Callable[..., int]]:
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
