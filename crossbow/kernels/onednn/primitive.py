"""From primitive descriptors to a prepared kernel: primitives, and passes, run in order on named buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossbow.kernels.compiled import NativeFunction
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.native import NativeCall
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import attributes, engine, nbytes
from crossbow.kernels.onednn.team import TEAM_SLOTS, THREADS, run_team, team_slots
from crossbow.kernels.requests import Request
from crossbow.types import address

ALIGNMENT = 64

Place = str | int | tuple[str, int] | None
"""Where an operand lies: a buffer's role, with a distance in bytes from its start, or an offset in the workspace; None
is nowhere, address 0."""


def implementation(descriptor: dnnl.Handle) -> str:
    """The name of the implementation that the library chose, as "jit:avx512_core"."""
    return dnnl.dnnl_primitive_desc_query_string(descriptor, dnnl.QUERY_IMPL_INFO_STR)


def chosen(descriptor: dnnl.Handle, what: int) -> dnnl.Handle:
    """The layout that a primitive wants, or works in, for one of its operands."""
    found = dnnl.dnnl_primitive_desc_query_md(descriptor, what)
    assert found is not None
    return found


@dataclass(frozen=True)
class _Step:
    name: str
    primitive: dnnl.Handle
    operands: Mapping[int, tuple[dnnl.Handle, Place]]
    scratchpad: dnnl.Handle | None


@dataclass(frozen=True)
class _Pass:
    name: str
    function: NativeFunction
    places: tuple[Place, ...]
    slots: tuple[int | float, ...]
    references: tuple[object, ...]
    team: bool = False


class Steps:
    """The primitives of one prepared kernel. Primitives are made once and shared by every learner that binds them."""

    def __init__(self, request: Request, *implementations: str) -> None:
        """implementations: what the kernel's name begins with, before the primitives' and passes'."""
        self.request = request
        self.implementations = list(implementations)
        self._steps: list[_Step | _Pass] = []
        self._reserved = 0
        self._scratchpad = 0

    def reserve(self, size: int) -> int:
        """Room in the workspace that lives through the whole kernel; its offset."""
        offset = self._reserved
        self._reserved += -(-size // ALIGNMENT) * ALIGNMENT
        return offset

    def add(self, name: str, descriptor: dnnl.Handle, operands: Mapping[int, tuple[dnnl.Handle, Place]]) -> None:
        """Append the primitive of a descriptor, with the layout and the place of each operand."""
        scratchpad = dnnl.dnnl_primitive_desc_query_md(descriptor, dnnl.QUERY_SCRATCHPAD_MD)
        size = 0 if scratchpad is None else nbytes(scratchpad)
        self._scratchpad = max(self._scratchpad, size)
        self.implementations.append(implementation(descriptor))
        primitive = dnnl.dnnl_primitive_create(descriptor)
        self._steps.append(_Step(name, primitive, dict(operands), scratchpad if size else None))

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
        self._steps.append(_Pass(name, function, tuple(places), slots, tuple(references)))

    def add_team_pass(
        self,
        name: str,
        function: NativeFunction,
        threads: int,
        places: Sequence[Place],
        *slots: int | float,
        references: Sequence[object] = (),
    ) -> None:
        """Append a pass that so many threads run; its block begins with `team_slots`."""
        run_team.address  # noqa: B018 - compile while preparing
        self.implementations.append("numba")
        team = team_slots(function.address, threads)
        self._steps.append(_Pass(name, function, tuple(places), (*team, *slots), tuple(references), team=True))

    def reorder(self, source: dnnl.Handle, place: Place, target: dnnl.Handle, to: Place) -> None:
        """Append a change of layout."""
        descriptor = dnnl.dnnl_reorder_primitive_desc_create(source, target, engine(), attributes())
        self.add("reorder", descriptor, {dnnl.ARG_SRC: (source, place), dnnl.ARG_DST: (target, to)})

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self._reserved + self._scratchpad

    def prepared(self, **settings: Any) -> PreparedKernel:
        """The kernel that answers the request. settings: as of `Request.prepared`."""
        return self.request.prepared(" ".join(self.implementations), self.bind, workspace=self.workspace, **settings)

    def bind(self, buffers: Buffers) -> Sequence[Call]:
        # A stream of one's own costs nothing on this engine, and streams are not promised to be shareable.
        stream = dnnl.dnnl_stream_create(engine(), dnnl.STREAM_IN_ORDER)
        workspace = address(buffers["workspace"]) if self.workspace else 0
        return [
            self._bind_pass(step, buffers, workspace)
            if isinstance(step, _Pass)
            else self._bind_step(step, buffers, workspace, stream)
            for step in self._steps
        ]

    def _bind_pass(self, step: _Pass, buffers: Buffers, workspace: int) -> NativeCall:
        locations = [_location(place, buffers, workspace) for place in step.places]
        references = (*step.references, *buffers.values())
        if step.team:
            function = step.function if step.slots[THREADS] == 1 else run_team
            slots = (*step.slots[:TEAM_SLOTS], *locations, *step.slots[TEAM_SLOTS:])
            return function.call(f"{self.request.label} {step.name}", *slots, references=references)
        return step.function.call(f"{self.request.label} {step.name}", *locations, *step.slots, references=references)

    def _bind_step(self, step: _Step, buffers: Buffers, workspace: int, stream: dnnl.Handle) -> NativeCall:
        memories: dict[int, dnnl.Handle] = {}
        for argument, (descriptor, place) in step.operands.items():
            location = _location(place, buffers, workspace)
            memories[argument] = dnnl.dnnl_memory_create(descriptor, engine(), location)
        if step.scratchpad is not None:
            scratchpad = dnnl.dnnl_memory_create(step.scratchpad, engine(), workspace + self._reserved)
            memories[dnnl.ARG_SCRATCHPAD] = scratchpad
        block = dnnl.execution_arguments(memories)
        return NativeCall(
            f"{self.request.label} {step.name}",
            dnnl.function_address("dnnl_primitive_execute"),
            (step.primitive.value, stream.value, len(memories), ctypes.addressof(block)),
            (step.primitive, stream, block, *memories.values(), *buffers.values()),
        )


def _location(place: Place, buffers: Buffers, workspace: int) -> int:
    if place is None:
        return 0
    if isinstance(place, int):
        return workspace + place
    role, distance = (place, 0) if isinstance(place, str) else place
    return address(buffers[role]) + distance
