"""Sums of tensors, element by element: the vector pass with coefficients that never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.onednn.vector import combination_call, combine


def weighted_sum(coefficients: Sequence[float], relu: bool) -> PreparedKernel:
    """input0, input1, … → output = Σ coefficient × input (relu: max(output, 0)); may be in place on input0."""
    inputs = tuple(f"input{index}" for index in range(len(coefficients)))
    return _combination(f"weighted_sum{' relu' if relu else ''}", inputs, "output", coefficients, relu)


def scale(coefficient: float) -> PreparedKernel:
    """output_gradient → input_gradient = coefficient × output_gradient; may be in place."""
    roles = ("output_gradient", "input_gradient")
    kernel = _combination("scale", roles[:1], roles[1], (coefficient,))
    return replace(kernel, alias=roles if coefficient == 1 else None)


def _combination(
    name: str, reads: tuple[str, ...], write: str, coefficients: Sequence[float], relu: bool = False
) -> PreparedKernel:
    combine.address  # noqa: B018 - compile while preparing
    constants = np.array(coefficients, np.float64)

    def bind(buffers: Buffers) -> Sequence[Call]:
        sums = [(buffers[write], [buffers[role] for role in reads])]
        return (combination_call(name, sums, constants, relu),)

    return PreparedKernel(f"{name} numba", reads, (write,), bind, in_place=(reads[0], write))
