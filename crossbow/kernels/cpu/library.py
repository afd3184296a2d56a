"""The fast CPU library: kernels of our own where these gain, oneDNN's, compiled passes, and NumPy's. Float32."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.cpu.onednn.shared_library import why_unusable
from crossbow.kernels.cpu.rooms import ONEDNN, PASSES, SIMD, WINOGRAD
from crossbow.kernels.interface import PreparedKernel
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
load("crossbow.kernels.cpu.simd")
load("crossbow.kernels.cpu.onednn")
load("crossbow.kernels.cpu.passes")


class Cpu:
    """The fastest kernel that there is for a request: where one refuses, the next, and in the end the reference's.

    Kernels of our own come before oneDNN's where they gain, and after them for what it refuses. Without oneDNN they
    take nearly everything, with one thread for each learner.
    """

    dtypes: tuple[np.dtype[np.generic], ...] = (FLOAT32,)
    mixed = None

    def __init__(self, *, winograd: bool = True, onednn: bool | None = None) -> None:
        """winograd: whether convolutions may be computed by Winograd's filtering, which rounds more. onednn: whether
        oneDNN may be used; None is where it can be."""
        used = why_unusable() is None if onednn is None else onednn
        self.name: str = "onednn" if used else "compiled"
        self.fused_relu: frozenset[RequestType] = frozenset(
            (BatchNormTraining, ConvolutionForward, InnerProductForward, WeightedSum)
        )
        rooms = [*([WINOGRAD] if winograd else []), SIMD, *([ONEDNN] if used else []), PASSES, REFERENCE]
        self.rooms = Rooms("Cpu", *rooms)

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if len(shape) == 4 else Layout.PLAIN

    def prepare(self, request: Request) -> PreparedKernel:
        return self.rooms.prepare(request)
