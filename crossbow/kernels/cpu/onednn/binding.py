"""oneDNN 3's C interface through ctypes: a table of the prototypes of all functions that are called.

`create` calls a function that creates an object, and returns the object as a `Handle`, which destroys it with its last
reference. A status other than success raises `OneDNNError` with the name of the function.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any

from crossbow.kernels.cpu.onednn.shared_library import library
from crossbow.kernels.registry import UnsupportedError

MAXIMUM_DIMENSIONS = 12

STATUSES = (
    "success", "out_of_memory", "invalid_arguments", "unimplemented", "last_impl_reached", "runtime_error",
    "not_required", "invalid_graph", "invalid_graph_op", "invalid_shape", "invalid_data_type",
)  # fmt: skip

# Constants, as in dnnl_types.h and dnnl_common_types.h (they are the same in 3.2 and 3.13).
CPU = 1
STREAM_IN_ORDER = 1
SCRATCHPAD_MODE_USER = 1
F32 = 3

FORWARD_TRAINING, FORWARD_INFERENCE = 64, 96

CONVOLUTION_DIRECT = 0x1
ELTWISE_RELU, ELTWISE_TANH, ELTWISE_LOGISTIC, ELTWISE_CLIP_V2 = 0x20, 0x21, 0x29, 0x2F
ELTWISE_GELU_TANH, ELTWISE_SWISH, ELTWISE_GELU_ERF = 0x2B, 0x2C, 0x31
ELTWISE_RELU_USE_DST, ELTWISE_TANH_USE_DST = 0x100, 0x101
ELTWISE_LOGISTIC_USE_DST, ELTWISE_CLIP_V2_USE_DST = 0x104, 0x106
POOLING_AVG_INCLUDE_PADDING, POOLING_AVG_EXCLUDE_PADDING = 0x2FF, 0x3FF
SOFTMAX_ACCURATE = 0x30000
LRN_ACROSS_CHANNELS, LRN_WITHIN_CHANNEL = 0xAFF, 0xBFF

TAG_ANY, TAG_A, TAG_AB, TAG_BA, TAG_ABC, TAG_ABCD, TAG_ACDB, TAG_ABCDE = 1, 2, 3, 14, 4, 5, 22, 6
TAG_ABCD16A16B, TAG_ABCD8A8B, TAG_ABCDE16B16C, TAG_ABCDE8B8C = 75, 100, 123, 149
"""Blocked: ABcd16a16b, ABcd8a8b, aBCde16b16c, aBCde8b8c."""

QUERY_IMPL_INFO_STR = 8
QUERY_STRIDES = 14
QUERY_WEIGHTS_MD, QUERY_DIFF_WEIGHTS_MD, QUERY_WORKSPACE_MD, QUERY_SCRATCHPAD_MD = 131, 132, 135, 136
QUERY_INNER_NBLKS_S32, QUERY_INNER_BLKS, QUERY_INNER_IDXS = 263, 264, 265

ARG_SRC, ARG_DST, ARG_WEIGHTS, ARG_BIAS, ARG_WORKSPACE, ARG_SCRATCHPAD = 1, 17, 33, 41, 64, 80
ARG_DIFF_SRC, ARG_DIFF_DST, ARG_DIFF_WEIGHTS = 129, 145, 161


class OneDNNError(UnsupportedError):
    """A function returned a status other than success. `status` is the library's number."""

    def __init__(self, function: str, status: int) -> None:
        text = STATUSES[status] if 0 <= status < len(STATUSES) else "unknown status"
        super().__init__(f"{function} returned {status} ({text})")
        self.status = status


# A type for each kind of object: an object of another kind raises a TypeError.
class DnnlEngine(c_void_p):
    """dnnl_engine_t."""


class DnnlStream(c_void_p):
    """dnnl_stream_t."""


class DnnlMemoryDesc(c_void_p):
    """dnnl_memory_desc_t."""


class DnnlMemory(c_void_p):
    """dnnl_memory_t."""


class DnnlPrimitiveAttr(c_void_p):
    """dnnl_primitive_attr_t."""


class DnnlPrimitiveDesc(c_void_p):
    """dnnl_primitive_desc_t."""


class DnnlPrimitive(c_void_p):
    """dnnl_primitive_t."""


DESTROYERS: Mapping[type[c_void_p], str] = {
    DnnlEngine: "dnnl_engine_destroy",
    DnnlStream: "dnnl_stream_destroy",
    DnnlMemoryDesc: "dnnl_memory_desc_destroy",
    DnnlMemory: "dnnl_memory_destroy",
    DnnlPrimitiveAttr: "dnnl_primitive_attr_destroy",
    DnnlPrimitiveDesc: "dnnl_primitive_desc_destroy",
    DnnlPrimitive: "dnnl_primitive_destroy",
}


