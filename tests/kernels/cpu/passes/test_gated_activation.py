"""The compiled activations with gates against the reference, in place and apart."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, SHAPES
from tests.kernels.cpu.comparisons import gate_activation

GATES = ("gelu", "gelu_tanh", "silu", "hard_swish")


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", GATES)
def test_it_agrees_with_the_reference(shape: Shape, gate: str) -> None:
    gate_activation(COMPILED, shape, gate, by="numba")


def test_tensors_in_different_orders_are_left_to_the_reference() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    assert COMPILED.prepare(GatedActivationForward(last, plain, "silu")).name.endswith("reference")
    assert COMPILED.prepare(GatedActivationBackward(last, plain, last, "silu")).name.endswith("reference")
