"""Self-attention on the emulated GPU: sequences and heads longer than a block has threads, and one position."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.launch import BLOCK
from crossbow.ops import SelfAttention
from crossbow.testing import run_operator
from crossbow.types import Phase, Shape
from tests.kernels.cuda.fake import fake_cuda


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "heads"), [((1, BLOCK + 5, 3), 1), ((1, 3, 3 * (BLOCK + 5)), 1), ((2, 1, 12), 4), ((2, 9, 42), 2)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_it_agrees_with_the_reference(shape: Shape, heads: int, causal: bool) -> None:
    generator, kernel = np.random.default_rng(0), SelfAttention(heads, causal=causal)
    x = generator.standard_normal(shape)
    dy = generator.standard_normal((*shape[:2], shape[2] // 3))
    exact = run_operator(kernel, [x], output_gradient=dy, dtype=np.float64)
    with fake_cuda():
        received = run_operator(kernel, [x], output_gradient=dy, dtype=np.float64, device="cuda:0")
        checked = run_operator(kernel, [x], dtype=np.float64, device="cuda:0", phase=Phase.CHECK)
    np.testing.assert_allclose(received.outputs[0], exact.outputs[0], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(checked.outputs[0], received.outputs[0])
    np.testing.assert_allclose(received.input_gradients[0], exact.input_gradients[0], rtol=0, atol=1e-11)  # type: ignore[arg-type]
