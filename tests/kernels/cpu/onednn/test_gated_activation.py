"""oneDNN's activations with gates against the reference, and the gate that it leaves to the passes."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import GatedActivationForward
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.comparisons import gate_activation
from tests.kernels.cpu.running import FLOAT32, ONEDNN, SHAPES


@pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", ["gelu", "gelu_tanh", "silu"])
def test_it_agrees_with_the_reference(shape: Shape, gate: str) -> None:
    gate_activation(ONEDNN, shape, gate, by=":")


def test_others_are_left_to_the_passes() -> None:
    t, six = Tensor((2, 3), FLOAT32), Tensor((1, 2, 1, 2, 1, 2), FLOAT32)
    assert ONEDNN.prepare(GatedActivationForward(t, t, "hard_swish")).name.endswith("numba")
    assert ONEDNN.prepare(GatedActivationForward(six, six, "gelu")).name.endswith("numba")
    x, last = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.PLAIN, Layout.CHANNELS_LAST))
    assert ":" not in ONEDNN.prepare(GatedActivationForward(x, last, "gelu")).name
    assert ":" in ONEDNN.prepare(GatedActivationForward(last, last, "gelu")).name  # a primitive of the library