class Dims:
    """dnnl_dims_t: sizes, strides or padding of up to 12 dimensions. Arguments are sequences of integers."""

    @classmethod
    def from_param(cls, values: Sequence[int]) -> ctypes.Array[c_int64]:
        return (c_int64 * MAXIMUM_DIMENSIONS)(*values)


class ExecutionArgument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (("arg", c_int), ("memory", c_void_p))


# Short names for the table.
_E, _D, _A, _P = DnnlEngine, DnnlMemoryDesc, DnnlPrimitiveAttr, DnnlPrimitiveDesc
_I, _F = c_int, c_float
"""An int or any enumeration, and a float."""
_KIND = c_int
"""dnnl_prop_kind_t or dnnl_alg_kind_t."""
_WINDOW = (Dims, Dims, Dims, Dims)
"""Convolution: strides, dilates, padding_l, padding_r."""
_POOL = (Dims, Dims, Dims, Dims, Dims)
"""Pooling: strides, kernel, dilation, padding_l, padding_r."""
_PD = POINTER(DnnlPrimitiveDesc)
_SIZES = (c_int64, c_int64, c_int64)

PROTOTYPES: Mapping[str, tuple[Any, ...]] = {
    "dnnl_engine_create": (POINTER(_E), _I, c_size_t),
    "dnnl_stream_create": (POINTER(DnnlStream), _E, c_uint),
    "dnnl_memory_create": (POINTER(DnnlMemory), _D, _E, c_void_p),
    **{name: (kind,) for kind, name in DESTROYERS.items()},
    # Memory descriptors.
    "dnnl_memory_desc_create_with_tag": (POINTER(_D), _I, Dims, _I, _I),
    "dnnl_memory_desc_create_with_strides": (POINTER(_D), _I, Dims, _I, Dims),
    "dnnl_memory_desc_clone": (POINTER(_D), _D),
    "dnnl_memory_desc_equal": (_D, _D),
    "dnnl_memory_desc_get_size": (_D,),
    "dnnl_memory_desc_query": (_D, _I, c_void_p),
    # Primitives.
    "dnnl_primitive_attr_create": (POINTER(_A),),
    "dnnl_primitive_attr_set_scratchpad_mode": (_A, _I),
    "dnnl_primitive_desc_query": (_P, _I, _I, c_void_p),
    "dnnl_primitive_desc_query_md": (_P, _I, _I),
    "dnnl_primitive_create": (POINTER(DnnlPrimitive), _P),
    "dnnl_primitive_execute": (DnnlPrimitive, DnnlStream, _I, POINTER(ExecutionArgument)),
    "dnnl_sgemm": (c_char, c_char, *_SIZES, _F, c_void_p, c_int64, c_void_p, c_int64, _F, c_void_p, c_int64),
    # Primitive descriptors: forward has a propagation kind; backward ends with the forward descriptor as a hint.
    "dnnl_reorder_primitive_desc_create": (_PD, _D, _E, _D, _E, _A),
    "dnnl_convolution_forward_primitive_desc_create": (_PD, _E, _KIND, _KIND, _D, _D, _D, _D, *_WINDOW, _A),
    "dnnl_convolution_backward_data_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, *_WINDOW, _P, _A),
    "dnnl_convolution_backward_weights_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, _D, *_WINDOW, _P, _A),
    "dnnl_inner_product_forward_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, _D, _A),
    "dnnl_inner_product_backward_data_primitive_desc_create": (_PD, _E, _D, _D, _D, _P, _A),
    "dnnl_inner_product_backward_weights_primitive_desc_create": (_PD, _E, _D, _D, _D, _D, _P, _A),
    "dnnl_pooling_forward_primitive_desc_create": (_PD, _E, _KIND, _KIND, _D, _D, *_POOL, _A),
    "dnnl_pooling_backward_primitive_desc_create": (_PD, _E, _KIND, _D, _D, *_POOL, _P, _A),
    "dnnl_eltwise_forward_primitive_desc_create": (_PD, _E, _KIND, _KIND, _D, _D, _F, _F, _A),
    "dnnl_eltwise_backward_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, _F, _F, _P, _A),
    "dnnl_lrn_forward_primitive_desc_create": (_PD, _E, _KIND, _KIND, _D, _D, c_int64, _F, _F, _F, _A),
    "dnnl_lrn_backward_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, c_int64, _F, _F, _F, _P, _A),
    "dnnl_matmul_primitive_desc_create": (_PD, _E, _D, _D, _D, _D, _A),
    "dnnl_softmax_forward_primitive_desc_create": (_PD, _E, _KIND, _KIND, _D, _D, _I, _A),
    "dnnl_softmax_backward_primitive_desc_create": (_PD, _E, _KIND, _D, _D, _D, _I, _P, _A),
}
"""Types of the arguments of every function, as declared in dnnl.h."""

