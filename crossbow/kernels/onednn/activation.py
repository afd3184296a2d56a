"""Activation functions, in place where the plan allows; derivatives come from the output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crossbow.kernels.compiled import float32_at, float64_at, inlined, int64_at, native, prepared_pass
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn import binding as dnnl
from crossbow.kernels.onednn.memory import activation, attributes, engine
from crossbow.kernels.onednn.primitive import Place, Steps
from crossbow.kernels.onednn.rooms import ONEDNN, PASSES, alike
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.types import Tensor

_ALGORITHMS = {
    "relu": (dnnl.ELTWISE_RELU, dnnl.ELTWISE_RELU_USE_DST),
    "clipped": (dnnl.ELTWISE_CLIP_V2, dnnl.ELTWISE_CLIP_V2_USE_DST),
    "sigmoid": (dnnl.ELTWISE_LOGISTIC, dnnl.ELTWISE_LOGISTIC_USE_DST),
    "tanh": (dnnl.ELTWISE_TANH, dnnl.ELTWISE_TANH_USE_DST),
}


MOST_DIMENSIONS = 5


def _clips(request: ActivationForward) -> bool:
    """Whether it is the pass's function. oneDNN makes 0 of NaN."""
    return request.mode == "clipped" or (request.mode == "relu" and request.negative_slope == 0)


def _takes(request: ActivationForward | ActivationBackward) -> bool:
    """Whether oneDNN has it: its derivative from the output needs a function that grows with its input."""
    rising = request.mode != "relu" or request.negative_slope >= 0
    like = request.x if isinstance(request, ActivationForward) else request.dx
    return like.layout == request.y.layout and len(like.shape) <= MOST_DIMENSIONS and rising


@ONEDNN.kernel(ActivationForward, lambda request: _takes(request) and not _clips(request))
def forward(request: ActivationForward) -> PreparedKernel:
    x, y = request.x, request.y
    steps = Steps(request)
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("eltwise", _forward(x, request), operands)
    return steps.prepared()


@ONEDNN.kernel(ActivationBackward, _takes)
def backward(request: ActivationBackward) -> PreparedKernel:
    y, dy, dx = request.y, request.dy, request.dx
    descriptor = dnnl.dnnl_eltwise_backward_primitive_desc_create(
        engine(),
        _ALGORITHMS[request.mode][1],
        activation(dx),
        activation(dy),
        activation(y),
        *_parameters(request),
        _forward(y, request),
        attributes(),
    )
    steps = Steps(request)
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("eltwise", descriptor, operands)
    return steps.prepared()


@PASSES.kernel(ActivationForward, lambda request: _clips(request) and alike(request.x, request.y))
def clipping(request: ActivationForward) -> PreparedKernel:
    return prepared_pass(request, clip, request.x.elements, request.ceiling if request.mode == "clipped" else math.inf)


def _forward(x: Tensor, request: ActivationForward | ActivationBackward) -> dnnl.Handle:
    return dnnl.dnnl_eltwise_forward_primitive_desc_create(
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


# A pass of our own: oneDNN makes 0 of NaN.


@inlined
def _clipped(x: Any, ceiling: Any) -> Any:
    positive = np.float32(0) if x < 0 else x
    return ceiling if positive > ceiling else positive


@native
def clip(arguments: int, _1: int, _2: int, _3: int) -> int:
    """Block: x, y, their elements, ceiling: y = min(max(x, 0), ceiling), NaN kept."""
    block, ceiling = int64_at(arguments), np.float32(float64_at(arguments)[3])
    x, y, count = float32_at(block[0]), float32_at(block[1]), block[2]
    if block[0] == block[1]:  # with one name for both, the compiler has no overlap to fear
        for i in range(count):
            y[i] = _clipped(y[i], ceiling)
    else:
        for i in range(count):
            y[i] = _clipped(x[i], ceiling)
    return 0


def add_relu(steps: Steps, place: Place, elements: int) -> None:
    """Append: what lies in a place becomes max(…, 0)."""
    steps.add_pass("relu", clip, (place, place), elements, math.inf)
