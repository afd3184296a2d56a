"""oneDNN 3.2's C interface through ctypes: functions named as the library names them, nothing added but ownership.

Whatever the library creates is returned as a `Handle` that destroys it with its last reference. A status that is not
success raises `OneDNNError` with the name of the call.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crossbow.kernels.registry import UnsupportedError

PACKAGE = "onednn-cpu-gomp"
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

FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD, BACKWARD_DATA = 64, 96, 128, 160

CONVOLUTION_DIRECT = 0x1
ELTWISE_RELU, ELTWISE_TANH, ELTWISE_LOGISTIC, ELTWISE_CLIP_V2 = 0x20, 0x21, 0x29, 0x2F
ELTWISE_RELU_USE_DST, ELTWISE_TANH_USE_DST = 0x100, 0x101
ELTWISE_LOGISTIC_USE_DST, ELTWISE_CLIP_V2_USE_DST = 0x104, 0x106
POOLING_MAX, POOLING_AVG_INCLUDE_PADDING, POOLING_AVG_EXCLUDE_PADDING = 0x1FF, 0x2FF, 0x3FF
SOFTMAX_ACCURATE = 0x30000
LRN_ACROSS_CHANNELS, LRN_WITHIN_CHANNEL = 0xAFF, 0xBFF
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_NORM_RELU = 0x1, 0x2, 0x4, 0x8

TAG_ANY, TAG_A, TAG_AB, TAG_BA, TAG_ABC, TAG_ABCD, TAG_ACDB, TAG_ABCDE = 1, 2, 3, 14, 4, 5, 22, 6
TAG_ABCD16A16B, TAG_ABCD8A8B, TAG_ABCDE16B16C, TAG_ABCDE8B8C = 75, 100, 123, 149
"""Blocked: ABcd16a16b, ABcd8a8b, aBCde16b16c, aBCde8b8c."""

QUERY_IMPL_INFO_STR = 8
QUERY_STRIDES = 14
QUERY_SRC_MD, QUERY_DIFF_SRC_MD, QUERY_WEIGHTS_MD, QUERY_DIFF_WEIGHTS_MD = 129, 130, 131, 132
QUERY_DST_MD, QUERY_DIFF_DST_MD, QUERY_WORKSPACE_MD, QUERY_SCRATCHPAD_MD = 133, 134, 135, 136
QUERY_DIMS, QUERY_PADDED_DIMS = 257, 260
QUERY_INNER_NBLKS_S32, QUERY_INNER_BLKS, QUERY_INNER_IDXS = 263, 264, 265

ARG_SRC, ARG_DST, ARG_WEIGHTS, ARG_BIAS, ARG_WORKSPACE, ARG_SCRATCHPAD = 1, 17, 33, 41, 64, 80
ARG_DIFF_SRC, ARG_DIFF_DST, ARG_DIFF_WEIGHTS, ARG_DIFF_BIAS = 129, 145, 161, 169
ARG_MEAN, ARG_VARIANCE, ARG_SCALE, ARG_SHIFT, ARG_DIFF_SCALE, ARG_DIFF_SHIFT = 49, 50, 51, 52, 255, 256


class OneDNNError(UnsupportedError):
    """A call of the library did not succeed. `status` is the library's number."""

    def __init__(self, call: str, status: int) -> None:
        text = STATUSES[status] if 0 <= status < len(STATUSES) else "unknown status"
        super().__init__(f"{call} returned {status} ({text})")
        self.status = status


def check(call: str, status: int) -> None:
    """Raise unless `status`, returned by the function called `call`, is success."""
    if status:
        raise OneDNNError(call, status)


class ExecutionArgument(ctypes.Structure):
    """`dnnl_exec_arg_t`."""

    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def execution_arguments(memories: Mapping[int, Handle]) -> ctypes.Array[ExecutionArgument]:
    """The array of arguments of an execution."""
    arguments = [ExecutionArgument(argument, memory.value) for argument, memory in memories.items()]
    return (ExecutionArgument * len(arguments))(*arguments)


