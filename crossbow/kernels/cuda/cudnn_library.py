"""cuDNN 9's shared library: the C types of every function that is called."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from crossbow.kernels.cuda.shared_library import CUDNN, INSTALL, find
from crossbow.types import ConfigurationError

MAJOR = 9
"""The version whose interface this is."""


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


# A type for each kind of descriptor: a descriptor of another kind is refused with a TypeError.
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
    # Properties of descriptors.
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
"""Result types of the functions that do not return a status."""


def load() -> ctypes.CDLL:
    """Load the library and declare its functions. Raises ConfigurationError if it is absent or has another version."""
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
