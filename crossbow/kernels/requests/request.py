"""The base class of all requests to a kernel library.

A request declares a kernel's contract once, for all libraries: the shapes, the settings, and the *roles* of its
buffers. Roles of a forward kernel are `input0`, `input1`, …, `output`, `labels`, `logits` (the input of the softmax
whose output a loss reads), the names of the variables (`weights`, `bias`), `kept`, `state`, `slot_positions`. Roles of
a gradient kernel are the same, and `output_gradient`, `input_gradient`, `weights_gradient`, `bias_gradient`. A kernel
that includes the sum after its operator also reads the other term, `addend`; its gradient is `addend_gradient`.
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
    """The contract of a kernel. Subclasses are frozen dataclasses, whose fields determine the kernel.

    Equal requests may be answered with the same kernel, so lists in fields become tuples, which can be hashed.
    """

    name: ClassVar[str]
    """Name in listings: the name of the class in lower case."""

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
        """Text for listings: the name, and the settings that determine the code."""
        return self.name

    @property
    def reads(self) -> Roles:
        """Roles that are read; they determine the lifetime of buffers."""
        raise NotImplementedError

    @property
    def writes(self) -> Roles:
        """Roles that are written."""
        raise NotImplementedError

    @property
    def in_place(self) -> RolePair | None:
        """Roles that may share memory, unless a kernel does not support it."""
        return None

    @property
    def alias(self) -> RolePair | None:
        """Roles whose buffers have the same bytes afterwards: if they share memory, there is nothing to do."""
        return None

    @property
    def roles(self) -> Roles:
        """The roles that are read, then those that are written, without repetition."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def empty_shape(self) -> tuple[int, ...] | None:
        """The shape of the first empty tensor or variable; None if none is empty."""
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
        """The prepared kernel for the request, with arguments as in `PreparedKernel`.

        more_reads, more_writes: roles beyond the contract, such as `kept` if only this library stores something.
        in_place: whether this kernel supports the sharing of memory that the contract allows.
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
    """The roles of the given number of inputs."""
    return tuple(f"input{number}" for number in range(count))


def with_bias(bias: Variable | None, *roles: str) -> Roles:
    """The roles, and that of the bias if there is one."""
    return roles if bias is None else (*roles, "bias")


def gradients(bias: Variable | None) -> Roles:
    """Roles of the gradients of weights and bias."""
    return ("weights_gradient",) if bias is None else ("weights_gradient", "bias_gradient")
