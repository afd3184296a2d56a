"""Prepared kernels from passes, which run in order on named buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crossbow.kernels.compiled import NativeFunction
from crossbow.kernels.cpu.passes.team import TEAM_SLOTS, THREADS, run_team, team_slots
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
    """A pass with the places and numbers of its block."""

    name: str
    function: NativeFunction
    places: tuple[Place, ...]
    slots: tuple[int | float, ...]
    references: tuple[object, ...]
    team: bool = False

    def bind(self, label: str, buffers: Buffers, workspace: int) -> NativeCall:
        locations = [location(place, buffers, workspace) for place in self.places]
        references, name = (*self.references, *buffers.values()), f"{label} {self.name}"
        if self.team:
            function = self.function if self.slots[THREADS] == 1 else run_team
            slots = (*self.slots[:TEAM_SLOTS], *locations, *self.slots[TEAM_SLOTS:])
            return function.call(name, *slots, references=references)
        return self.function.call(name, *locations, *self.slots, references=references)


class Steps:
    """The passes of one prepared kernel, and their workspace."""

    def __init__(self, request: Request, *implementations: str) -> None:
        """implementations: beginning of the kernel's name, before the names of the steps."""
        self.request = request
        self.implementations = list(implementations)
        self._steps: list[Any] = []
        self._reserved = 0

    def reserve(self, size: int) -> int:
        """Reserve a part of the workspace for the whole kernel. Returns its offset."""
        offset = self._reserved
        self._reserved += -(-size // ALIGNMENT) * ALIGNMENT
        return offset

    def add_pass(
        self,
        name: str,
        function: NativeFunction,
        places: Sequence[Place],
        *slots: int | float,
        references: Sequence[object] = (),
    ) -> None:
        """Append a compiled pass, whose block holds the addresses of the places, then `slots`."""
        function.address  # noqa: B018 - compile while preparing
        self.implementations.append("numba")
        self._steps.append(_PassStep(name, function, tuple(places), slots, tuple(references)))

    def add_team_pass(
        self,
        name: str,
        function: NativeFunction,
        threads: int,
        places: Sequence[Place],
        *slots: int | float,
        references: Sequence[object] = (),
    ) -> None:
        """Append a pass that several threads run; its block begins with `team_slots`."""
        run_team.address  # noqa: B018 - compile while preparing
        self.implementations.append("numba")
        team = team_slots(function.address, threads)
        self._steps.append(_PassStep(name, function, tuple(places), (*team, *slots), tuple(references), team=True))

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self._reserved

    def prepared(self, **settings: Any) -> PreparedKernel:
        """The kernel for the request. settings: as for `Request.prepared`."""
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
