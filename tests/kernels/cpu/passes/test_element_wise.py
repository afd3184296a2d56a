"""The compiled sums, products and maxima of tensors against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Layout, Phase, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SINGLE, Numbers, both, draw, execute, memory, tensor

SHAPES: list[Shape] = [(3, 10), (1, 1), (2, 20, 3, 5), (1, 1, 4, 4), (2, 16, 2, 2), (3, 2, 5), (7,), (5, 1023)]
COEFFICIENTS = (1.1, -0.3, 0.7, 2.0, 1.0, 0.25, -1.5)


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_sums_and_scales_are_bit_identical(shape: Shape, count: int) -> None:
    t, inputs = tensor(shape), [f"input{number}" for number in range(count)]
    values = {role: draw(shape, seed) for seed, role in enumerate(inputs)}
    request = WeightedSum((t,) * count, t, COEFFICIENTS[:count])
    fast, plain = both(COMPILED, request, dict.fromkeys([*inputs, "output"], t), values, by="numba")
    np.testing.assert_array_equal(fast["output"], plain["output"])
    tensors = {"output_gradient": t, "input_gradient": t}
    fast, plain = both(COMPILED, ScaledGradient(t, t, 0.3), tensors, {"output_gradient": values["input0"]}, by="numba")
    np.testing.assert_array_equal(fast["input_gradient"], plain["input_gradient"])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_sums_with_a_relu(count: int, relu: bool) -> None:
    """With whole vectors and a remainder; a sum of two has its own code for the fused ReLU."""
    t, inputs = tensor((3, 37)), [f"input{number}" for number in range(count)]
    values = {role: draw((3, 37), seed) for seed, role in enumerate(inputs)}
    values["input0"][1, 5:9] = np.nan
    request = WeightedSum((t,) * count, t, COEFFICIENTS[:count], relu)
    fast, plain = both(COMPILED, request, dict.fromkeys([*inputs, "output"], t), values, by="numba")
    np.testing.assert_array_equal(fast["output"], plain["output"])
    assert np.isnan(fast["output"]).sum() == 4
    assert (np.nanmin(fast["output"]) == 0) == relu


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_products_are_bit_identical(shape: Shape, count: int) -> None:
    t, inputs = tensor(shape), [f"input{number}" for number in range(count)]
    values = {role: draw(shape, seed) for seed, role in enumerate(inputs)}
    request = ProductForward((t,) * count, t)
    fast, plain = both(COMPILED, request, dict.fromkeys([*inputs, "output"], t), values, by="numba")
    np.testing.assert_array_equal(fast["output"], plain["output"])
    values["output_gradient"] = draw(shape, 99)
    tensors = dict.fromkeys([*inputs, "output_gradient", "input_gradient"], t)
    for index in range(count):
        fast, plain = both(COMPILED, ProductBackward((t,) * count, t, index), tensors, values, by="numba")
        np.testing.assert_array_equal(fast["input_gradient"], plain["input_gradient"])


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_maxima_and_their_gradients_are_the_same_with_ties_and_nan(shape: Shape, count: int) -> None:
    t, inputs = tensor(shape), [f"input{number}" for number in range(count)]
    values = {role: np.round(draw(shape, seed)) for seed, role in enumerate(inputs)}
    for seed, value in enumerate(values.values()):
        value[np.random.default_rng(seed).random(shape) < 0.1] = np.nan
    tensors = dict.fromkeys([*inputs, "output"], t)
    fast, plain = both(COMPILED, MaximumForward((t,) * count, t, Phase.CHECK), tensors, values, by="numba")
    np.testing.assert_array_equal(fast["output"], plain["output"])
    gradients: list[list[Numbers]] = []
    for library in (COMPILED, SINGLE):
        buffers = {role: memory(t, value) for role, value in values.items()}
        buffers |= {"output": memory(t), "output_gradient": memory(t, draw(shape, 99))}
        forward = library.prepare(MaximumForward((t,) * count, t, Phase.TRAIN))
        buffers["kept"] = aligned_zeros(forward.kept)
        execute(forward, buffers, native=library is COMPILED)
        gradients.append([buffers["output"]])
        for index in range(count):
            buffers["input_gradient"] = memory(t)
            execute(library.prepare(MaximumBackward((t,) * count, t, index)), buffers, native=library is COMPILED)
            gradients[-1].append(buffers["input_gradient"])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    for request in (
        WeightedSum((last, plain), last, (1.0, 1.0)),
        ScaledGradient(last, plain, 2.0),
        ProductForward((last, plain), last),
        ProductBackward((last, plain), last, 0),
        MaximumForward((last, plain), last, Phase.TRAIN),
        MaximumBackward((last, plain), last, 0),
    ):
        assert COMPILED.prepare(request).name.endswith("reference")
