"""Multi-head attention of a sequence to itself."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_boolean, check_integer, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SelfAttentionBackward, SelfAttentionForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class SelfAttention(Kernel):
    """Scaled dot-product attention: for every head, y = softmax(q kᵀ / √d) v, with the softmax over the keys.

    x: (N, T, 3 · D), the queries, keys and values of T positions side by side, D numbers each; y: (N, T, D). Each head
    uses d = D / heads of the D numbers. With `causal`, a position attends only to itself and to earlier positions.

    A transformer computes x with an `InnerProduct(3 * D, axis=-1)`, and applies another one with D outputs to y.
    Together they are multi-head attention as in torch.nn.MultiheadAttention, whose `in_proj_weight` has the same order.

    Source: Vaswani et al., Attention Is All You Need (arXiv:1706.03762, 2017), section 3.2. The original has no such
    operator.

    See also: `MatMul`, `SoftMax`, `Embedding`.
    """

    number_of_inputs: ClassVar[int | None] = 1

    heads: int = field(kw_only=False)
    """Number of heads, ≥ 1, which divides D."""
    causal: bool = False
    """Whether positions attend only to themselves and to earlier positions."""

    def __post_init__(self) -> None:
        check_integer(self, "heads", 1)
        check_boolean(self, "causal")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 3 or x[2] == 0 or x[2] % (3 * self.heads):
            expected = f"expected an input of shape (N, T, 3 · D), with D a multiple of heads={self.heads}"
            raise ValueError(f"{expected}. Received: {x}")
        return (*x[:2], x[2] // 3)

    def multiply_adds(self, *inputs: Shape) -> int:
        ((examples, length, width),) = inputs
        return 2 * math.prod((examples, length, length, width // 3))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(SelfAttentionForward(x, site.output, self.heads, self.causal, site.phase)),)

    def gradient(self, input: int = 0) -> Gradient:
        return SelfAttentionGradient(input=input)


@configuration
class SelfAttentionGradient(Gradient):
    """Gradient of a `SelfAttention`. With the probabilities p of a head and dp = dy vᵀ: ds = p · (dp − Σ p · dp), and
    dq = ds k / √d, dk = dsᵀ q / √d, dv = pᵀ dy."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, SelfAttention)
        (x,) = site.inputs
        return (site.library.prepare(SelfAttentionBackward(x, site.output, peer.heads, peer.causal)),)
