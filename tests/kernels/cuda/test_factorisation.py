"""Matrix factorisation: rows that many examples name, many latents, and numbers that name none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction
from crossbow.types import Tensor
from tests.kernels.cuda.running import Numbers, Tensors, agree, run
from tests.kernels.reference.running import state

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
ROWS, COLUMNS = 50, 30


def tables(tensors: Tensors) -> tuple[Variable, Variable]:
    users, items = tensors["users"], tensors["items"]
    return Variable(users.shape, users.dtype), Variable(items.shape, items.dtype)


def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
    return library.prepare(FactorisationForward(tensors["input0"], tensors["labels"], *tables(tensors), 0.3))


def backward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
    return library.prepare(FactorisationBackward(tensors["input0"], tensors["labels"], *tables(tensors), 0.3))


def prediction(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
    return library.prepare(FactorisationPrediction(tensors["input0"], *tables(tensors), tensors["output"]))


def ratings(
    number: int, latents: int, dtype: type = np.float32, target: type = np.float32, real: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    generator = np.random.default_rng(0)
    shapes = {"input0": (number, 2), "users": (ROWS, latents), "items": (COLUMNS, latents), "output": (1,)}
    shapes |= {"users_gradient": shapes["users"], "items_gradient": shapes["items"]}
    tensors = {role: Tensor(shape, np.dtype(dtype)) for role, shape in shapes.items()}
    tensors["labels"] = Tensor((number,), np.dtype(target))
    values: dict[str, Numbers] = {role: generator.standard_normal(shapes[role]) for role in ("users", "items")}
    values = {role: value.astype(dtype) for role, value in values.items()}
    values["input0"] = generator.integers(0, (ROWS, COLUMNS), (number, 2)).astype(dtype)
    values["labels"] = generator.standard_normal(number).astype(target)
    values["state"] = state(EXAMPLES=number if real is None else real)
    return tensors, values


def predicted(tensors: dict[str, Tensor], values: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same for predictions, which have one number for each example."""
    x = tensors["input0"]
    return {**tensors, "output": Tensor(x.shape[:1], x.dtype)}, values


@dtypes
@pytest.mark.parametrize("target", [np.float32, np.float64])
@pytest.mark.parametrize(("number", "real"), [(1, 1), (40, 40), (40, 23), (7, 0)])
@pytest.mark.parametrize("latents", [1, 33])
def test_agrees_with_reference(number: int, real: int, latents: int, dtype: type, target: type) -> None:
    given = ratings(number, latents, dtype, target, real)
    tolerance = 1e-6 if np.float32 in (dtype, target) else 1e-13
    agree(forward, *given, tolerance)
    agree(backward, *given, tolerance)
    agree(prediction, *predicted(*given), tolerance)


def test_one_row_for_all() -> None:
    tensors, values = ratings(70, 300)
    values["input0"][:, 0] = 17
    agree(backward, tensors, values, 1e-6)


@pytest.mark.parametrize("number", [-1.0, ROWS, 2.5, np.nan, np.inf])
def test_a_number_that_names_no_row_shows(number: float) -> None:
    tensors, values = ratings(9, 3)
    values["input0"][2] = number, 4
    assert np.isnan(run(forward, tensors, values)["output"][0])
    gradients = run(backward, tensors, values)
    assert np.flatnonzero(np.isnan(gradients["items_gradient"]).all(axis=1)).tolist() == [4]
    assert np.isfinite(gradients["users_gradient"]).all()
    assert np.flatnonzero(np.isnan(run(prediction, *predicted(tensors, values))["output"])).tolist() == [2]
    values["state"] = state(EXAMPLES=2)  # padding may hold anything
    agree(forward, tensors, values, 1e-6)
    agree(prediction, *predicted(tensors, values), 1e-6)
    agree(backward, tensors, values, 1e-6)
