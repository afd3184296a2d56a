"""Concatenations of tensors that lie in different orders."""

from __future__ import annotations

import itertools

import pytest

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import ConcatBackward, ConcatForward
from crossbow.types import Layout
from tests.kernels.cuda.running import Tensors, agree
from tests.kernels.cuda.test_copy import LAST, PLAIN, numbered, tensor


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4])
@pytest.mark.parametrize("layouts", list(itertools.product((PLAIN, LAST), repeat=3)), ids=str)
def test_concatenations_of_any_layouts(axis: int, layouts: tuple[Layout, Layout, Layout]) -> None:
    sizes = [[2, 3, 4, 5], [2, 3, 4, 5]]
    sizes[1][axis] = 7
    whole = list(sizes[0])
    whole[axis] += 7
    x0, x1 = (tensor(tuple(shape), layout) for shape, layout in zip(sizes, layouts[:2], strict=True))
    y = tensor(tuple(whole), layouts[2])

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(ConcatForward([tensors["input0"], tensors["input1"]], tensors["output"], axis))

    values = {"input0": numbered(x0.shape), "input1": -numbered(x1.shape)}
    agree(forward, {"input0": x0, "input1": x1, "output": y}, values)
    for dx, start in ((x0, 0), (x1, sizes[0][axis])):

        def backward(library: KernelLibrary, tensors: Tensors, start: int = start) -> PreparedKernel:
            return library.prepare(
                ConcatBackward(tensors["output_gradient"], tensors["input_gradient"], axis % 4, start)
            )

        agree(backward, {"output_gradient": y, "input_gradient": dx}, {"output_gradient": numbered(y.shape)})


def test_more_inputs_than_nine_come_in_their_order() -> None:
    """`input10` after `input9`."""
    tensors = {f"input{number}": tensor((3, 1), PLAIN) for number in range(11)}
    values = {role: numbered((3, 1)) + 10 * number for number, role in enumerate(tensors)}

    def forward(library: KernelLibrary, tensors: Tensors) -> PreparedKernel:
        return library.prepare(ConcatForward([tensors[role] for role in values], tensors["output"], 1))

    agree(forward, {**tensors, "output": tensor((3, 11), PLAIN)}, values)
