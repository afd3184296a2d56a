"""Multi-head attention of a sequence to itself, and its gradient."""

from __future__ import annotations

import math

import numpy as np

from crossbow.kernels.reference.prepare import Floats, computes
from crossbow.kernels.requests import SelfAttentionBackward, SelfAttentionForward
from crossbow.kernels.requests.products import probabilities_of
from crossbow.types import Array


@computes(
    SelfAttentionForward,
    kept=lambda request: probabilities_of(request.x, request.heads) if "kept" in request.writes else 0,
)
def forward(*, input0: Floats, output: Floats, heads: int, causal: bool, kept: Array | None = None) -> None:
    """y = softmax(q kᵀ / √d) v."""
    q, k, v = _parts(input0, heads)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores[..., ~np.tri(scores.shape[-1], dtype=bool)] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    p = powers / powers.sum(axis=-1, keepdims=True)
    if kept is not None:
        _probabilities(kept, input0, heads)[...] = p
    output[...] = (p @ v).swapaxes(1, 2).reshape(output.shape)


@computes(SelfAttentionBackward)
def backward(*, input0: Floats, output_gradient: Floats, kept: Array, input_gradient: Floats, heads: int) -> None:
    """ds = p · (dp − Σ p · dp), with dp = dy vᵀ; dq = ds k / √d, dk = dsᵀ q / √d, dv = pᵀ dy."""
    q, k, v = _parts(input0, heads)
    dq, dk, dv = _parts(input_gradient, heads)
    p, (examples, length, width) = _probabilities(kept, input0, heads), output_gradient.shape
    dy = output_gradient.reshape(examples, length, heads, width // heads).swapaxes(1, 2)
    dp = dy @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dq[...] = ds @ k
    dk[...] = ds.swapaxes(-1, -2) @ q
    dv[...] = p.swapaxes(-1, -2) @ dy


def _parts(x: Floats, heads: int) -> tuple[Floats, Floats, Floats]:
    """Views of the queries, keys and values: (N, heads, T, d) each."""
    examples, length, width = x.shape
    q, k, v = x.reshape(examples, length, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)
    return q, k, v


def _probabilities(kept: Array, x: Floats, heads: int) -> Floats:
    examples, length, _ = x.shape
    found: Floats = kept.view(x.dtype).reshape(examples, heads, length, length)
    return found
