"""A kernel library that prepares a kernel once for equal requests."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.library import KernelLibrary, MixedPrecision
from crossbow.kernels.requests import Request, RequestType
from crossbow.types import Layout, Shape


def remembering(library: KernelLibrary) -> KernelLibrary:
    """The library, with equal requests answered by the same prepared kernel: deep networks repeat their layers.

    A prepared kernel holds no buffers, so operators can share it as learners do. It is made for the number of threads
    that the calling thread has, so one memory serves one program.
    """
    return _Remembering(library)


class _Remembering:
    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self._known: dict[Request, PreparedKernel] = {}
        self.name: str = library.name
        self.dtypes: tuple[np.dtype[np.generic], ...] = library.dtypes
        self.fused_relu: frozenset[RequestType] = library.fused_relu
        self.mixed: MixedPrecision | None = library.mixed

    def layout(self, shape: Shape) -> Layout:
        return self._library.layout(shape)

    def prepare(self, request: Request) -> PreparedKernel:
        if request not in self._known:
            self._known[request] = self._library.prepare(request)
        return self._known[request]
