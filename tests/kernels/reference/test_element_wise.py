"""Sums, products and maxima of tensors, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    Request,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Phase
from tests.kernels.reference.running import Numbers, draw, nan, run, tensor

T = tensor((4,))


def result(request: Request, role: str, *inputs: Any, **more: Numbers) -> list[float]:
    buffers = {f"input{number}": np.array(x, np.float64) for number, x in enumerate(inputs)}
    run(Reference(np.float64).prepare(request), **buffers, **more, **{role: (made := nan((4,)))})
    return made.tolist()


A, B, C = [1.0, -2, 3, 0], [2.0, 2, -1, 5], [4.0, 0, 1, -1]


def test_a_weighted_sum() -> None:
    assert result(WeightedSum((T,), T, (-2.0,)), "output", A) == [-2, 4, -6, 0]
    assert result(WeightedSum((T, T, T), T, (1.0, 2.0, -1.0)), "output", A, B, C) == [1, 2, 0, 11]
    assert result(WeightedSum((T, T, T), T, (1.0, -1.0, 1.0), relu=True), "output", A, B, C) == [3, 0, 5, 0]


def test_sums_are_added_from_left_to_right() -> None:
    """In float64, (1 + 2⁶⁰) − 2⁶⁰ is 0."""
    large = [2.0**60] * 4
    assert result(WeightedSum((T, T, T), T, (1.0, 1.0, -1.0)), "output", [1.0] * 4, large, large) == [0] * 4


def test_a_scaled_gradient() -> None:
    assert result(ScaledGradient(T, T, -0.5), "input_gradient", output_gradient=np.array(A)) == [-0.5, 1, -1.5, 0]


def test_a_product_and_its_gradients_with_zeros() -> None:
    assert result(ProductForward((T, T, T), T), "output", A, B, C) == [8, 0, -3, 0]
    dy = np.array([1.0, 10, 100, 1000])
    for index, expected in enumerate(([8, 0, -100, -5000], [4, 0, 300, 0], [2, -40, -300, 0])):
        received = result(ProductBackward((T, T, T), T, index), "input_gradient", A, B, C, output_gradient=dy)
        assert received == expected
    assert result(ProductForward((T,), T), "output", A) == A


@pytest.mark.parametrize("phase", Phase)
def test_a_maximum_remembers_the_first_of_the_largest(phase: Phase) -> None:
    inputs = [1.0, 5, np.nan, -np.inf], [2.0, 5, np.nan, 0], [2.0, 4, 1, np.nan]
    request = MaximumForward((T, T, T), T, phase)
    kernel = Reference(np.float64).prepare(request)
    kept = np.full(kernel.kept, 9, np.uint8)
    more = {"kept": kept} if phase is Phase.TRAIN else {}
    np.testing.assert_array_equal(result(request, "output", *inputs, **more), [2, 5, np.nan, np.nan])
    if phase is Phase.CHECK:
        assert kernel.kept == 0
        return
    assert kept.tolist() == [1, 0, 0, 2]
    for index, expected in enumerate(([0, 20, 30, 0], [10, 0, 0, 0], [0, 0, 0, 40])):
        dy = np.array([10.0, 20, 30, 40])
        backward = MaximumBackward((T, T, T), T, index)
        assert result(backward, "input_gradient", output_gradient=dy, kept=kept) == expected


def test_a_maximum_of_256_inputs() -> None:
    inputs = [draw(4, seed=seed) for seed in range(256)]
    inputs[255][2] = 100
    kept = np.zeros(4, np.uint8)
    received = result(MaximumForward((T,) * 256, T, Phase.TRAIN), "output", *inputs, kept=kept)
    assert received == np.max(inputs, axis=0).tolist()
    assert kept.tolist() == np.argmax(inputs, axis=0).tolist()
    assert kept[2] == 255
