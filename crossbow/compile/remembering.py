"""Caching of prepared kernels by request."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary, MixedPrecision
from crossbow.kernels.requests import Request, RequestType
from crossbow.types import Layout, Shape


class Remembering:
    """A library that returns the same prepared kernel for equal requests, because deep networks repeat layers.

    A prepared kernel has no buffers, so operators can share it, as learners do. It is prepared for the number of
    threads of the calling thread, so one cache serves one program.
    """

    def __init__(self, library: KernelLibrary) -> None:
        """library: the library that prepares the kernels."""
        self._library = library
        self._known: dict[Request, PreparedKernel] = {}
        self.name: str = library.name
        self.dtypes: tuple[np.dtype[np.generic], ...] = library.dtypes
        self.fused_relu: frozenset[RequestType] = library.fused_relu
        self.fused_sum: frozenset[RequestType] = library.fused_sum
        self.fused_bias: frozenset[RequestType] = library.fused_bias
        self.mixed: MixedPrecision | None = library.mixed

    def layout(self, shape: Shape) -> Layout:
        return self._library.layout(shape)

    def prepare(self, request: Request) -> PreparedKernel:
        if request not in self._known:
            self._known[request] = self._library.prepare(request)
        return self._known[request]
