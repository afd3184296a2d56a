"""The kernel library for NVIDIA GPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from crossbow.kernels.cuda import convolution
from crossbow.kernels.cuda.launch import REALS
from crossbow.kernels.cuda.mixed import Mixed, narrow_type
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.registry import Rooms, load
from crossbow.kernels.requests import (
    BatchNormTraining,
    ConvolutionBackwardData,
    ConvolutionForward,
    InnerProductForward,
    PoolingBackward,
    Request,
    RequestType,
    WeightedSum,
)
from crossbow.types import ConfigurationError, Layout, Shape

load("crossbow.kernels.cuda")


class Cuda:
    """Kernels for NVIDIA GPUs, in one floating-point type: cuDNN's and cuBLAS's, and our own for all other requests.

    `narrow`: the name of a 16-bit type, float16 or bfloat16, that tensors may have in addition to float32. Images
    are channels-last if `channels_last` is true. None means true if factors may have 16 bits or be rounded to TF32,
    because the tensor cores' kernels need this order. Calls go to the stream that the calling thread has set
    (`launch.on`), and return before the GPU is done. The handle's math mode determines the rounding of matrix products.
    """

    name: str = "cuda"

    def __init__(
        self,
        dtype: DTypeLike = np.float32,
        *,
        channels_last: bool | None = None,
        deterministic: bool = False,
        tf32: bool = False,
        narrow: str | None = None,
    ) -> None:
        kind: np.dtype[np.generic] = np.dtype(dtype)
        if kind.name not in REALS:
            raise ConfigurationError(f"Cuda: dtype must be {' or '.join(REALS)}. Received: {kind}")
        self.dtypes: tuple[np.dtype[np.generic], ...] = (kind,)
        self.fused_relu: frozenset[RequestType] = frozenset(
            (BatchNormTraining, ConvolutionForward, InnerProductForward, PoolingBackward, WeightedSum)
        )
        self.fused_sum: frozenset[RequestType] = frozenset((BatchNormTraining, ConvolutionBackwardData))
        self.fused_bias: frozenset[RequestType] = frozenset()
        self.mixed = None if narrow is None else Mixed(narrow_type(narrow))
        tensor_cores = tf32 or narrow is not None
        self.channels_last = tensor_cores if channels_last is None else channels_last
        self.rooms = Rooms("Cuda", convolution.kernels(convolution.ConvolutionArithmetic(deterministic, tf32)), CUDA)

    def layout(self, shape: Shape) -> Layout:
        return Layout.CHANNELS_LAST if self.channels_last and len(shape) == 4 else Layout.PLAIN

    def prepare(self, request: Request) -> PreparedKernel:
        return self.rooms.prepare(request)
