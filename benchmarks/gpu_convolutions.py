"""Algorithms of cuDNN's convolutions, for the JSON of benchmarks."""

from __future__ import annotations

from typing import Any

from crossbow.kernels.cuda import convolution, cudnn

OPERANDS = ("input", "weights", "output")
MATH_TYPES = {
    cudnn.DEFAULT_MATH: "default",
    cudnn.TENSOR_OP_MATH: "tensor op",
    cudnn.TENSOR_OP_MATH_ALLOW_CONVERSION: "tensor op, conversion allowed",
    cudnn.FMA_MATH: "fma",
}


def convolutions(start: int = 0) -> list[dict[str, Any]]:
    """Convolutions whose algorithms have been selected so far, except the first `start`, with their algorithms."""
    found = []
    for (request, problem, deterministic), algorithm in list(convolution.chosen().items())[start:]:
        tensors = {name: list(getattr(problem, letter).shape) for name, letter in zip(OPERANDS, "xwy", strict=True)}
        found.append(
            {
                "request": request.name,
                **tensors,
                "type": problem.x.dtype.name,
                "layout": problem.x.layout.value,
                "padding": list(problem.padding),
                "stride": list(problem.stride),
                "dilation": list(problem.dilation),
                "groups": problem.groups,
                "deterministic": deterministic,
                "algorithm": request.algorithm_name(algorithm.number),
                "math type": MATH_TYPES.get(algorithm.math_type, str(algorithm.math_type)),
                "workspace": algorithm.workspace,
            }
        )
    return found
