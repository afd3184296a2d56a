"""Embedding on the emulated GPU: repeated rows, padding, wide tables, and indices that are not rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.types import Tensor
from tests.kernels.cuda.running import Tensors, agree, run
from tests.kernels.reference.running import state


def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
    return library.prepare(EmbeddingForward(tensors["input0"], table(tensors), tensors["output"]))


def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
    return library.prepare(EmbeddingBackward(tensors["input0"], table(tensors), tensors["output_gradient"]))


def table(tensors: Tensors) -> Variable:
    return Variable(tensors["weights"].shape, tensors["weights"].dtype)


def numbers(columns: int, real: int, dtype: type) -> tuple[dict[str, Tensor], dict[str, Any]]:
    generator, x, rows, y = np.random.default_rng(0), (7, 9), (5, columns), (7, 9, columns)
    shapes = {"input0": x, "weights": rows, "weights_gradient": rows, "output": y, "output_gradient": y}
    values: dict[str, Any] = {role: generator.standard_normal(shapes[role]) for role in ("weights", "output_gradient")}
    values["input0"] = generator.integers(0, 5, x)
    values = {role: value.astype(dtype) for role, value in values.items()}
    values["state"] = state(EXAMPLES=real)
    return {role: Tensor(shape, np.dtype(dtype)) for role, shape in shapes.items()}, values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 300])
@pytest.mark.parametrize("real", [7, 3, 0])
def test_it_agrees_with_the_reference(columns: int, real: int, dtype: type) -> None:
    given = numbers(columns, real, dtype)
    agree(forward, *given)
    agree(backward, *given, 1e-6 if dtype is np.float32 else 1e-13)


@pytest.mark.parametrize("number", [5.0, -1.0, 0.5, np.nan])
def test_the_row_of_an_invalid_index_is_not_a_number(number: float) -> None:
    tensors, values = numbers(3, 7, np.float32)
    values["input0"][2, 4] = number
    expected = np.zeros((7, 9), bool)
    expected[2, 4] = True
    np.testing.assert_array_equal(np.isnan(run(forward, tensors, values)["output"]).all(axis=2), expected)
    assert np.isfinite(run(backward, tensors, values)["weights_gradient"]).all()
