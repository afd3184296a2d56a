"""What a kernel library is asked for: the base of every request.

A request declares a kernel's contract once, for all libraries: the shapes it is for, its setting, and the *roles* of
its buffers. Roles of a forward kernel: `input0`, `input1`, …, `output`, `labels`, `logits` (the input of the softmax
whose output a loss reads), the names of the variables (`weights`, `bias`), `kept`, `state`, `slot_positions`. Roles of
a gradient kernel: the same, and `output_gradient`, `input_gradient`, `weights_gradient`, `bias_gradient`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from crossbow.kernels.interface import Buffers, Call, PreparedKernel, Storage, Variable
from crossbow.types import Tensor

Roles = tuple[str, ...]
RolePair = tuple[str, str]
"""(read role, written role)."""

FORWARD: RolePair = ("input0", "output")
BACKWARD: RolePair = ("output_gradient", "input_gradient")

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Request:
    """A kernel's contract. Subclasses are frozen dataclasses, whose fields are all that a kernel is prepared for.

    Equal requests may be answered with the same kernel, so lists among the fields become tuples.
    """

    name: ClassVar[str]
    """The name in listings: that of the class, in lower case."""

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = _WORDS.sub("_", cls.__name__).lower()

    def __post_init__(self) -> None:
        for name in self.__match_args__:  # type: ignore[attr-defined]
            value = getattr(self, name)
            if type(value) is list:
                object.__setattr__(self, name, tuple(value))

    @property
    def label(self) -> str:
        """What a listing shows: the name, and of the setting what decides which code runs."""
        return self.name

    @property
    def reads(self) -> Roles:
        """Roles that are read; they bound the lifetime of buffers."""
        raise NotImplementedError

    @property
    def writes(self) -> Roles:
        """Roles that are written."""
        raise NotImplementedError

    @property
    def in_place(self) -> RolePair | None:
        """Roles that a kernel may be given one memory for, unless it says that it cannot."""
        return None

    @property
    def alias(self) -> RolePair | None:
        """Roles that hold the same bytes afterwards: given one memory, there is nothing to do."""
        return None

    @property
    def roles(self) -> Roles:
        """Those read, then those written, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def empty_shape(self) -> tuple[int, ...] | None:
        """The shape of the first tensor or variable without elements; None where all have some."""
        for value in vars(self).values():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Tensor | Variable) and 0 in each.shape:
                    return each.shape
        return None

    def prepared(
        self,
        implementation: str,
        bind: Callable[[Buffers], Sequence[Call]],
        *,
        more_reads: Roles = (),
        more_writes: Roles = (),
        in_place: bool = True,
        workspace: int = 0,
        kept: int = 0,
        storages: Mapping[str, Storage] | None = None,
    ) -> PreparedKernel:
        """The prepared kernel that answers the request, as `PreparedKernel` describes it.

        more_reads, more_writes: roles beyond the contract, such as `kept` where only this library keeps something.
        in_place: whether this kernel can work in the memory that the contract allows.
        """
        return PreparedKernel(
            f"{self.label} {implementation}",
            (*self.reads, *more_reads),
            (*self.writes, *more_writes),
            bind,
            workspace=workspace,
            kept=kept,
            in_place=self.in_place if in_place else None,
            alias=self.alias,
            storages=storages or {},
        )


RequestType = type[Request]


def inputs(count: int) -> Roles:
    """The roles of so many inputs."""
    return tuple(f"input{number}" for number in range(count))


def with_bias(bias: Variable | None, *roles: str) -> Roles:
    """The roles, and that of the bias where there is one."""
    return roles if bias is None else (*roles, "bias")


def gradients(bias: Variable | None) -> Roles:
    """The gradients of weights and bias."""
    return ("weights_gradient",) if bias is None else ("weights_gradient", "bias_gradient")
