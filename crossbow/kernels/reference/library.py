"""The reference library, which answers requests with NumPy kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.reference.prepare import REFERENCE
from crossbow.kernels.registry import Rooms, load
from crossbow.kernels.requests import ConvolutionForward, Request, RequestType
from crossbow.types import ConfigurationError, Layout, Shape

load("crossbow.kernels.reference")


class Reference:
    """NumPy kernels in one floating-point type: the specification of all other libraries.

    Activations and variables are in logical order, although the kernels accept arrays with any strides.
    """

    name: str = "reference"
    fused_relu: frozenset[RequestType] = frozenset()
    fused_sum: frozenset[RequestType] = frozenset()
    fused_bias: frozenset[RequestType] = frozenset((ConvolutionForward,))
    mixed = None
    rooms = Rooms("Reference", REFERENCE)

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        kind: np.dtype[np.generic] = np.dtype(dtype)
        if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ConfigurationError(f"Reference: dtype must be float32 or float64. Received: {kind}")
        self.dtypes: tuple[np.dtype[np.generic], ...] = (kind,)

    def layout(self, shape: Shape) -> Layout:
        return Layout.PLAIN

    def prepare(self, request: Request) -> PreparedKernel:
        return self.rooms.prepare(request)
