"""Inner product and its gradients. The dimensions that the output lacks are features, in logical order: C, H, W."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats


def forward(*, input0: Floats, weights: Floats, output: Floats, bias: Floats | None = None) -> None:
    """y = x wᵀ + b."""
    output[...] = np.matmul(_rows(input0, weights.shape[1]), weights.T).reshape(output.shape)
    if bias is not None:
        output += bias


def backward_data(*, output_gradient: Floats, weights: Floats, input_gradient: Floats) -> None:
    """dx = dy w."""
    gradient = np.matmul(_rows(output_gradient, weights.shape[0]), weights)
    input_gradient[...] = gradient.reshape(input_gradient.shape)


def backward_weights(
    *, input0: Floats, output_gradient: Floats, weights_gradient: Floats, bias_gradient: Floats | None = None
) -> None:
    """dw = dyᵀ x; db = Σ_n dy."""
    outputs, features = weights_gradient.shape
    gradient = _rows(output_gradient, outputs)
    np.matmul(gradient.T, _rows(input0, features), out=weights_gradient)
    if bias_gradient is not None:
        bias_gradient[...] = np.sum(gradient, axis=0, dtype=np.float64)


def _rows(x: Floats, features: int) -> Floats:
    return x.reshape(-1, features)
