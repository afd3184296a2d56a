"""Self-attention by plain loops over heads, queries and keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import SelfAttentionForward
from crossbow.kernels.requests.products import probabilities_of
from crossbow.types import Phase
from tests.kernels.reference.running import nan, run, tensor


@pytest.mark.parametrize("causal", [False, True])
def test_by_loops(causal: bool) -> None:
    heads, length, depth = 2, 4, 3
    x = np.random.default_rng(1).standard_normal((2, length, 3 * heads * depth))
    t, y = tensor(x.shape), tensor((2, length, heads * depth))
    buffers: dict[str, Any] = {"input0": x, "output": nan(y.shape)}
    buffers["kept"] = np.zeros(probabilities_of(t, heads), np.uint8)
    run(Reference(np.float64).prepare(SelfAttentionForward(t, y, heads, causal, Phase.TRAIN)), **buffers)
    kept = buffers["kept"].view(np.float64).reshape(2, heads, length, length)
    for n, head, i in np.ndindex(2, heads, length):
        parts = x[n].reshape(length, 3, heads, depth)[:, :, head]
        seen = range(i + 1) if causal else range(length)
        powers = [np.exp(parts[i, 0] @ parts[s, 1] / np.sqrt(depth)) for s in seen]
        p = np.array(powers) / sum(powers)
        np.testing.assert_allclose(kept[n, head, i, : len(p)], p, rtol=1e-12)
        assert not kept[n, head, i, len(p) :].any()
        expected = sum(weight * parts[s, 2] for weight, s in zip(p, seen, strict=True))
        np.testing.assert_allclose(buffers["output"][n, i].reshape(heads, depth)[head], expected, rtol=1e-12)
