"""Sums, products and maxima of tensors, element by element. All lie in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossbow.kernels.cuda.launch import Argument, Kernel, computed_in
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.types import Array, Phase, Tensor

MOST = 8
"""Tensors that a kernel of sources/element_wise.cu takes at once."""


def weighted_sum(xs: Sequence[Tensor], y: Tensor, coefficients: Sequence[float], relu: bool) -> PreparedKernel:
    """input0, input1, … → output = Σ coefficient × input (relu: max(output, 0)); may be in place on input0."""
    return _sum(f"weighted_sum{' relu' if relu else ''}", _inputs(xs), "output", y, coefficients, relu)


def scale(dy: Tensor, dx: Tensor, coefficient: float) -> PreparedKernel:
    """output_gradient → input_gradient = coefficient × output_gradient; may be in place."""
    roles = ("output_gradient", "input_gradient")
    kernel = _sum("scale", roles[:1], roles[1], dx, (coefficient,), False)
    return replace(kernel, alias=roles if coefficient == 1 else None)


def product_forward(xs: Sequence[Tensor], y: Tensor) -> PreparedKernel:
    """input0, input1, … → output; may be in place on input0."""
    return _product("product_forward", _inputs(xs), "output", y)


def product_backward(xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
    """output_gradient, all inputs but this one → input_gradient; may be in place on output_gradient."""
    others = [role for number, role in enumerate(_inputs(xs)) if number != index]
    return _product("product_backward", ("output_gradient", *others), "input_gradient", dy)


def maximum_forward(xs: Sequence[Tensor], y: Tensor, phase: Phase) -> PreparedKernel:
    """input0, input1, … → output (and kept, when training); may be in place on input0."""
    kernel, elements, reads = Kernel("element_wise", "maximum", y.dtype), np.int64(y.elements), _inputs(xs)
    training = phase is Phase.TRAIN
    writes = ("output", "kept") if training else ("output",)

    def bind(buffers: Buffers) -> Sequence[Call]:
        target, kept = buffers["output"], buffers["kept"] if training else None
        return [
            kernel.each(y.elements, *_filled(first, *others), target, kept, elements, np.int32(number))
            for number, first, others in _parts([buffers[role] for role in reads], target)
        ]

    in_place = ("input0", "output")
    return PreparedKernel(
        "maximum_forward cuda", reads, writes, bind, kept=y.elements if training else 0, in_place=in_place
    )


def maximum_backward(xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
    """output_gradient, kept → input_gradient; may be in place on output_gradient."""
    kernel, numbers = Kernel("element_wise", "maximum_backward", dy.dtype), (np.int64(dy.elements), np.int32(index))
    reads, writes = ("output_gradient", "kept"), ("input_gradient",)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(dy.elements, *(buffers[role] for role in (*reads, *writes)), *numbers),)

    in_place = ("output_gradient", "input_gradient")
    return PreparedKernel("maximum_backward cuda", reads, writes, bind, in_place=in_place)


def _inputs(xs: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(f"input{number}" for number in range(len(xs)))


def _sum(
    name: str, reads: tuple[str, ...], write: str, y: Tensor, coefficients: Sequence[float], relu: bool
) -> PreparedKernel:
    kernel, elements, real = (
        Kernel("element_wise", "weighted_sum", y.dtype),
        np.int64(y.elements),
        computed_in(y.dtype).type,
    )

    def bind(buffers: Buffers) -> Sequence[Call]:
        terms, target = [buffers[role] for role in reads], buffers[write]
        calls = []
        for number, first, others in _parts(terms, target):
            stop = number + len(others)
            factors = [coefficients[0] if number == 1 else 1.0, *coefficients[number:stop]]
            factors += [0.0] * (MOST - len(factors))
            positive = np.int32(relu and stop == len(terms))
            values = [real(factor) for factor in factors]
            calls.append(kernel.each(y.elements, *_filled(first, *others), *values, target, elements, positive))
        return calls

    return PreparedKernel(f"{name} cuda", reads, (write,), bind, in_place=(reads[0], write))


def _product(name: str, reads: tuple[str, ...], write: str, y: Tensor) -> PreparedKernel:
    kernel, elements = Kernel("element_wise", "product", y.dtype), np.int64(y.elements)

    def bind(buffers: Buffers) -> Sequence[Call]:
        target = buffers[write]
        parts = _parts([buffers[role] for role in reads], target)
        return [kernel.each(y.elements, *_filled(first, *others), target, elements) for _, first, others in parts]

    return PreparedKernel(f"{name} cuda", reads, (write,), bind, in_place=(reads[0], write))


def _parts(terms: Sequence[Array], target: Array) -> list[tuple[int, Array, Sequence[Array]]]:
    """The calls for many terms: the number of the first of the others; what they are added to; and the others.

    The first call begins with the first term, and each that follows with the result of the one before.
    """
    parts: list[tuple[int, Array, Sequence[Array]]] = [(1, terms[0], terms[1:MOST])]
    for number in range(MOST, len(terms), MOST - 1):
        parts.append((number, target, terms[number : number + MOST - 1]))
    return parts


def _filled(*terms: Array) -> list[Argument]:
    """As many arguments as a kernel takes."""
    return [*terms, *[None] * (MOST - len(terms))]
