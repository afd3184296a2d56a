"""A part of a tensor, and a tensor as a part of a larger one: a reorder from or to a position inside it.

oneDNN rejects interleaved strides, such as those of every second column. A pass copies such parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.moves import add_fill, along, inside
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PadBackward, PadForward, Request, SliceBackward, SliceForward
from crossbow.types import Tensor


@ONEDNN.kernel(SliceForward, lambda request: request.step == 1)
def slice_forward(request: SliceForward) -> PreparedKernel:
    return _taken(request, request.x, request.y, along(request.x, request.axis, request.start, 1)[0])


@ONEDNN.kernel(SliceBackward, lambda request: request.step == 1)
def slice_backward(request: SliceBackward) -> PreparedKernel:
    return _put(request, request.dy, request.dx, along(request.dx, request.axis, request.start, 1)[0], 0.0)


@ONEDNN.kernel(PadForward)
def pad_forward(request: PadForward) -> PreparedKernel:
    return _put(request, request.x, request.y, request.before, request.value)


@ONEDNN.kernel(PadBackward)
def pad_backward(request: PadBackward) -> PreparedKernel:
    return _taken(request, request.dy, request.dx, request.before)


def _taken(request: Request, whole: Tensor, part: Tensor, starts: Sequence[int]) -> PreparedKernel:
    steps, (read,), (write,) = PrimitiveSteps(request), request.reads, request.writes
    offset, distances = inside(whole, starts, [1] * len(starts))
    steps.reorder(dnnl.strided_memory_desc(part.shape, distances), (read, offset), activation(part), write)
    return steps.prepared()


def _put(request: Request, part: Tensor, whole: Tensor, starts: Sequence[int], value: float) -> PreparedKernel:
    steps, (read,), (write,) = PrimitiveSteps(request), request.reads, request.writes
    offset, distances = inside(whole, starts, [1] * len(starts))
    if part.elements < whole.elements:
        add_fill(steps, write, whole.elements, value)
    steps.reorder(activation(part), read, dnnl.strided_memory_desc(part.shape, distances), (write, offset))
    return steps.prepared()
