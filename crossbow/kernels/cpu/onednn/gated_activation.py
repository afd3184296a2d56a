"""GELU and SiLU, in place if possible. HardSwish, which needs no exponential, is left to the passes.

The derivative of GELU's approximation is NaN where x³ overflows, beyond ±10¹².
"""

from __future__ import annotations

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.onednn.activation import MOST_DIMENSIONS
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps
from crossbow.kernels.cpu.rooms import ONEDNN, alike
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward
from crossbow.types import Tensor

_ALGORITHMS = {
    "gelu": dnnl.ELTWISE_GELU_ERF,
    "gelu_tanh": dnnl.ELTWISE_GELU_TANH,
    "silu": dnnl.ELTWISE_SWISH,
}
_PARAMETERS = (1.0, 0.0)
"""The library's α, the factor in the sigmoid of Swish, and β."""


def _takes(gate: str, *tensors: Tensor) -> bool:
    return gate in _ALGORITHMS and alike(*tensors) and len(tensors[0].shape) <= MOST_DIMENSIONS


@ONEDNN.kernel(GatedActivationForward, lambda request: _takes(request.gate, request.x, request.y))
def forward(request: GatedActivationForward) -> PreparedKernel:
    x, y = activation(request.x), activation(request.y)
    steps = PrimitiveSteps(request)
    steps.add("eltwise", _forward(request), {dnnl.ARG_SRC: (x, "input0"), dnnl.ARG_DST: (y, "output")})
    return steps.prepared()


@ONEDNN.kernel(GatedActivationBackward, lambda request: _takes(request.gate, request.x, request.dy, request.dx))
def backward(request: GatedActivationBackward) -> PreparedKernel:
    x, dy, dx = activation(request.x), activation(request.dy), activation(request.dx)
    descriptor = dnnl.primitive_desc(
        "eltwise_backward",
        engine(),
        _ALGORITHMS[request.gate],
        dx,
        dy,
        x,
        *_PARAMETERS,
        _forward(request),
        attributes(),
    )
    steps = PrimitiveSteps(request)
    operands = {
        dnnl.ARG_SRC: (x, "input0"),
        dnnl.ARG_DIFF_DST: (dy, "output_gradient"),
        dnnl.ARG_DIFF_SRC: (dx, "input_gradient"),
    }
    steps.add("eltwise", descriptor, operands)
    return steps.prepared()


def _forward(request: GatedActivationForward | GatedActivationBackward) -> dnnl.Handle:
    x, algorithm = activation(request.x), _ALGORITHMS[request.gate]
    return dnnl.primitive_desc(
        "eltwise_forward", engine(), dnnl.FORWARD_TRAINING, algorithm, x, x, *_PARAMETERS, attributes()
    )
