"""Inner product and its gradients. An image counts as one row of features, in the order C, H, W."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats


def forward(*, input0: Floats, weights: Floats, output: Floats, bias: Floats | None = None) -> None:
    """y = x wᵀ + b."""
    np.matmul(_rows(input0), weights.T, out=output)
    if bias is not None:
        output += bias


def backward_data(*, output_gradient: Floats, weights: Floats, input_gradient: Floats) -> None:
    """dx = dy w."""
    input_gradient[...] = np.matmul(output_gradient, weights).reshape(input_gradient.shape)


def backward_weights(
    *, input0: Floats, output_gradient: Floats, weights_gradient: Floats, bias_gradient: Floats | None = None
) -> None:
    """dw = dyᵀ x; db = Σ_n dy."""
    np.matmul(output_gradient.T, _rows(input0), out=weights_gradient)
    if bias_gradient is not None:
        np.sum(output_gradient, axis=0, out=bias_gradient)


def _rows(x: Floats) -> Floats:
    return x.reshape(x.shape[0], -1)
