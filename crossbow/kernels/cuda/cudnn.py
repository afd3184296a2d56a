"""cuDNN 9's classic C interface through ctypes: functions named as the library names them, with their C types.

Functions are called through `check`, which raises `CudnnError` for a status that is not success. A `Descriptor` is
destroyed with its last reference.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import computed_in, current
from crossbow.kernels.cuda.shared_library import CUDNN, INSTALL, find
from crossbow.types import ConfigurationError, CrossbowError

MAJOR = 9
"""The version whose interface this is."""

# Constants, as in cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h, without CUDNN_ before their names.
STATUS_SUCCESS, STATUS_BAD_PARAM, STATUS_NOT_SUPPORTED = 0, 2000, 3000
DATA_FLOAT, DATA_DOUBLE, DATA_HALF, DATA_BFLOAT16 = 0, 1, 2, 9
DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH = 0, 1, 2, 3
NOT_PROPAGATE_NAN, PROPAGATE_NAN = 0, 1
NON_DETERMINISTIC, DETERMINISTIC = 0, 1
TENSOR_NCHW, TENSOR_NHWC = 0, 1
CONVOLUTION, CROSS_CORRELATION = 0, 1
POOLING_MAX, POOLING_AVERAGE_COUNT_INCLUDE_PADDING, POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 0, 1, 2
POOLING_MAX_DETERMINISTIC = 3
ACTIVATION_SIGMOID, ACTIVATION_RELU, ACTIVATION_TANH, ACTIVATION_CLIPPED_RELU, ACTIVATION_IDENTITY = 0, 1, 2, 3, 5
SOFTMAX_FAST, SOFTMAX_ACCURATE, SOFTMAX_LOG = 0, 1, 2
SOFTMAX_MODE_INSTANCE, SOFTMAX_MODE_CHANNEL = 0, 1
LRN_CROSS_CHANNEL_DIM1 = 0
BATCHNORM_PER_ACTIVATION, BATCHNORM_SPATIAL, BATCHNORM_SPATIAL_PERSISTENT = 0, 1, 2
OP_TENSOR_ADD, OP_TENSOR_MUL, OP_TENSOR_MIN, OP_TENSOR_MAX = 0, 1, 2, 3
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


class AlgorithmPerformance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t and cudnnConvolutionBwdFilterAlgoPerf_t."""

    _fields_ = (
        ("algo", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("mathType", c_int),
        ("reserved", c_int * 3),
    )


Handle = c_void_p
"""cudnnHandle_t, and cudaStream_t."""


# A type for each kind of descriptor: one given for another is refused with a TypeError.
class TensorDescriptor(c_void_p):
    """cudnnTensorDescriptor_t."""


class FilterDescriptor(c_void_p):
    """cudnnFilterDescriptor_t."""


class ConvolutionDescriptor(c_void_p):
    """cudnnConvolutionDescriptor_t."""


class PoolingDescriptor(c_void_p):
    """cudnnPoolingDescriptor_t."""


class ActivationDescriptor(c_void_p):
    """cudnnActivationDescriptor_t."""


class LRNDescriptor(c_void_p):
    """cudnnLRNDescriptor_t."""


class DropoutDescriptor(c_void_p):
    """cudnnDropoutDescriptor_t."""


class OpTensorDescriptor(c_void_p):
    """cudnnOpTensorDescriptor_t."""


DESCRIPTORS = (
    TensorDescriptor,
    FilterDescriptor,
    ConvolutionDescriptor,
    PoolingDescriptor,
    ActivationDescriptor,
    LRNDescriptor,
    DropoutDescriptor,
    OpTensorDescriptor,
)

# Short names for the table.
_H, _T, _F, _C = Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor
_P, _A, _L, _D, _O = PoolingDescriptor, ActivationDescriptor, LRNDescriptor, DropoutDescriptor, OpTensorDescriptor
_M = c_void_p
"""void *: data, or the host's float or double that alpha and beta are."""
_E = c_int
"""Any enum."""
_I, _S, _X = c_int, c_size_t, c_double
_IS = POINTER(c_int)
"""int [] or int *."""
_SIZE = POINTER(c_size_t)
_FOUND = (_I, _IS, POINTER(AlgorithmPerformance))
"""requestedAlgoCount, returnedAlgoCount, perfResults."""

PROTOTYPES: Mapping[str, tuple[Any, ...]] = {
    "cudnnGetVersion": (),
    "cudnnGetErrorString": (_E,),
    "cudnnGetLastErrorString": (ctypes.c_char_p, _S),
    "cudnnCreate": (POINTER(_H),),
    "cudnnDestroy": (_H,),
    "cudnnSetStream": (_H, _H),
    **{f"cudnnCreate{kind.__name__}": (POINTER(kind),) for kind in DESCRIPTORS},
    **{f"cudnnDestroy{kind.__name__}": (kind,) for kind in DESCRIPTORS},
    # What descriptors say.
    "cudnnSetTensorNdDescriptor": (_T, _E, _I, _IS, _IS),
    "cudnnSetTensorNdDescriptorEx": (_T, _E, _E, _I, _IS),
    "cudnnGetTensorNdDescriptor": (_T, _I, _IS, _IS, _IS, _IS),
    "cudnnSetFilterNdDescriptor": (_F, _E, _E, _I, _IS),
    "cudnnSetConvolutionNdDescriptor": (_C, _I, _IS, _IS, _IS, _E, _E),
    "cudnnSetConvolutionGroupCount": (_C, _I),
    "cudnnSetConvolutionMathType": (_C, _E),
    "cudnnGetConvolutionNdForwardOutputDim": (_C, _T, _F, _I, _IS),
    "cudnnSetPoolingNdDescriptor": (_P, _E, _E, _I, _IS, _IS, _IS),
    "cudnnGetPoolingNdForwardOutputDim": (_P, _T, _I, _IS),
    "cudnnSetActivationDescriptor": (_A, _E, _E, _X),
    "cudnnSetLRNDescriptor": (_L, c_uint, _X, _X, _X),
    "cudnnSetOpTensorDescriptor": (_O, _E, _E, _E),
    "cudnnDeriveBNTensorDescriptor": (_T, _T, _E),
    "cudnnDropoutGetStatesSize": (_H, _SIZE),
    "cudnnDropoutGetReserveSpaceSize": (_T, _SIZE),
    "cudnnSetDropoutDescriptor": (_D, _H, c_float, _M, _S, c_ulonglong),
    "cudnnRestoreDropoutDescriptor": (_D, _H, c_float, _M, _S, c_ulonglong),
    # Convolution.
    "cudnnGetConvolutionForwardAlgorithm_v7": (_H, _T, _F, _C, _T, *_FOUND),
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": (_H, _F, _T, _C, _T, *_FOUND),
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": (_H, _T, _T, _C, _F, *_FOUND),
    "cudnnFindConvolutionForwardAlgorithmEx": (_H, _T, _M, _F, _M, _C, _T, _M, *_FOUND, _M, _S),
    "cudnnFindConvolutionBackwardDataAlgorithmEx": (_H, _F, _M, _T, _M, _C, _T, _M, *_FOUND, _M, _S),
    "cudnnFindConvolutionBackwardFilterAlgorithmEx": (_H, _T, _M, _T, _M, _C, _F, _M, *_FOUND, _M, _S),
    "cudnnGetConvolutionForwardWorkspaceSize": (_H, _T, _F, _C, _T, _E, _SIZE),
    "cudnnGetConvolutionBackwardDataWorkspaceSize": (_H, _F, _T, _C, _T, _E, _SIZE),
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": (_H, _T, _T, _C, _F, _E, _SIZE),
    "cudnnConvolutionForward": (_H, _M, _T, _M, _F, _M, _C, _E, _M, _S, _M, _T, _M),
    "cudnnConvolutionBackwardData": (_H, _M, _F, _M, _T, _M, _C, _E, _M, _S, _M, _T, _M),
    "cudnnConvolutionBackwardFilter": (_H, _M, _T, _M, _T, _M, _C, _E, _M, _S, _M, _F, _M),
    "cudnnConvolutionBackwardBias": (_H, _M, _T, _M, _M, _T, _M),
    "cudnnConvolutionBiasActivationForward": (
        *(_H, _M, _T, _M, _F, _M, _C, _E, _M, _S),
        *(_M, _T, _M, _T, _M, _A, _T, _M),
    ),
    # The other operators.
    "cudnnPoolingForward": (_H, _P, _M, _T, _M, _M, _T, _M),
    "cudnnPoolingBackward": (_H, _P, _M, _T, _M, _T, _M, _T, _M, _M, _T, _M),
    "cudnnActivationForward": (_H, _A, _M, _T, _M, _M, _T, _M),
    "cudnnActivationBackward": (_H, _A, _M, _T, _M, _T, _M, _T, _M, _M, _T, _M),
    "cudnnSoftmaxForward": (_H, _E, _E, _M, _T, _M, _M, _T, _M),
    "cudnnSoftmaxBackward": (_H, _E, _E, _M, _T, _M, _T, _M, _M, _T, _M),
    "cudnnLRNCrossChannelForward": (_H, _L, _E, _M, _T, _M, _M, _T, _M),
    "cudnnLRNCrossChannelBackward": (_H, _L, _E, _M, _T, _M, _T, _M, _T, _M, _M, _T, _M),
    "cudnnBatchNormalizationForwardTraining": (
        *(_H, _E, _M, _M, _T, _M, _T, _M, _T, _M, _M),
        *(_X, _M, _M, _X, _M, _M),
    ),
    "cudnnBatchNormalizationForwardInference": (_H, _E, _M, _M, _T, _M, _T, _M, _T, _M, _M, _M, _M, _X),
    "cudnnBatchNormalizationBackward": (
        *(_H, _E, _M, _M, _M, _M, _T, _M, _T, _M, _T, _M),
        *(_T, _M, _M, _M, _X, _M, _M),
    ),
    "cudnnDropoutForward": (_H, _D, _T, _M, _T, _M, _M, _S),
    "cudnnDropoutBackward": (_H, _D, _T, _M, _T, _M, _M, _S),
    "cudnnAddTensor": (_H, _M, _T, _M, _M, _T, _M),
    "cudnnOpTensor": (_H, _O, _M, _T, _M, _M, _T, _M, _M, _T, _M),
    "cudnnSetTensor": (_H, _T, _M, _M),
    "cudnnScaleTensor": (_H, _T, _M, _M),
}
"""The types of every function's arguments, in the order of the C headers."""

RESULTS: Mapping[str, Any] = {
    "cudnnGetVersion": c_size_t,
    "cudnnGetErrorString": ctypes.c_char_p,
    "cudnnGetLastErrorString": None,
}
"""What the functions return that do not return a status."""


def load() -> ctypes.CDLL:
    """The library, its functions with their types. Raises ConfigurationError where it is absent or another version."""
    library = find(CUDNN).library
    for name, types in PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise _absent(f"a library without {name}")
        function.argtypes, function.restype = types, RESULTS.get(name, c_int)
    version = library.cudnnGetVersion()
    if version // 10_000 != MAJOR:
        raise _absent(f"version {version}")
    return library


def _absent(received: object) -> ConfigurationError:
    return ConfigurationError(f"expected cuDNN {MAJOR} for devices 'cuda:i': {INSTALL}. Received: {received}")


class CudnnError(CrossbowError, RuntimeError):
    """A call of cuDNN did not succeed. `status` is the library's number."""

    def __init__(self, call: str, status: int) -> None:
        library = api().cudnn
        text, detail = library.cudnnGetErrorString(status).decode(), ctypes.create_string_buffer(1024)
        library.cudnnGetLastErrorString(detail, len(detail))
        more = f": {detail.value.decode(errors='replace')}" if detail.value else ""
        super().__init__(f"{call} returned {status} ({text}){more}")
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether the library does not do what was asked, rather than that it failed at it."""
        return STATUS_BAD_PARAM <= self.status < STATUS_NOT_SUPPORTED + 1000


def check(name: str, *arguments: object) -> None:
    """Call a function of the library; raise CudnnError unless it succeeds."""
    status = getattr(api().cudnn, name)(*arguments)
    if status != STATUS_SUCCESS:
        raise CudnnError(name, status)


@dataclass(frozen=True)
class CudnnCall:
    """A function of the library's with all its arguments but the first, the handle: a call.

    The handle is that of the stream that the calling thread has set. What the arguments refer to lives as long.
    """

    name: str
    arguments: tuple[object, ...]
    references: tuple[object, ...] = ()
    capturable: ClassVar[bool] = True
    """Whether it may become a part of a CUDA graph."""

    def __call__(self) -> None:
        check(self.name, current().cudnn, *self.arguments)


class Descriptor:
    """A descriptor of one of DESCRIPTORS' types, an argument for functions; destroyed with its last reference."""

    def __init__(self, kind: type[c_void_p]) -> None:
        made = kind()
        check(f"cudnnCreate{kind.__name__}", ctypes.byref(made))
        self._as_parameter_ = made
        destroy: Callable[[c_void_p], int] = getattr(api().cudnn, f"cudnnDestroy{kind.__name__}")
        weakref.finalize(self, destroy, made).atexit = False  # the process's end frees them too, and in its own order


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
    """A cross-correlation over two or more spatial axes, with the same padding on both sides of each. dtype: of the
    tensors."""
    made = Descriptor(ConvolutionDescriptor)
    axes, computing = (integers(padding), integers(stride), integers(dilation)), DATA_TYPES[computed_in(dtype).name]
    check("cudnnSetConvolutionNdDescriptor", made, len(padding), *axes, CROSS_CORRELATION, computing)
    check("cudnnSetConvolutionGroupCount", made, groups)
    check("cudnnSetConvolutionMathType", made, math_type)
    return made


def pooling_descriptor(mode: int, kernel: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> Descriptor:
    """A pooling over two or three spatial axes; NaN is larger than everything."""
    made = Descriptor(PoolingDescriptor)
    axes = (integers(kernel), integers(padding), integers(stride))
    check("cudnnSetPoolingNdDescriptor", made, mode, PROPAGATE_NAN, len(kernel), *axes)
    return made


def activation_descriptor(mode: int, coefficient: float = 0.0) -> Descriptor:
    """An activation function; coefficient: the ceiling of ACTIVATION_CLIPPED_RELU."""
    made = Descriptor(ActivationDescriptor)
    check("cudnnSetActivationDescriptor", made, mode, PROPAGATE_NAN, coefficient)
    return made


def lrn_descriptor(size: int, alpha: float, beta: float, k: float) -> Descriptor:
    """Local response normalisation over `size` channels."""
    made = Descriptor(LRNDescriptor)
    check("cudnnSetLRNDescriptor", made, size, alpha, beta, k)
    return made


def op_tensor_descriptor(operation: int, dtype: np.dtype[np.generic]) -> Descriptor:
    """An operation on the elements of two tensors."""
    made = Descriptor(OpTensorDescriptor)
    check("cudnnSetOpTensorDescriptor", made, operation, DATA_TYPES[computed_in(dtype).name], PROPAGATE_NAN)
    return made


def integers(values: Sequence[int]) -> ctypes.Array[c_int]:
    """An int array, as an argument."""
    return (c_int * len(values))(*values)


def scalar(value: float, dtype: np.dtype[np.generic]) -> object:
    """alpha or beta, as an argument: a pointer to a number on the host."""
    return ctypes.byref(c_double(value) if dtype == np.float64 else c_float(value))
