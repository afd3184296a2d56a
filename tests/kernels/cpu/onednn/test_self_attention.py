"""Self-attention of products and passes against the reference: with several threads, and what depends on the phase."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.requests import SelfAttentionForward
from crossbow.ops import SelfAttention
from crossbow.testing import run_operator
from crossbow.types import Phase
from tests.kernels.cpu.running import ONEDNN, tensor
from tests.operators.test_not_a_number import threads_of_onednn


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # with 30, most probabilities are near 0 or 1
def test_it_agrees_with_the_reference(causal: bool, threads: int, scale: float) -> None:
    generator, kernel = np.random.default_rng(0), SelfAttention(4, causal=causal)
    x = (scale * generator.standard_normal((5, 67, 96))).astype(np.float32)
    dy = generator.standard_normal((5, 67, 32)).astype(np.float32)
    exact = run_operator(kernel, [x], output_gradient=dy, dtype=np.float64)
    with threads_of_onednn(threads):
        fast = run_operator(kernel, [x], output_gradient=dy, device="cpu")
        checked = run_operator(kernel, [x], device="cpu", phase=Phase.CHECK)
    for received, expected in zip(
        (fast.outputs[0], fast.input_gradients[0]), (exact.outputs[0], exact.input_gradients[0]), strict=True
    ):
        assert received is not None
        assert expected is not None
        tolerance = 1e-5 * scale * np.abs(expected).max()
        np.testing.assert_allclose(received, expected, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(checked.outputs[0], fast.outputs[0])


def test_only_training_keeps_the_probabilities() -> None:
    x, y = tensor((2, 6, 24)), tensor((2, 6, 8))
    training, check = (ONEDNN.prepare(SelfAttentionForward(x, y, 2, False, phase)) for phase in Phase)
    assert (training.kept, training.workspace) == (2 * 2 * 6 * 6 * 4, 0)
    assert (check.kept, check.workspace) == (0, 192)
    assert "sgemm" in training.name
