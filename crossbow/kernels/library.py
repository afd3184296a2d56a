"""What a kernel library is: it answers requests with prepared kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import Request, RequestType
from crossbow.types import Array, Layout, Shape, Tensor


class MixedPrecision(Protocol):
    """A library's kernels for tensors that consist of numbers of 16 bits, beside its own type.

    Gradients of 16 bits may be scaled, so that small ones do not become zero: by a number that changes as training
    goes on, in the runtime's array `scaling`.
    """

    dtype: np.dtype[np.generic]
    """That of 16 bits."""
    scales: bool
    """Whether gradients of that type are scaled. Those that are too large for it then count as zero."""

    def new_scaling(self) -> Array:
        """What a learner's `scaling` is when training begins, on the host."""

    def convert(self, x: Tensor, y: Tensor, *, gradient: bool) -> PreparedKernel:
        """input0[, scaling] → output: one type to the other. The tensors lie in the same order."""

    def narrow_weights(self, *, training: bool) -> PreparedKernel:
        """weights[, scaling] → narrow_weights: whole vectors. training: the scale is also brought up to date."""

    def widen_gradient(self, parts: Sequence[tuple[slice, str]]) -> PreparedKernel:
        """narrow_gradient, gradient[, scaling] → gradient: whole vectors, of which parts were computed in 16 bits
        ("narrow"), others are in their place but "scaled", and others "ready". With a scale, a gradient with a number
        that is not finite becomes zero."""


class KernelLibrary(Protocol):
    """A device's kernels. The reference library is the specification; the others differ in speed only."""

    name: str
    dtypes: tuple[np.dtype[np.generic], ...]
    """Floating-point types that the library computes in."""
    fused_relu: frozenset[RequestType]
    """Requests with which a kernel of the library takes in the ReLU after its operator, and gains by it."""

    @property
    def mixed(self) -> MixedPrecision | None:
        """What else is needed where operators compute with tensors of 16 bits. None where none do."""

    def layout(self, shape: Shape) -> Layout:
        """The layout of an activation of this shape."""

    def prepare(self, request: Request) -> PreparedKernel:
        """The kernel that answers a request."""
