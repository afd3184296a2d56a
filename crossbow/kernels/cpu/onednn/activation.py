"""Activation functions, in place if possible. Derivatives are computed from the output."""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.passes.activation import clips
from crossbow.kernels.cpu.rooms import ONEDNN
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.types import Tensor

_ALGORITHMS = {
    "relu": (dnnl.ELTWISE_RELU, dnnl.ELTWISE_RELU_USE_DST),
    "clipped": (dnnl.ELTWISE_CLIP_V2, dnnl.ELTWISE_CLIP_V2_USE_DST),
    "sigmoid": (dnnl.ELTWISE_LOGISTIC, dnnl.ELTWISE_LOGISTIC_USE_DST),
    "tanh": (dnnl.ELTWISE_TANH, dnnl.ELTWISE_TANH_USE_DST),
}


MOST_DIMENSIONS = 5


def _takes(request: ActivationForward | ActivationBackward) -> bool:
    """Whether oneDNN supports the request: its derivative from the output needs an increasing function."""
    rising = request.mode != "relu" or request.negative_slope >= 0
    like = request.x if isinstance(request, ActivationForward) else request.dx
    return like.layout == request.y.layout and len(like.shape) <= MOST_DIMENSIONS and rising


@ONEDNN.kernel(ActivationForward, lambda request: _takes(request) and not clips(request))
def forward(request: ActivationForward) -> PreparedKernel:
    x, y = request.x, request.y
    steps = PrimitiveSteps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("eltwise", _forward(x, request), operands)
    return steps.prepared()


@ONEDNN.kernel(ActivationBackward, _takes)
def backward(request: ActivationBackward) -> PreparedKernel:
    y, dy, dx = request.y, request.dy, request.dx
    descriptor = dnnl.primitive_desc(
        "eltwise_backward",
        engine(),
        _ALGORITHMS[request.mode][1],
        activation(dx),
        activation(dy),
        activation(y),
        *_parameters(request),
        _forward(y, request),
        attributes(),
    )
    steps = PrimitiveSteps(request)
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("eltwise", descriptor, operands)
    return steps.prepared()


def _forward(x: Tensor, request: ActivationForward | ActivationBackward) -> dnnl.Handle:
    return dnnl.primitive_desc(
        "eltwise_forward",
        engine(),
        dnnl.FORWARD_TRAINING,
        _ALGORITHMS[request.mode][0],
        activation(x),
        activation(x),
        *_parameters(request),
        attributes(),
    )


def _parameters(request: ActivationForward | ActivationBackward) -> tuple[float, float]:
    """The library's α and β."""
    known = {"relu": (request.negative_slope, 0.0), "clipped": (0.0, request.ceiling)}
    return known.get(request.mode, (0.0, 0.0))