class Handle:
    """An object of the library, destroyed with its last reference."""

    __slots__ = ("_destroy", "value")

    def __init__(self, value: int, destroy: Callable[[int], object]) -> None:
        self.value = value
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.value)


def _library_file() -> Path:
    """The shared library that the package installed. Raises PackageNotFoundError or OSError."""
    files = importlib.metadata.files(PACKAGE) or []
    for file in files:
        if file.name == "libdnnl.so.3":
            return Path(str(file.locate())).resolve()
    raise OSError(f"the package {PACKAGE} holds no libdnnl.so.3")


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library."""
    return ctypes.CDLL(str(_library_file()))


@functools.cache
def openmp() -> ctypes.CDLL:
    """GNU OpenMP, the copy that oneDNN uses."""
    return ctypes.CDLL("libgomp.so.1")


HIDING = "CROSSBOW_WITHOUT_ONEDNN"
"""An environment variable: set to 1, oneDNN counts as not installed."""


@functools.cache
def why_unusable() -> str | None:
    """One sentence that says why oneDNN cannot be used here, or None if it can."""
    if os.environ.get(HIDING) == "1":
        return f"the environment says {HIDING}=1"
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return f"the package {PACKAGE} exists for Linux on x86_64 only, and this is {system} on {machine}"
    if not numba_is_installed():
        return "the package numba, which compiles the passes around oneDNN, is not installed"
    try:
        openmp()
    except OSError:
        return "the system library libgomp.so.1 (package libgomp1), which oneDNN needs, is missing"
    try:
        library()
    except importlib.metadata.PackageNotFoundError:
        return f"the package {PACKAGE} is not installed"
    except OSError as error:
        return f"oneDNN's library cannot be loaded: {error}"
    if version()[0] != 3:
        return f"oneDNN 3 is needed, and {PACKAGE} holds {'.'.join(map(str, version()))}"
    return None


def numba_is_installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # somebody put something else in its place
        return False


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


def version() -> tuple[int, int, int]:
    """`dnnl_version`: (major, minor, patch)."""
    function = library().dnnl_version
    function.restype = ctypes.POINTER(_Version)
    found = function().contents
    return found.major, found.minor, found.patch


def omp_set_num_threads(threads: int) -> None:
    """The team size of the calling thread; oneDNN prepares and executes primitives for it."""
    openmp().omp_set_num_threads(ctypes.c_int(threads))


def omp_get_max_threads() -> int:
    """The team size of the calling thread."""
    return int(openmp().omp_get_max_threads())


def function_address(name: str) -> int:
    """The address of a function of the library, for native task lists."""
    address = ctypes.cast(getattr(library(), name), ctypes.c_void_p).value
    assert address is not None
    return address


def _pointer(value: Handle | int | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(value.value if isinstance(value, Handle) else value)


def _dimensions(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * MAXIMUM_DIMENSIONS)(*values)


@functools.cache
def _destroyer(name: str) -> Callable[[int], object]:
    function = getattr(library(), name)
    function.argtypes = (ctypes.c_void_p,)
    destroy: Callable[[int], object] = function
    return destroy


def _create(name: str, destroyer: str, *arguments: object) -> Handle:
    """Call a function whose first argument is where it puts the object that it creates."""
    made = ctypes.c_void_p()
    check(name, getattr(library(), name)(ctypes.byref(made), *arguments))
    assert made.value is not None
    return Handle(made.value, _destroyer(destroyer))


# Engine, stream, memory.


def dnnl_engine_create(kind: int, index: int) -> Handle:
    return _create("dnnl_engine_create", "dnnl_engine_destroy", ctypes.c_int(kind), ctypes.c_size_t(index))


def dnnl_stream_create(engine: Handle, flags: int) -> Handle:
    return _create("dnnl_stream_create", "dnnl_stream_destroy", _pointer(engine), ctypes.c_uint(flags))


def dnnl_memory_desc_create_with_tag(dimensions: Sequence[int], data_type: int, tag: int) -> Handle:
    return _create(
        "dnnl_memory_desc_create_with_tag",
        "dnnl_memory_desc_destroy",
        ctypes.c_int(len(dimensions)),
        _dimensions(dimensions),
        ctypes.c_int(data_type),
        ctypes.c_int(tag),
    )


def dnnl_memory_desc_create_with_strides(dimensions: Sequence[int], data_type: int, strides: Sequence[int]) -> Handle:
    return _create(
        "dnnl_memory_desc_create_with_strides",
        "dnnl_memory_desc_destroy",
        ctypes.c_int(len(dimensions)),
        _dimensions(dimensions),
        ctypes.c_int(data_type),
        _dimensions(strides),
    )


def dnnl_memory_desc_equal(left: Handle, right: Handle) -> bool:
    return bool(library().dnnl_memory_desc_equal(_pointer(left), _pointer(right)))


def dnnl_memory_desc_get_size(descriptor: Handle) -> int:
    function = library().dnnl_memory_desc_get_size
    function.restype = ctypes.c_size_t
    return int(function(_pointer(descriptor)))


def dnnl_memory_desc_query_dims(descriptor: Handle, what: int, count: int) -> tuple[int, ...]:
    """`dnnl_memory_desc_query` for what is an array of `count` sizes."""
    result = ctypes.POINTER(ctypes.c_int64)()
    status = library().dnnl_memory_desc_query(_pointer(descriptor), ctypes.c_int(what), ctypes.byref(result))
    check("dnnl_memory_desc_query", status)
    return tuple(result[i] for i in range(count))


def dnnl_memory_desc_query_s32(descriptor: Handle, what: int) -> int:
    """`dnnl_memory_desc_query` for what is an int."""
    result = ctypes.c_int()
    status = library().dnnl_memory_desc_query(_pointer(descriptor), ctypes.c_int(what), ctypes.byref(result))
    check("dnnl_memory_desc_query", status)
    return result.value


def dnnl_memory_create(descriptor: Handle, engine: Handle, address: int) -> Handle:
    return _create(
        "dnnl_memory_create", "dnnl_memory_destroy", _pointer(descriptor), _pointer(engine), _pointer(address)
    )


# Primitives.


def dnnl_primitive_attr_create() -> Handle:
    return _create("dnnl_primitive_attr_create", "dnnl_primitive_attr_destroy")


def dnnl_primitive_attr_set_scratchpad_mode(attributes: Handle, mode: int) -> None:
    status = library().dnnl_primitive_attr_set_scratchpad_mode(_pointer(attributes), ctypes.c_int(mode))
    check("dnnl_primitive_attr_set_scratchpad_mode", status)


def dnnl_primitive_attr_set_post_ops(attributes: Handle, post_ops: Handle) -> None:
    """The attributes keep a copy."""
    status = library().dnnl_primitive_attr_set_post_ops(_pointer(attributes), _pointer(post_ops))
    check("dnnl_primitive_attr_set_post_ops", status)


def dnnl_post_ops_create() -> Handle:
    return _create("dnnl_post_ops_create", "dnnl_post_ops_destroy")


def dnnl_post_ops_append_eltwise(post_ops: Handle, algorithm: int, alpha: float, beta: float) -> None:
    status = library().dnnl_post_ops_append_eltwise(
        _pointer(post_ops), ctypes.c_int(algorithm), ctypes.c_float(alpha), ctypes.c_float(beta)
    )
    check("dnnl_post_ops_append_eltwise", status)


def dnnl_primitive_create(descriptor: Handle) -> Handle:
    return _create("dnnl_primitive_create", "dnnl_primitive_destroy", _pointer(descriptor))


def dnnl_primitive_desc_query_string(descriptor: Handle, what: int) -> str:
    """`dnnl_primitive_desc_query` for what is a string."""
    result = ctypes.c_char_p()
    function = library().dnnl_primitive_desc_query
    status = function(_pointer(descriptor), ctypes.c_int(what), ctypes.c_int(0), ctypes.byref(result))
    check("dnnl_primitive_desc_query", status)
    return (result.value or b"").decode()


def dnnl_primitive_desc_query_md(descriptor: Handle, what: int, index: int = 0) -> Handle | None:
    """A copy of the memory descriptor, or None where the primitive has none."""
    function = library().dnnl_primitive_desc_query_md
    function.restype = ctypes.c_void_p
    found = function(_pointer(descriptor), ctypes.c_int(what), ctypes.c_int(index))
    if not found:
        return None
    return _create("dnnl_memory_desc_clone", "dnnl_memory_desc_destroy", _pointer(found))


def dnnl_primitive_execute(primitive: Handle, stream: Handle, arguments: Mapping[int, Handle]) -> None:
    """Run a primitive once; task lists call the function through its address instead."""
    block = execution_arguments(arguments)
    status = library().dnnl_primitive_execute(
        _pointer(primitive), _pointer(stream), ctypes.c_int(len(arguments)), ctypes.byref(block)
    )
    check("dnnl_primitive_execute", status)


def _primitive_desc(name: str, *arguments: object) -> Handle:
    return _create(f"dnnl_{name}_primitive_desc_create", "dnnl_primitive_desc_destroy", *arguments)


def dnnl_reorder_primitive_desc_create(source: Handle, target: Handle, engine: Handle, attributes: Handle) -> Handle:
    return _primitive_desc(
        "reorder", _pointer(source), _pointer(engine), _pointer(target), _pointer(engine), _pointer(attributes)
    )


def dnnl_convolution_forward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    algorithm: int,
    src: Handle,
    weights: Handle,
    bias: Handle | None,
    dst: Handle,
    strides: Sequence[int],
    dilates: Sequence[int],
    padding_l: Sequence[int],
    padding_r: Sequence[int],
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "convolution_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, weights, bias, dst)),
        *map(_dimensions, (strides, dilates, padding_l, padding_r)),
        _pointer(attributes),
    )


def dnnl_convolution_backward_data_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    diff_src: Handle,
    weights: Handle,
    diff_dst: Handle,
    strides: Sequence[int],
    dilates: Sequence[int],
    padding_l: Sequence[int],
    padding_r: Sequence[int],
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "convolution_backward_data",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (diff_src, weights, diff_dst)),
        *map(_dimensions, (strides, dilates, padding_l, padding_r)),
        _pointer(forward),
        _pointer(attributes),
    )


def dnnl_convolution_backward_weights_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    src: Handle,
    diff_weights: Handle,
    diff_bias: Handle | None,
    diff_dst: Handle,
    strides: Sequence[int],
    dilates: Sequence[int],
    padding_l: Sequence[int],
    padding_r: Sequence[int],
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "convolution_backward_weights",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, diff_weights, diff_bias, diff_dst)),
        *map(_dimensions, (strides, dilates, padding_l, padding_r)),
        _pointer(forward),
        _pointer(attributes),
    )


def dnnl_inner_product_forward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    src: Handle,
    weights: Handle,
    bias: Handle | None,
    dst: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "inner_product_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        *map(_pointer, (src, weights, bias, dst, attributes)),
    )


def dnnl_inner_product_backward_data_primitive_desc_create(
    engine: Handle, diff_src: Handle, weights: Handle, diff_dst: Handle, forward: Handle, attributes: Handle
) -> Handle:
    return _primitive_desc(
        "inner_product_backward_data", *map(_pointer, (engine, diff_src, weights, diff_dst, forward, attributes))
    )


def dnnl_inner_product_backward_weights_primitive_desc_create(
    engine: Handle,
    src: Handle,
    diff_weights: Handle,
    diff_bias: Handle | None,
    diff_dst: Handle,
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "inner_product_backward_weights",
        *map(_pointer, (engine, src, diff_weights, diff_bias, diff_dst, forward, attributes)),
    )


def dnnl_pooling_forward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    algorithm: int,
    src: Handle,
    dst: Handle,
    strides: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding_l: Sequence[int],
    padding_r: Sequence[int],
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "pooling_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, dst)),
        *map(_dimensions, (strides, kernel, dilation, padding_l, padding_r)),
        _pointer(attributes),
    )


def dnnl_pooling_backward_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    diff_src: Handle,
    diff_dst: Handle,
    strides: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding_l: Sequence[int],
    padding_r: Sequence[int],
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "pooling_backward",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (diff_src, diff_dst)),
        *map(_dimensions, (strides, kernel, dilation, padding_l, padding_r)),
        _pointer(forward),
        _pointer(attributes),
    )


def dnnl_batch_normalization_forward_primitive_desc_create(
    engine: Handle, propagation: int, src: Handle, dst: Handle, epsilon: float, flags: int, attributes: Handle
) -> Handle:
    return _primitive_desc(
        "batch_normalization_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        *map(_pointer, (src, dst)),
        ctypes.c_float(epsilon),
        ctypes.c_uint(flags),
        _pointer(attributes),
    )


def dnnl_batch_normalization_backward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    diff_src: Handle,
    diff_dst: Handle,
    src: Handle,
    epsilon: float,
    flags: int,
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "batch_normalization_backward",
        _pointer(engine),
        ctypes.c_int(propagation),
        *map(_pointer, (diff_src, diff_dst, src)),
        ctypes.c_float(epsilon),
        ctypes.c_uint(flags),
        *map(_pointer, (forward, attributes)),
    )


def dnnl_eltwise_forward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    algorithm: int,
    src: Handle,
    dst: Handle,
    alpha: float,
    beta: float,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "eltwise_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, dst)),
        ctypes.c_float(alpha),
        ctypes.c_float(beta),
        _pointer(attributes),
    )


def dnnl_eltwise_backward_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    diff_src: Handle,
    diff_dst: Handle,
    data: Handle,
    alpha: float,
    beta: float,
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "eltwise_backward",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (diff_src, diff_dst, data)),
        ctypes.c_float(alpha),
        ctypes.c_float(beta),
        *map(_pointer, (forward, attributes)),
    )


def dnnl_lrn_forward_primitive_desc_create(
    engine: Handle,
    propagation: int,
    algorithm: int,
    src: Handle,
    dst: Handle,
    local_size: int,
    alpha: float,
    beta: float,
    k: float,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "lrn_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, dst)),
        ctypes.c_int64(local_size),
        *map(ctypes.c_float, (alpha, beta, k)),
        _pointer(attributes),
    )


def dnnl_lrn_backward_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    diff_src: Handle,
    diff_dst: Handle,
    src: Handle,
    local_size: int,
    alpha: float,
    beta: float,
    k: float,
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "lrn_backward",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (diff_src, diff_dst, src)),
        ctypes.c_int64(local_size),
        *map(ctypes.c_float, (alpha, beta, k)),
        *map(_pointer, (forward, attributes)),
    )


def dnnl_matmul_primitive_desc_create(
    engine: Handle, src: Handle, weights: Handle, bias: Handle | None, dst: Handle, attributes: Handle
) -> Handle:
    return _primitive_desc("matmul", *map(_pointer, (engine, src, weights, bias, dst, attributes)))


def dnnl_softmax_forward_primitive_desc_create(
    engine: Handle, propagation: int, algorithm: int, src: Handle, dst: Handle, axis: int, attributes: Handle
) -> Handle:
    return _primitive_desc(
        "softmax_forward",
        _pointer(engine),
        ctypes.c_int(propagation),
        ctypes.c_int(algorithm),
        *map(_pointer, (src, dst)),
        ctypes.c_int(axis),
        _pointer(attributes),
    )


def dnnl_softmax_backward_primitive_desc_create(
    engine: Handle,
    algorithm: int,
    diff_src: Handle,
    diff_dst: Handle,
    dst: Handle,
    axis: int,
    forward: Handle,
    attributes: Handle,
) -> Handle:
    return _primitive_desc(
        "softmax_backward",
        _pointer(engine),
        ctypes.c_int(algorithm),
        *map(_pointer, (diff_src, diff_dst, dst)),
        ctypes.c_int(axis),
        *map(_pointer, (forward, attributes)),
    )
