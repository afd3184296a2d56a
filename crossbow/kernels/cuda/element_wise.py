"""Element-wise sums, products and maxima of tensors, which all have the same order in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import Argument, CudaKernel, computed_in
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    Request,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Array, Phase, Tensor

MOST = 8
"""Number of tensors that a kernel of sources/element_wise.cu takes at once."""


@CUDA.kernel(WeightedSum)
def weighted_sum(request: WeightedSum) -> PreparedKernel:
    return _sum(request, request.y, request.coefficients, request.relu)


@CUDA.kernel(ScaledGradient)
def scale(request: ScaledGradient) -> PreparedKernel:
    return _sum(request, request.dx, (request.coefficient,))


@CUDA.kernel(ProductForward)
def product_forward(request: ProductForward) -> PreparedKernel:
    return _product(request, request.y)


@CUDA.kernel(ProductBackward)
def product_backward(request: ProductBackward) -> PreparedKernel:
    return _product(request, request.dy)


@CUDA.kernel(MaximumForward)
def maximum_forward(request: MaximumForward) -> PreparedKernel:
    y, training = request.y, request.phase is Phase.TRAIN
    kernel, elements = CudaKernel("element_wise", "maximum", y.dtype), np.int64(y.elements)

    def bind(buffers: Buffers) -> Sequence[Call]:
        target, kept = buffers["output"], buffers["kept"] if training else None
        return [
            kernel.each(y.elements, *_filled(first, *others), target, kept, elements, np.int32(number), pointwise=True)
            for number, first, others in _parts([buffers[role] for role in request.reads], target)
        ]

    return request.prepared("cuda", bind, kept=y.elements if training else 0)


@CUDA.kernel(MaximumBackward)
def maximum_backward(request: MaximumBackward) -> PreparedKernel:
    dy, index = request.dy, request.index
    kernel, numbers = CudaKernel("element_wise", "maximum_backward", dy.dtype), (np.int64(dy.elements), np.int32(index))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(dy.elements, *(buffers[role] for role in request.roles), *numbers, pointwise=True),)

    return request.prepared("cuda", bind)


def _sum(request: Request, y: Tensor, coefficients: Sequence[float], relu: bool = False) -> PreparedKernel:
    kernel, elements = CudaKernel("element_wise", "weighted_sum", y.dtype), np.int64(y.elements)
    real, (write,) = computed_in(y.dtype).type, request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        terms, target = [buffers[role] for role in request.reads], buffers[write]
        calls = []
        for number, first, others in _parts(terms, target):
            stop = number + len(others)
            factors = [coefficients[0] if number == 1 else 1.0, *coefficients[number:stop]]
            factors += [0.0] * (MOST - len(factors))
            positive = np.int32(relu and stop == len(terms))
            values = [real(factor) for factor in factors]
            arguments = (*_filled(first, *others), *values, target, elements, positive)
            calls.append(kernel.each(y.elements, *arguments, pointwise=True))
        return calls

    return request.prepared("cuda", bind)


def _product(request: Request, y: Tensor) -> PreparedKernel:
    kernel, elements, (write,) = CudaKernel("element_wise", "product", y.dtype), np.int64(y.elements), request.writes

    def bind(buffers: Buffers) -> Sequence[Call]:
        target = buffers[write]
        parts = _parts([buffers[role] for role in request.reads], target)
        return [
            kernel.each(y.elements, *_filled(first, *others), target, elements, pointwise=True)
            for _, first, others in parts
        ]

    return request.prepared("cuda", bind)


def _parts(terms: Sequence[Array], target: Array) -> list[tuple[int, Array, Sequence[Array]]]:
    """The calls for many terms, each as the number of its first further term, the term to which further terms are
    added, and the further terms.

    The first call begins with the first term, and each later one with the result of the call before it.
    """
    parts: list[tuple[int, Array, Sequence[Array]]] = [(1, terms[0], terms[1:MOST])]
    for number in range(MOST, len(terms), MOST - 1):
        parts.append((number, target, terms[number : number + MOST - 1]))
    return parts


def _filled(*terms: Array) -> list[Argument]:
    """The terms, padded with None to the number of a kernel's arguments."""
    return [*terms, *[None] * (MOST - len(terms))]
