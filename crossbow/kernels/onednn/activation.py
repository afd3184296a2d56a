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
from crossbow.types import Tensor

_ALGORITHMS = {
    "relu": (dnnl.ELTWISE_RELU, dnnl.ELTWISE_RELU_USE_DST),
    "clipped": (dnnl.ELTWISE_CLIP_V2, dnnl.ELTWISE_CLIP_V2_USE_DST),
    "sigmoid": (dnnl.ELTWISE_LOGISTIC, dnnl.ELTWISE_LOGISTIC_USE_DST),
    "tanh": (dnnl.ELTWISE_TANH, dnnl.ELTWISE_TANH_USE_DST),
}


def accepts(x: Tensor, y: Tensor, mode: str, negative_slope: float) -> bool:
    """Whether the library has this: its derivative from the output needs one that grows with the input."""
    return x.layout == y.layout and len(x.shape) <= 5 and (mode != "relu" or negative_slope >= 0)


def forward(x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float) -> PreparedKernel:
    """input0 → output; may be in place."""
    if mode == "clipped" or (mode == "relu" and negative_slope == 0):
        limit = ceiling if mode == "clipped" else math.inf
        in_place = ("input0", "output")
        name, numbers = f"activation_forward {mode}", (x.elements, limit)
        return prepared_pass(name, clip, ("input0",), ("output",), *numbers, in_place=in_place)
    steps = Steps(f"activation_forward {mode}")
    operands = {dnnl.ARG_SRC: (activation(x), "input0"), dnnl.ARG_DST: (activation(y), "output")}
    steps.add("eltwise", _forward(x, mode, negative_slope, ceiling), operands)
    return steps.prepared(("input0",), ("output",), in_place=("input0", "output"))


def backward(y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float) -> PreparedKernel:
    """output, output_gradient → input_gradient; may be in place on output_gradient."""
    descriptor = dnnl.dnnl_eltwise_backward_primitive_desc_create(
        engine(),
        _ALGORITHMS[mode][1],
        activation(dx),
        activation(dy),
        activation(y),
        *_parameters(mode, negative_slope, ceiling),
        _forward(y, mode, negative_slope, ceiling),
        attributes(),
    )
    steps = Steps(f"activation_backward {mode}")
    operands = {
        dnnl.ARG_DST: (activation(y), "output"),
        dnnl.ARG_DIFF_DST: (activation(dy), "output_gradient"),
        dnnl.ARG_DIFF_SRC: (activation(dx), "input_gradient"),
    }
    steps.add("eltwise", descriptor, operands)
    in_place = ("output_gradient", "input_gradient")
    return steps.prepared(("output", "output_gradient"), ("input_gradient",), in_place=in_place)


def _forward(x: Tensor, mode: str, negative_slope: float, ceiling: float) -> dnnl.Handle:
    return dnnl.dnnl_eltwise_forward_primitive_desc_create(
        engine(),
        dnnl.FORWARD_TRAINING,
        _ALGORITHMS[mode][0],
        activation(x),
        activation(x),
        *_parameters(mode, negative_slope, ceiling),
        attributes(),
    )


def _parameters(mode: str, negative_slope: float, ceiling: float) -> tuple[float, float]:
    """The library's α and β."""
    return {"relu": (negative_slope, 0.0), "clipped": (0.0, ceiling)}.get(mode, (0.0, 0.0))


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
