"""Many tensors at once, and numbers that are none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.cuda.launch import PACK
from crossbow.kernels.cuda.library import Cuda
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    ScaledGradient,
    WeightedSum,
)
from crossbow.types import Phase, Tensor
from tests.kernels.cuda.fake import fake_cuda
from tests.kernels.cuda.running import Numbers, Tensors, agree, run

SHAPE = (3, 7)
MANY = [1, 2, 7, 8, 9, 15, 16, 23]
"""Around the number that a call takes, and those that follow."""
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
places = pytest.mark.parametrize("in_place", [False, True])


def inputs(number: int, dtype: type = np.float32) -> tuple[dict[str, Tensor], dict[str, Numbers]]:
    roles = [*(f"input{index}" for index in range(number)), "output", "output_gradient", "input_gradient"]
    generator = np.random.default_rng(number)
    values: dict[str, Numbers] = {
        role: generator.standard_normal(SHAPE).astype(dtype) for role in roles if role not in ("output", roles[-1])
    }
    return {role: Tensor(SHAPE, np.dtype(dtype)) for role in roles}, values


def xs(tensors: Tensors) -> list[Tensor]:
    return [tensor for role, tensor in tensors.items() if role.startswith("input") and role != "input_gradient"]


@dtypes
@places
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("number", MANY)
def test_sums_of_many(number: int, relu: bool, in_place: bool, dtype: type) -> None:
    coefficients = np.random.default_rng(0).standard_normal(number).tolist()

    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(WeightedSum(xs(tensors), tensors["output"], coefficients, relu=relu))

    result = agree(prepare, *inputs(number, dtype), 1e-6 if dtype is np.float32 else 1e-14, in_place=in_place)
    assert (result["output"].min() == 0) == relu


def test_relu_of_what_is_not_a_number() -> None:
    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(WeightedSum(xs(tensors), tensors["output"], (1.0, 1.0), relu=True))

    tensors, values = inputs(2)
    values["input0"][0, :3] = np.nan, np.inf, -np.inf
    assert np.isnan(agree(prepare, tensors, values, 1e-6)["output"][0, 0])


@pytest.mark.parametrize("coefficient", [1, 1.0, -0.5])
def test_only_a_scale_of_one_is_an_alias(coefficient: float) -> None:
    kernels = []

    def prepare(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        kernels.append(
            library.prepare(ScaledGradient(tensors["output_gradient"], tensors["input_gradient"], coefficient))
        )
        return kernels[-1]

    agree(prepare, *inputs(1), in_place=True)
    assert all((kernel.alias is not None) == (coefficient == 1) for kernel in kernels)


@places
@pytest.mark.parametrize("number", MANY)
def test_products_of_many(number: int, in_place: bool) -> None:
    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(ProductForward(xs(tensors), tensors["output"]))

    agree(forward, *inputs(number), 2e-6, in_place=in_place)
    for index in {0, number // 2, number - 1}:

        def backward(library: KernelLibrary, tensors: Tensors, index: int = index) -> PreparedKernel:
            return library.prepare(ProductBackward(xs(tensors), tensors["output_gradient"], index))

        agree(backward, *inputs(number), 2e-6, in_place=in_place)


@pytest.mark.slow
@dtypes
@places
@pytest.mark.parametrize("number", [*MANY, 256])
def test_maxima_of_many_with_ties_and_numbers_that_are_none(number: int, in_place: bool, dtype: type) -> None:
    tensors, values = inputs(number, dtype)
    generator = np.random.default_rng(number)
    for role in values:
        if role.startswith("input"):
            values[role] = generator.choice([-1, 0, 1, 2, np.nan, -np.inf], SHAPE, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05])
    for phase in Phase:

        def forward(library: KernelLibrary, tensors: Tensors, phase: Phase = phase) -> PreparedKernel:
            return library.prepare(MaximumForward(xs(tensors), tensors["output"], phase))

        written = agree(forward, tensors, values, in_place=in_place)
        assert ("kept" in written) == (phase is Phase.TRAIN)
        if phase is Phase.TRAIN:
            expected = run(forward, tensors, values, reference=True)["kept"]
            np.testing.assert_array_equal(written["kept"], expected)
            values["kept"] = expected
    for index in {0, number // 2, number - 1}:

        def backward(library: KernelLibrary, tensors: Tensors, index: int = index) -> PreparedKernel:
            return library.prepare(MaximumBackward(xs(tensors), tensors["output_gradient"], index))

        agree(backward, tensors, values, in_place=in_place)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("length", [1, 3, 8, 13])
def test_elements_at_any_address_count_once(length: int, dtype: str) -> None:
    """Whole packs and others: tensors that begin at the address of a pack, and between two of them."""
    of_type, library_type = np.dtype(dtype), np.float64 if dtype == "float64" else np.float32
    width = PACK // of_type.itemsize
    t = Tensor((length,), of_type)
    for place, other, target in itertools.product((0, 1, width - 1), repeat=3):
        memory = aligned_zeros(3 * 64 * of_type.itemsize).view(of_type).reshape(3, 64)
        memory[:] = np.arange(3 * 64).reshape(3, 64)
        starts = {"input0": place, "input1": other, "output": target}
        buffers = {role: row[start:][:length] for row, (role, start) in zip(memory, starts.items(), strict=True)}
        expected = memory.copy()
        expected[2, target:][:length] = 2 * buffers["input0"] + buffers["input1"]
        with fake_cuda():
            for call in Cuda(library_type).prepare(WeightedSum((t, t), t, (2.0, 1.0))).bind(buffers):
                call()
        np.testing.assert_array_equal(memory, expected)