RESULTS: Mapping[str, type] = {"dnnl_memory_desc_get_size": c_size_t, "dnnl_primitive_desc_query_md": c_void_p}
"""Types of results; the other functions return an int, which is usually a status."""


@functools.cache
def function(name: str) -> Any:
    """A function of the library with its prototype."""
    found = getattr(library(), name)
    found.argtypes = PROTOTYPES[name]
    found.restype = RESULTS.get(name, c_int)
    return found


def function_address(name: str) -> int:
    """The address of a function of the library, for native task lists."""
    address = ctypes.cast(getattr(library(), name), c_void_p).value
    assert address is not None
    return address


def call(name: str, *arguments: object) -> None:
    """Call a function that returns a status. Raises OneDNNError unless it is success."""
    status = function(name)(*arguments)
    if status:
        raise OneDNNError(name, status)


class Handle:
    """An object of the library, which is destroyed with its last reference. Functions take it as an argument."""

    __slots__ = ("_as_parameter_", "_destroy", "value")

    def __init__(self, made: c_void_p) -> None:
        assert made.value is not None
        self.value: int = made.value
        self._as_parameter_ = made
        self._destroy: Callable[[c_void_p], object] = function(DESTROYERS[type(made)])

    def __del__(self) -> None:
        self._destroy(self._as_parameter_)


def create(name: str, *arguments: object) -> Handle:
    """Call a function whose first argument receives the object that it creates."""
    made: c_void_p = PROTOTYPES[name][0]._type_()
    call(name, ctypes.byref(made), *arguments)
    return Handle(made)


def shared(make: Callable[[], Handle]) -> Callable[[], Handle]:
    """Decorator: all threads receive the same handle, which is made once. With `functools.cache` alone, two threads
    could each make one, of which only one is kept; the other would be destroyed while descriptors refer to it."""
    lock, made = threading.Lock(), list[Handle]()

    @functools.wraps(make)
    def handle() -> Handle:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return handle


def primitive_desc(name: str, *arguments: object) -> Handle:
    """The descriptor of a primitive, as "convolution_forward"."""
    return create(f"dnnl_{name}_primitive_desc_create", *arguments)


def memory_desc(sizes: Sequence[int], tag: int) -> Handle:
    """The descriptor of float32 memory whose layout is a format tag."""
    return create("dnnl_memory_desc_create_with_tag", len(sizes), sizes, F32, tag)


def strided_memory_desc(sizes: Sequence[int], strides: Sequence[int]) -> Handle:
    """The descriptor of float32 memory with these strides, in elements."""
    return create("dnnl_memory_desc_create_with_strides", len(sizes), sizes, F32, strides)


def equal(left: Handle, right: Handle) -> bool:
    """Whether two memory descriptors are equal."""
    return bool(function("dnnl_memory_desc_equal")(left, right))


def size(descriptor: Handle) -> int:
    """Size in bytes of a memory descriptor's memory."""
    return int(function("dnnl_memory_desc_get_size")(descriptor))


def query_dims(descriptor: Handle, what: int, count: int) -> tuple[int, ...]:
    """A property of a memory descriptor that is an array of `count` sizes."""
    result = POINTER(c_int64)()
    call("dnnl_memory_desc_query", descriptor, what, ctypes.byref(result))
    return tuple(result[i] for i in range(count))


def query_int(descriptor: Handle, what: int) -> int:
    """A property of a memory descriptor that is an int."""
    result = c_int()
    call("dnnl_memory_desc_query", descriptor, what, ctypes.byref(result))
    return result.value


def query_string(descriptor: Handle, what: int) -> str:
    """A property of a primitive descriptor that is a string."""
    result = c_char_p()
    call("dnnl_primitive_desc_query", descriptor, what, 0, ctypes.byref(result))
    return (result.value or b"").decode()


def query_memory_desc(descriptor: Handle, what: int) -> Handle | None:
    """A copy of a memory descriptor of a primitive descriptor, or None if it has none."""
    found = function("dnnl_primitive_desc_query_md")(descriptor, what, 0)
    return create("dnnl_memory_desc_clone", DnnlMemoryDesc(found)) if found else None


def execution_arguments(memories: Mapping[int, Handle]) -> ctypes.Array[ExecutionArgument]:
    """The array of arguments of an execution."""
    arguments = [ExecutionArgument(argument, memory.value) for argument, memory in memories.items()]
    return (ExecutionArgument * len(arguments))(*arguments)
