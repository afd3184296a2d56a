"""Softmax and its gradient, with passes for non-finite numbers, which oneDNN's primitive ignores."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.softmax import add_marks, lines, mark_rows
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SoftmaxBackward, SoftmaxForward
from crossbow.types import Tensor


@ONEDNN.kernel(SoftmaxForward)
def forward(request: SoftmaxForward) -> PreparedKernel:
    x, y, axis = request.x, request.y, request.axis
    steps = PrimitiveSteps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    outer, length, inner = lines(x, axis)
    marks = steps.reserve(4 * (1 + outer * inner))
    steps.add_pass("marks", mark_rows, x="input0", marks=marks, outer=outer, length=length, inner=inner)
    steps.add("softmax", _forward(x, y, axis), operands)
    steps.add_pass("marked", add_marks, y="output", marks=marks, outer=outer, length=length, inner=inner)
    return steps.prepared()


@ONEDNN.kernel(SoftmaxBackward)
def backward(request: SoftmaxBackward) -> PreparedKernel:
    y, dy, dx, axis = request.y, request.dy, request.dx, request.axis
    descriptor = dnnl.primitive_desc(
        "softmax_backward",
        engine(),
        dnnl.SOFTMAX_ACCURATE,
        activation(dx),
        activation(dy),
        activation(y),
        axis % len(y.shape),
        _forward(dx, y, axis),
        attributes(),
    )
    steps = PrimitiveSteps(request)
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("softmax", descriptor, operands)
    return steps.prepared()


def _forward(x: Tensor, y: Tensor, axis: int) -> dnnl.Handle:
    return dnnl.primitive_desc(
        "softmax_forward",
        engine(),
        dnnl.FORWARD_TRAINING,
        dnnl.SOFTMAX_ACCURATE,
        activation(x),
        activation(y),
        axis % len(x.shape),
        attributes(),
    )
