"""Sums of tensors, element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.reference.prepare import Floats


def weighted_sum(*, output: Floats, coefficients: Sequence[float], **inputs: Floats) -> None:
    """y = Σ coefficient · x, from left to right."""
    terms = [inputs[f"input{index}"] for index in range(len(coefficients))]
    np.multiply(terms[0], coefficients[0], out=output)
    for coefficient, term in zip(coefficients[1:], terms[1:], strict=True):
        output += coefficient * term


def scale(*, output_gradient: Floats, input_gradient: Floats, coefficient: float) -> None:
    """dx = coefficient · dy."""
    np.multiply(output_gradient, coefficient, out=input_gradient)
