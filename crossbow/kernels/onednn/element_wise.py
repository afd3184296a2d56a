"""Sums of tensors, element by element: the vector pass with coefficients that never change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.onednn.vector import combination_call, combine


def weighted_sum(coefficients: Sequence[float]) -> PreparedKernel:
    """input0, input1, … → output = Σ coefficient × input; may be in place on input0."""
    inputs = tuple(f"input{index}" for index in range(len(coefficients)))
    return _combination("weighted_sum", inputs, "output", coefficients)


def scale(coefficient: float) -> PreparedKernel:
    """output_gradient → input_gradient = coefficient × output_gradient; may be in place."""
    return _combination("scale", ("output_gradient",), "input_gradient", (coefficient,))


def _combination(name: str, reads: tuple[str, ...], write: str, coefficients: Sequence[float]) -> PreparedKernel:
    combine.address  # noqa: B018 - compile while preparing
    constants = np.array(coefficients, np.float64)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (combination_call(name, [(buffers[write], [buffers[role] for role in reads])], constants),)

    return PreparedKernel(f"{name} numba", reads, (write,), bind, in_place=(reads[0], write))
