"""Element-wise sums, products and maxima of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Array, Shape


@computes(WeightedSum)
def weighted_sum(*, output: Floats, coefficients: Sequence[float], **inputs: Floats) -> None:
    """y = Σ coefficient · x, from left to right."""
    terms = [inputs[f"input{index}"] for index in range(len(coefficients))]
    np.multiply(terms[0], coefficients[0], out=output)
    for coefficient, term in zip(coefficients[1:], terms[1:], strict=True):
        output += coefficient * term


@computes(ScaledGradient)
def scale(*, output_gradient: Floats, input_gradient: Floats, coefficient: float) -> None:
    """dx = coefficient · dy."""
    np.multiply(output_gradient, coefficient, out=input_gradient)


@computes(ProductForward)
def product_forward(*, output: Floats, **inputs: Floats) -> None:
    """y = Π x, from left to right."""
    np.copyto(output, inputs["input0"])
    for number in range(1, len(inputs)):
        output *= inputs[f"input{number}"]


@computes(ProductBackward)
def product_backward(*, output_gradient: Floats, input_gradient: Floats, **others: Floats) -> None:
    """dx_i = dy · Π_{j ≠ i} x_j, from left to right, without a division, because inputs may be 0."""
    np.copyto(input_gradient, output_gradient)
    for other in others.values():
        input_gradient *= other


@computes(MaximumForward, kept=lambda request: request.y.elements if "kept" in request.writes else 0)
def maximum_forward(*, output: Floats, kept: Array | None = None, **inputs: Floats) -> None:
    """The largest input, or the first of equal ones. NaN counts as the largest. Keeps the index of the input."""
    np.copyto(output, inputs["input0"])
    first = np.zeros(output.shape, np.uint8)
    for number in range(1, len(inputs)):
        x = inputs[f"input{number}"]
        larger = (x > output) | (np.isnan(x) & ~np.isnan(output))
        np.copyto(output, x, where=larger)
        np.copyto(first, number, where=larger)
    if kept is not None:
        _first(kept, output.shape)[...] = first


@computes(MaximumBackward)
def maximum_backward(*, output_gradient: Floats, kept: Array, input_gradient: Floats, index: int) -> None:
    """dx_i = dy if the output came from input i, else 0."""
    input_gradient[...] = np.where(_first(kept, output_gradient.shape) == index, output_gradient, 0)


def _first(kept: Array, shape: Shape) -> Array:
    """The index of the input from which each element came."""
    return kept.reshape(shape)
