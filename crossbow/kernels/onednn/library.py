"""The fast CPU library: kernels of our own where these gain, oneDNN's, compiled passes, and NumPy's. Float32."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.onednn.rooms import ONEDNN, PASSES, SIMD, WINOGRAD
from crossbow.kernels.reference.prepare import REFERENCE
from crossbow.kernels.registry import Rooms, load
from crossbow.kernels.requests import (
    BatchNormTraining,
    ConvolutionForward,
    InnerProductForward,
    Request,
    RequestType,
    WeightedSum,
)
from crossbow.types import Layout, Shape

FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)

load("crossbow.kernels.reference")
load("crossbow.kernels.onednn")


class OneDNN:
    """The fastest kernel that there is for a request: where one refuses, the next, and in the end the reference's."""

    name: str = "onednn"
    dtypes: tuple[np.dtype[np.generic], ...] = (FLOAT32,)
    mixed = None

    def __init__(self, *, winograd: bool = True) -> None:
        """winograd: whether convolutions may be computed by Winograd's filtering, which rounds more."""
        self.fused_relu: frozenset[RequestType] = frozenset(
            (BatchNormTraining, ConvolutionForward, InnerProductForward, WeightedSum)
        )
        self.rooms = Rooms("OneDNN", *((WINOGRAD,) if winograd else ()), SIMD, ONEDNN, PASSES, REFERENCE)

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if len(shape) == 4 else Layout.PLAIN

    def prepare(self, request: Request) -> PreparedKernel:
        return self.rooms.prepare(request)
