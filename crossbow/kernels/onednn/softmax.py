"""Softmax and its gradient."""

from __future__ import annotations

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, engine
from crossbow.kernels.onednn.primitive import Steps
from crossbow.types import Tensor


def forward(x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
    """input0 → output; may be in place."""
    steps = Steps("softmax_forward")
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("softmax", _forward(x, y, axis), operands)
    return steps.prepared(("input0",), ("output",), in_place=("input0", "output"))


def backward(y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
    """output, output_gradient → input_gradient; may be in place on output_gradient."""
    descriptor = dnnl.dnnl_softmax_backward_primitive_desc_create(
        engine(),
        dnnl.SOFTMAX_ACCURATE,
        activation(dx),
        activation(dy),
        activation(y),
        axis % len(y.shape),
        _forward(dx, y, axis),
        attributes(),
    )
    steps = Steps("softmax_backward")
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("softmax", descriptor, operands)
    in_place = ("output_gradient", "input_gradient")
    return steps.prepared(("output", "output_gradient"), ("input_gradient",), in_place=in_place)


def _forward(x: Tensor, y: Tensor, axis: int) -> dnnl.Handle:
    return dnnl.dnnl_softmax_forward_primitive_desc_create(
        engine(),
        dnnl.FORWARD_TRAINING,
        dnnl.SOFTMAX_ACCURATE,
        activation(x),
        activation(y),
        axis % len(x.shape),
        attributes(),
    )
