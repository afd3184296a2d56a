"""The fast CPU library, for float32: our own SIMD kernels, oneDNN's, compiled passes, and the reference's."""

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
    """Answers a request with the fastest kernel that supports it, which may be the reference's.

    Our own kernels are tried before oneDNN's if they are faster, and after them for requests that oneDNN rejects.
    Without oneDNN, they serve most requests, with one thread per learner.
    """

    dtypes: tuple[np.dtype[np.generic], ...] = (FLOAT32,)
    fused_relu: frozenset[RequestType] = frozenset(
        (BatchNormTraining, ConvolutionForward, InnerProductForward, WeightedSum)
    )
    fused_sum: frozenset[RequestType] = frozenset()
    fused_bias: frozenset[RequestType] = frozenset((ConvolutionForward,))
    mixed = None

    def __init__(self, *, winograd: bool = True, onednn: bool | None = None) -> None:
        """winograd: whether convolutions may use Winograd's algorithm, whose rounding errors are larger. onednn:
        whether to use oneDNN; with None, it is used if it is usable."""
        used = why_unusable() is None if onednn is None else onednn
        self.name: str = "onednn" if used else "compiled"
        rooms = [*([WINOGRAD] if winograd else []), SIMD, *([ONEDNN] if used else []), PASSES, REFERENCE]
        self.rooms = Rooms("Cpu", *rooms)

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if len(shape) == 4 else Layout.PLAIN

    def prepare(self, request: Request) -> PreparedKernel:
        return self.rooms.prepare(request)
