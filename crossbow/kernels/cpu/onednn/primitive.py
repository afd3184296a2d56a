"""Prepared kernels from primitive descriptors: primitives and passes that run in order on named buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import attributes, engine, memory
from crossbow.kernels.cpu.steps import Place, Steps, location
from crossbow.kernels.interface import Buffers
from crossbow.kernels.native import NativeCall
from crossbow.kernels.requests import Request


def implementation(descriptor: dnnl.Handle) -> str:
    """Name of the implementation that the library chose, as "jit:avx512_core"."""
    return dnnl.query_string(descriptor, dnnl.QUERY_IMPL_INFO_STR)


def chosen(descriptor: dnnl.Handle, what: int) -> dnnl.Handle:
    """The layout that a primitive requires for one of its operands."""
    found = dnnl.query_memory_desc(descriptor, what)
    assert found is not None
    return found


@dataclass(frozen=True)
class _PrimitiveStep:
    """A primitive with the layouts and places of its operands."""

    name: str
    primitive: dnnl.Handle
    operands: Mapping[int, tuple[dnnl.Handle, Place]]
    scratchpad: dnnl.Handle | None
    steps: PrimitiveSteps

    def bind(self, label: str, buffers: Buffers, workspace: int) -> NativeCall:
        memories: dict[int, dnnl.Handle] = {}
        for argument, (descriptor, place) in self.operands.items():
            memories[argument] = memory(descriptor, location(place, buffers, workspace))
        if self.scratchpad is not None:
            memories[dnnl.ARG_SCRATCHPAD] = memory(self.scratchpad, workspace + self.steps.scratchpad_offset)
        block = dnnl.execution_arguments(memories)
        # Streams of this engine are cheap, and oneDNN does not guarantee that threads may share one.
        stream = dnnl.create("dnnl_stream_create", engine(), dnnl.STREAM_IN_ORDER)
        return NativeCall(
            f"{label} {self.name}",
            dnnl.function_address("dnnl_primitive_execute"),
            (self.primitive.value, stream.value, len(memories), ctypes.addressof(block)),
            (self.primitive, stream, block, *memories.values(), *buffers.values()),
        )


class PrimitiveSteps(Steps):
    """Primitives and passes of a prepared kernel. Primitives are created once; all learners share them.

    All primitives use the same scratchpad, after the reserved parts of the workspace.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._scratchpad = 0

    @property
    def scratchpad_offset(self) -> int:
        return self._reserved

    @property
    def workspace(self) -> int:
        return self._reserved + self._scratchpad

    def add(self, name: str, descriptor: dnnl.Handle, operands: Mapping[int, tuple[dnnl.Handle, Place]]) -> None:
        """Append the primitive of a descriptor, with the layout and the place of each operand."""
        scratchpad = dnnl.query_memory_desc(descriptor, dnnl.QUERY_SCRATCHPAD_MD)
        size = 0 if scratchpad is None else dnnl.size(scratchpad)
        self._scratchpad = max(self._scratchpad, size)
        self.implementations.append(implementation(descriptor))
        primitive = dnnl.create("dnnl_primitive_create", descriptor)
        self._steps.append(_PrimitiveStep(name, primitive, dict(operands), scratchpad if size else None, self))

    def reorder(self, source: dnnl.Handle, place: Place, target: dnnl.Handle, to: Place) -> None:
        """Append a change of layout."""
        descriptor = dnnl.primitive_desc("reorder", source, engine(), target, engine(), attributes())
        self.add("reorder", descriptor, {dnnl.ARG_SRC: (source, place), dnnl.ARG_DST: (target, to)})

    def in_layout(self, role: str, own: dnnl.Handle, wanted: dnnl.Handle) -> Place:
        """The place of a buffer in the wanted layout, after a reorder if its own layout differs."""
        if dnnl.equal(own, wanted):
            return role
        place = self.reserve(dnnl.size(wanted))
        self.reorder(own, role, wanted, place)
        return place
