"""Prepared kernels from passes, which run in order on named buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossbow.kernels.arguments import Value
from crossbow.kernels.compiled import NativeFunction
from crossbow.kernels.cpu.passes.team import run_team, team_arguments
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.kernels.requests import Request
from crossbow.types import address

ALIGNMENT = 64

Place = str | int | tuple[str, int] | None
"""The place of an operand: a buffer's role, optionally with an offset in bytes, or an offset in the workspace. None is
address 0."""


@dataclass(frozen=True)
class _PassStep:
    """A pass with its arguments; addresses are places."""

    name: str
    function: NativeFunction
    arguments: Mapping[str, Value]

    def bind(self, label: str, buffers: Buffers, workspace: int) -> NativeCall:
        def locate(value: Value) -> Value:
            is_place = value is None or isinstance(value, str | int | tuple)
            return location(value, buffers, workspace) if is_place else value

        arguments = self.function.located(self.arguments, locate)
        return self.function.call(f"{label} {self.name}", references=tuple(buffers.values()), **arguments)


@dataclass(frozen=True)
class _TeamPassStep(_PassStep):
    """A pass that several threads run."""

    def bind(self, label: str, buffers: Buffers, workspace: int) -> NativeCall:
        call = super().bind(label, buffers, workspace)
        return call if self.arguments["team"]["threads"] == 1 else replace(call, function=run_team.address)


class Steps:
    """The passes of one prepared kernel, and their workspace."""

    def __init__(self, request: Request, *implementations: str) -> None:
        """implementations: first parts of the kernel's name, before the names of the steps."""
        self.request = request
        self.implementations = list(implementations)
        self._steps: list[Any] = []
        self._reserved = 0

    def reserve(self, size: int) -> int:
        """Reserve a part of the workspace for the whole kernel. Returns its offset."""
        offset = self._reserved
        self._reserved += -(-size // ALIGNMENT) * ALIGNMENT
        return offset

    def add_pass(self, name: str, function: NativeFunction, /, **arguments: Value) -> None:
        """Append a compiled pass.

        arguments: the arguments that the pass declares. An address is the place of an operand, an array or a compiled
        function.
        """
        self._add(_PassStep(name, function, arguments))

    def add_team_pass(self, name: str, function: NativeFunction, threads: int, /, **arguments: Value) -> None:
        """Append a pass that several threads run; its argument `team` is added."""
        run_team.address  # noqa: B018 - compile while preparing
        self._add(_TeamPassStep(name, function, {"team": team_arguments(function, threads), **arguments}))

    def _add(self, step: _PassStep) -> None:
        step.function.check(step.arguments)
        step.function.address  # noqa: B018 - compile while preparing
        self.implementations.append("numba")
        self._steps.append(step)

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self._reserved

    def prepared(self, **settings: Any) -> PreparedKernel:
        """The prepared kernel for the request. settings: as for `Request.prepared`."""
        return self.request.prepared(" ".join(self.implementations), self.bind, workspace=self.workspace, **settings)

    def bind(self, buffers: Buffers) -> Sequence[Call]:
        workspace = address(buffers["workspace"]) if self.workspace else 0
        return [step.bind(self.request.label, buffers, workspace) for step in self._steps]


def location(place: Place, buffers: Buffers, workspace: int) -> int:
    """The address of a place."""
    if place is None:
        return 0
    if isinstance(place, int):
        return workspace + place
    role, distance = (place, 0) if isinstance(place, str) else place
    return address(buffers[role]) + distance
