"""The interface of a kernel library, which answers requests with prepared kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import Request, RequestType
from crossbow.types import Array, Layout, Shape, Tensor


class MixedPrecision(Protocol):
    """A library's kernels for 16-bit tensors, in addition to its own type.

    16-bit gradients may be scaled, so that small ones do not underflow, by a loss scale that changes during training,
    in the runtime's array `scaling`.
    """

    dtype: np.dtype[np.generic]
    """The 16-bit type."""
    scales: bool
    """Whether gradients of that type are scaled. Gradients that overflow then count as zero."""

    def new_scaling(self) -> Array:
        """Initial value of a learner's `scaling`, on the host."""

    def convert(self, x: Tensor, y: Tensor, *, gradient: bool) -> PreparedKernel:
        """input0[, scaling] → output: a conversion of type. The tensors have the same layout."""

    def narrow_weights(self, *, training: bool) -> PreparedKernel:
        """weights[, scaling] → narrow_weights: whole vectors. training: whether the scale is also updated."""

    def widen_gradient(self, parts: Sequence[tuple[slice, str]]) -> PreparedKernel:
        """narrow_gradient, gradient[, scaling] → gradient: whole vectors. Parts were computed in 16 bits ("narrow"), or
        are already in `gradient`, scaled ("scaled") or final ("ready"). With a scale, a gradient with a non-finite
        number becomes zero."""


class KernelLibrary(Protocol):
    """The kernels of a device. The reference library is the specification; others differ only in speed and rounding."""

    name: str
    dtypes: tuple[np.dtype[np.generic], ...]
    """Floating-point types that the library supports."""
    fused_relu: frozenset[RequestType]
    """Requests whose kernels include the ReLU after their operator, if that is faster; `PoolingBackward` includes the
    gradient of the ReLU before a max pooling."""
    fused_sum: frozenset[RequestType]
    """Requests whose kernels include the sum of their result and another tensor, if that is faster."""
    fused_bias: frozenset[RequestType]
    """Requests whose kernels add a bias in the same pass. Predictions then fold normalisations into them."""

    @property
    def mixed(self) -> MixedPrecision | None:
        """Additional kernels for 16-bit tensors, or None if operators do not use them."""

    def layout(self, shape: Shape) -> Layout:
        """The layout of an activation of this shape."""

    def prepare(self, request: Request) -> PreparedKernel:
        """The kernel for a request."""
