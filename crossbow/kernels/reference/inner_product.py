"""Inner product and its gradients. Input dimensions without an output dimension are features, in logical order C, H,
W."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import InnerProductBackwardData, InnerProductBackwardWeights, InnerProductForward


@computes(InnerProductForward)
def forward(*, input0: Floats, weights: Floats, output: Floats, bias: Floats | None = None) -> None:
    """y = x wᵀ + b."""
    outputs, features = weights.shape
    x = input0.reshape(output.size // outputs, features)
    output[...] = np.matmul(x, weights.T).reshape(output.shape)
    if bias is not None:
        output += bias


@computes(InnerProductBackwardData)
def backward_data(*, output_gradient: Floats, weights: Floats, input_gradient: Floats) -> None:
    """dx = dy w."""
    outputs = len(weights)
    dy = output_gradient.reshape(output_gradient.size // outputs, outputs)
    input_gradient[...] = np.matmul(dy, weights).reshape(input_gradient.shape)


@computes(InnerProductBackwardWeights)
def backward_weights(
    *, input0: Floats, output_gradient: Floats, weights_gradient: Floats, bias_gradient: Floats | None = None
) -> None:
    """dw = dyᵀ x; db = Σ_n dy."""
    outputs, features = weights_gradient.shape
    rows = output_gradient.size // outputs
    dy = output_gradient.reshape(rows, outputs)
    np.matmul(dy.T, input0.reshape(rows, features), out=weights_gradient)
    if bias_gradient is not None:
        bias_gradient[...] = np.sum(dy, axis=0, dtype=np.float64)
