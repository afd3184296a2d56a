"""cuDNN 9's shared library: the C types of every function that is called."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_float, c_int, c_size_t, c_void_p
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


# A type for each kind of descriptor: a descriptor of another kind raises a TypeError.
class TensorDescriptor(c_void_p):
    """cudnnTensorDescriptor_t."""


class FilterDescriptor(c_void_p):
    """cudnnFilterDescriptor_t."""


class ConvolutionDescriptor(c_void_p):
    """cudnnConvolutionDescriptor_t."""


DESCRIPTORS = (TensorDescriptor, FilterDescriptor, ConvolutionDescriptor)

# Short names for the table.
_H, _T, _F, _C = Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor
_M = c_void_p
"""void *: data, or the host's float or double that alpha and beta are."""
_E = c_int
"""Any enum."""
_I, _S = c_int, c_size_t
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
    "cudnnSetFilterNdDescriptor": (_F, _E, _E, _I, _IS),
    "cudnnSetConvolutionNdDescriptor": (_C, _I, _IS, _IS, _IS, _E, _E),
    "cudnnSetConvolutionGroupCount": (_C, _I),
    "cudnnSetConvolutionMathType": (_C, _E),
    # Convolution.
    "cudnnFindConvolutionForwardAlgorithmEx": (_H, _T, _M, _F, _M, _C, _T, _M, *_FOUND, _M, _S),
    "cudnnFindConvolutionBackwardDataAlgorithmEx": (_H, _F, _M, _T, _M, _C, _T, _M, *_FOUND, _M, _S),
    "cudnnFindConvolutionBackwardFilterAlgorithmEx": (_H, _T, _M, _T, _M, _C, _F, _M, *_FOUND, _M, _S),
    "cudnnGetConvolutionForwardWorkspaceSize": (_H, _T, _F, _C, _T, _E, _SIZE),
    "cudnnGetConvolutionBackwardDataWorkspaceSize": (_H, _F, _T, _C, _T, _E, _SIZE),
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": (_H, _T, _T, _C, _F, _E, _SIZE),
    "cudnnConvolutionForward": (_H, _M, _T, _M, _F, _M, _C, _E, _M, _S, _M, _T, _M),
    "cudnnConvolutionBackwardData": (_H, _M, _F, _M, _T, _M, _C, _E, _M, _S, _M, _T, _M),
    "cudnnConvolutionBackwardFilter": (_H, _M, _T, _M, _T, _M, _C, _E, _M, _S, _M, _F, _M),
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
