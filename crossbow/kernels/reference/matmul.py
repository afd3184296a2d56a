"""The product of two stacks of matrices, and its gradients."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Shape


@computes(MatmulForward)
def forward(*, input0: Floats, input1: Floats, output: Floats, geometry: MatrixProductGeometry) -> None:
    """y = a b."""
    a = _factor(input0, geometry, 0)
    b = _factor(input1, geometry, 1)
    output[...] = np.matmul(a, b).reshape(output.shape)


@computes(MatmulBackward, lambda request: request.number == 0)
def backward_first(
    *, input1: Floats, output_gradient: Floats, input_gradient: Floats, geometry: MatrixProductGeometry
) -> None:
    """da = dy bᵀ."""
    b = _factor(input1, geometry, 1)
    gradient = np.matmul(output_gradient.reshape(geometry.y), _turned(b))
    _store(gradient, input_gradient, geometry, 0)


@computes(MatmulBackward, lambda request: request.number == 1)
def backward_second(
    *, input0: Floats, output_gradient: Floats, input_gradient: Floats, geometry: MatrixProductGeometry
) -> None:
    """db = aᵀ dy."""
    a = _factor(input0, geometry, 0)
    gradient = np.matmul(_turned(a), output_gradient.reshape(geometry.y))
    _store(gradient, input_gradient, geometry, 1)


def _turned(x: Floats) -> Floats:
    return x.swapaxes(-1, -2)


def _factor(x: Floats, geometry: MatrixProductGeometry, number: int) -> Floats:
    """An input after transposition."""
    stack = x.reshape(geometry.inputs[number])
    return _turned(stack) if geometry.transposed[number] else stack


def _store(gradient: Floats, target: Floats, geometry: MatrixProductGeometry, number: int) -> None:
    """Store the gradient of a transposed input as the gradient of the input itself."""
    turned = _turned(gradient) if geometry.transposed[number] else gradient
    target[...] = _summed(turned, geometry.inputs[number]).reshape(target.shape)


def _summed(gradient: Floats, shape: Shape) -> Floats:
    """The gradient summed over the dimensions in which an input of this shape was broadcast."""
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1)
    result: Floats = gradient.sum(axis=repeated, keepdims=True)
    return result
