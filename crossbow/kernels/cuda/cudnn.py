"""cuDNN 9's classic C interface through ctypes: functions under the library's names, with their C types.

Functions are called through `check`, which raises `CudnnError` for a status that is not success. A `Descriptor` is
destroyed with its last reference.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_double, c_float, c_int, c_void_p
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.cudnn_library import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from crossbow.kernels.cuda.launch import computed_in, current
from crossbow.types import CrossbowError

# Constants, as in cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h, without CUDNN_ before their names.
STATUS_SUCCESS, STATUS_BAD_PARAM, STATUS_NOT_SUPPORTED = 0, 2000, 3000
DATA_FLOAT, DATA_DOUBLE, DATA_HALF, DATA_BFLOAT16 = 0, 1, 2, 9
DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH = 0, 1, 2, 3
TENSOR_NCHW, TENSOR_NHWC = 0, 1
CROSS_CORRELATION = 1
CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CONVOLUTION_FWD_ALGO_GEMM = 0, 1, 2
CONVOLUTION_FWD_ALGO_DIRECT, CONVOLUTION_FWD_ALGO_FFT, CONVOLUTION_FWD_ALGO_FFT_TILING = 3, 4, 5
CONVOLUTION_FWD_ALGO_WINOGRAD, CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, CONVOLUTION_FWD_ALGO_COUNT = 6, 7, 8
CONVOLUTION_BWD_DATA_ALGO_0, CONVOLUTION_BWD_DATA_ALGO_1, CONVOLUTION_BWD_DATA_ALGO_FFT = 0, 1, 2
CONVOLUTION_BWD_DATA_ALGO_FFT_TILING, CONVOLUTION_BWD_DATA_ALGO_WINOGRAD = 3, 4
CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, CONVOLUTION_BWD_DATA_ALGO_COUNT = 5, 6
CONVOLUTION_BWD_FILTER_ALGO_0, CONVOLUTION_BWD_FILTER_ALGO_1, CONVOLUTION_BWD_FILTER_ALGO_FFT = 0, 1, 2
CONVOLUTION_BWD_FILTER_ALGO_3, CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD = 3, 4
CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING = 5, 6
CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7

DATA_TYPES: Mapping[str, int] = {
    "float32": DATA_FLOAT,
    "float64": DATA_DOUBLE,
    "float16": DATA_HALF,
    "bfloat16": DATA_BFLOAT16,
}
"""cudnnDataType_t of the types of numbers, by name."""


class CudnnError(CrossbowError, RuntimeError):
    """A failed call of cuDNN. `status` is the library's number."""

    def __init__(self, call: str, status: int) -> None:
        library = api().cudnn
        text, detail = library.cudnnGetErrorString(status).decode(), ctypes.create_string_buffer(1024)
        library.cudnnGetLastErrorString(detail, len(detail))
        more = f": {detail.value.decode(errors='replace')}" if detail.value else ""
        super().__init__(f"{call} returned {status} ({text}){more}")
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the library does not support the request, as opposed to an error."""
        return STATUS_BAD_PARAM <= self.status < STATUS_NOT_SUPPORTED + 1000


def check(name: str, *arguments: object) -> None:
    """Call a function of the library; raise CudnnError unless it succeeds."""
    status = getattr(api().cudnn, name)(*arguments)
    if status != STATUS_SUCCESS:
        raise CudnnError(name, status)


@dataclass(frozen=True)
class CudnnCall:
    """A call: a function of the library with all its arguments except the first, the handle.

    The handle belongs to the stream that the calling thread has set. The call keeps its arguments alive.
    """

    name: str
    arguments: tuple[object, ...]
    references: tuple[object, ...] = ()
    capturable: ClassVar[bool] = True
    """Whether it may become a part of a CUDA graph."""

    def __call__(self) -> None:
        check(self.name, current().cudnn, *self.arguments)


class Descriptor:
    """A descriptor of one of DESCRIPTORS' types, an argument of functions. It is destroyed with its last reference."""

    def __init__(self, kind: type[c_void_p]) -> None:
        made = kind()
        check(f"cudnnCreate{kind.__name__}", ctypes.byref(made))
        self._as_parameter_ = made
        destroy: Callable[[c_void_p], int] = getattr(api().cudnn, f"cudnnDestroy{kind.__name__}")
        weakref.finalize(self, destroy, made).atexit = False  # the end of the process also frees them, in its own order


def tensor_descriptor(sizes: Sequence[int], strides: Sequence[int], dtype: np.dtype[np.generic]) -> Descriptor:
    """A tensor of four or more axes; strides in elements."""
    made = Descriptor(TensorDescriptor)
    check("cudnnSetTensorNdDescriptor", made, DATA_TYPES[dtype.name], len(sizes), integers(sizes), integers(strides))
    return made


def filter_descriptor(sizes: Sequence[int], tensor_format: int, dtype: np.dtype[np.generic]) -> Descriptor:
    """The weights of a convolution, (outputs, channels of a group, *kernel): TENSOR_NCHW or TENSOR_NHWC in memory."""
    made = Descriptor(FilterDescriptor)
    check("cudnnSetFilterNdDescriptor", made, DATA_TYPES[dtype.name], tensor_format, len(sizes), integers(sizes))
    return made


def convolution_descriptor(
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    math_type: int,
    dtype: np.dtype[np.generic],
) -> Descriptor:
    """A cross-correlation over two or more spatial axes, with the same padding on both sides of each. dtype: the
    tensors' type."""
    made = Descriptor(ConvolutionDescriptor)
    axes, computing = (integers(padding), integers(stride), integers(dilation)), DATA_TYPES[computed_in(dtype).name]
    check("cudnnSetConvolutionNdDescriptor", made, len(padding), *axes, CROSS_CORRELATION, computing)
    check("cudnnSetConvolutionGroupCount", made, groups)
    check("cudnnSetConvolutionMathType", made, math_type)
    return made


def integers(values: Sequence[int]) -> ctypes.Array[c_int]:
    """An int array, as an argument."""
    return (c_int * len(values))(*values)


def scalar(value: float, dtype: np.dtype[np.generic]) -> object:
    """alpha or beta, as an argument: a pointer to a number on the host."""
    return ctypes.byref(c_double(value) if dtype == np.float64 else c_float(value))
