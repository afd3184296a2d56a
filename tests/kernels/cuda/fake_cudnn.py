"""A cuDNN that is none: its functions by their names in C, over the host's memory, computed by the reference kernels.

Every call goes through the types of `PROTOTYPES`, as it does for the library, and is checked: that descriptors are of
the right kind, alive and set, that shapes fit, that workspaces are as large as was said. What does not fit is answered
as the library does, with a status. Workspaces are scribbled over.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from crossbow.kernels.cuda import cudnn, cudnn_library
from crossbow.kernels.cuda.launch import computed_in
from crossbow.kernels.reference import convolution as reference
from crossbow.kernels.requests import ConvolutionGeometry

if TYPE_CHECKING:
    from tests.kernels.cuda.fake import Recorded

DTYPES = {
    number: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name, number in cudnn.DATA_TYPES.items()
}
COUNTS = {
    "Forward": cudnn.CONVOLUTION_FWD_ALGO_COUNT,
    "BackwardData": cudnn.CONVOLUTION_BWD_DATA_ALGO_COUNT,
    "BackwardFilter": cudnn.CONVOLUTION_BWD_FILTER_ALGO_COUNT,
}
NON_DETERMINISTIC = {
    ("BackwardData", cudnn.CONVOLUTION_BWD_DATA_ALGO_0),
    ("BackwardFilter", cudnn.CONVOLUTION_BWD_FILTER_ALGO_0),
    ("BackwardFilter", cudnn.CONVOLUTION_BWD_FILTER_ALGO_3),
}
NEVER_SUPPORTED = {
    ("Forward", cudnn.CONVOLUTION_FWD_ALGO_DIRECT),
    ("BackwardFilter", cudnn.CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD),
}


class Refused(Exception):
    """The call is answered with a status other than success."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Object:
    """A handle or descriptor, and what it was set to."""

    kind: type[ctypes.c_void_p]
    setting: Any = None
    alive: bool = True


@dataclass(frozen=True)
class FakeTensor:
    """A tensor or, with its strides by its format, a filter."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, address: int) -> np.ndarray[Any, Any]:
        if address % self.dtype.itemsize or not address:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"data at {address:#x}")
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        memory = memoryview((ctypes.c_char * (span * self.dtype.itemsize)).from_address(address))
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        return np.ndarray(self.shape, self.dtype, memory, strides=strides)


@dataclass
class FakeConvolution:
    """A convolution descriptor."""

    geometry: ConvolutionGeometry
    mode: int
    dtype: np.dtype[Any]
    math_type: int = cudnn.DEFAULT_MATH

    def output_shape(self, x: FakeTensor, w: FakeTensor) -> tuple[int, ...]:
        g = self.geometry
        spatial = w.shape[2:]
        if len(x.shape) != len(w.shape) or len(spatial) != len(g.kernel):
            raise Refused(cudnn.STATUS_BAD_PARAM, f"numbers of axes: {x.shape}, {w.shape}, {len(g.kernel)}")
        if x.shape[1] != w.shape[1] * g.groups:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"channels of {x.shape} and {w.shape} in {g.groups} groups")
        spans = [
            size + 2 * p - d * (k - 1) - 1
            for size, k, d, (p, _) in zip(x.shape[2:], spatial, g.dilation, g.padding, strict=True)
        ]
        if min(spans) < 0:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"windows of {w.shape} are larger than {x.shape}")
        return (x.shape[0], w.shape[0], *(span // s + 1 for span, s in zip(spans, g.stride, strict=True)))


@dataclass(frozen=True)
class Asked:
    """A convolution or one of its gradients, as a function of cuDNN's is asked about it."""

    kind: str
    """"Forward", "BackwardData" or "BackwardFilter"."""
    x: FakeTensor
    w: FakeTensor
    y: FakeTensor
    convolution: FakeConvolution

    def workspace(self, algorithm: int) -> int:
        """Bytes: never none, another number for every algorithm, and not a round one."""
        return 1024 + 72 * algorithm + 4 * (math.prod(self.y.shape) % 251)


class FakeCudnn:
    """The library. `supports` says whether an algorithm can do what is asked; tests may replace it."""

    def __init__(self, calls: list[Recorded]) -> None:
        self.calls = calls
        self.objects: dict[int, Object] = {}
        self.supports: Callable[[Asked, int], bool] = lambda asked, algorithm: True
        self._made = 0
        self._error = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in cudnn_library.PROTOTYPES:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def alive(self) -> list[str]:
        """The kinds of descriptors that have not been destroyed."""
        return sorted(o.kind.__name__ for o in self.objects.values() if o.alive and o.kind is not cudnn_library.Handle)

    def _call(self, name: str, *arguments: Any) -> Any:
        from tests.kernels.cuda.fake import Recorded  # which imports this module

        types = cudnn_library.PROTOTYPES[name]
        assert len(arguments) == len(types), f"{name}: expected {len(types)} arguments. Received: {len(arguments)}"
        values = []
        for position, (kind, argument) in enumerate(zip(types, arguments, strict=True)):
            try:
                kind.from_param(argument)
            except (TypeError, ctypes.ArgumentError) as error:
                raise ctypes.ArgumentError(f"{name}: argument {position + 1}: {error}") from error
            values.append(_value(kind, argument))
        self.calls.append(Recorded(name, tuple(values)))
        method = getattr(type(self), f"_{name}", None)
        if method is None:
            method = self._of_a_kind(name)
        try:
            result = method(self, *values)
        except Refused as refused:
            self._error = f"{name}: {refused}"
            return refused.status
        return cudnn.STATUS_SUCCESS if name not in cudnn_library.RESULTS else result

    def _of_a_kind(self, name: str) -> Callable[..., None]:
        for kind in (*cudnn_library.DESCRIPTORS, cudnn_library.Handle):
            called = "" if kind is cudnn_library.Handle else kind.__name__
            if name == f"cudnnCreate{called}":
                return functools.partial(FakeCudnn._create, kind=kind)
            if name == f"cudnnDestroy{called}":
                return functools.partial(FakeCudnn._destroy, kind=kind)
        actions: dict[str, Callable[..., None]] = {
            "cudnnGetConvolution{}WorkspaceSize": FakeCudnn._workspace_size,
            "cudnnFindConvolution{}AlgorithmEx": FakeCudnn._timed_algorithms,
            "cudnnConvolution{}": FakeCudnn._convolve,
        }
        for pattern, action in actions.items():
            for request in COUNTS:
                if name == pattern.format(request):
                    return functools.partial(action, kind=request)
        raise NotImplementedError(f"FakeCudnn: {name}")

    # The library itself.

    def _cudnnGetVersion(self) -> int:
        return cudnn_library.MAJOR * 10_000

    def _cudnnGetErrorString(self, status: int) -> bytes:
        names = {value: name for name, value in vars(cudnn).items() if name.startswith("STATUS_")}
        return f"CUDNN_{names.get(status, 'STATUS_UNKNOWN')}".encode()

    def _cudnnGetLastErrorString(self, message: int, size: int) -> None:
        text = self._error.encode()[: size - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        self._error = ""

    def _cudnnSetStream(self, handle: int, stream: int) -> None:
        self._handle(handle)

    def _create(self, place: Any, *, kind: type[ctypes.c_void_p]) -> None:
        self._made += 1
        number = 0x1000 + 0x10 * self._made
        self.objects[number] = Object(kind)
        place[0] = kind(number)

    def _destroy(self, number: int, *, kind: type[ctypes.c_void_p]) -> None:
        self._object(kind, number).alive = False

    def _object(self, kind: type[ctypes.c_void_p], number: int) -> Object:
        found = self.objects.get(number)
        if found is None or not found.alive or found.kind is not kind:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"{kind.__name__} {number:#x} is {found}")
        return found

    def _setting(self, kind: type[ctypes.c_void_p], number: int) -> Any:
        setting = self._object(kind, number).setting
        if setting is None:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"{kind.__name__} {number:#x} was never set")
        return setting

    def _handle(self, handle: int) -> None:
        if handle:  # 0 is that of the stream that is current where none was set (launch.current)
            self._object(cudnn_library.Handle, handle)

    # Descriptors.

    def _cudnnSetTensorNdDescriptor(self, tensor: int, dtype: int, axes: int, sizes: Any, strides: Any) -> None:
        if not 3 <= axes <= 8 or min(sizes[:axes]) < 1 or min(strides[:axes]) < 1:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"sizes {sizes[:axes]}, strides {strides[:axes]}")
        setting = FakeTensor(DTYPES[dtype], tuple(sizes[:axes]), tuple(strides[:axes]))
        self._object(cudnn_library.TensorDescriptor, tensor).setting = setting

    def _cudnnSetFilterNdDescriptor(self, filter: int, dtype: int, order: int, axes: int, sizes: Any) -> None:
        if not 3 <= axes <= 8 or min(sizes[:axes]) < 1:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"sizes {sizes[:axes]}")
        shape, strides, step = tuple(sizes[:axes]), [0] * axes, 1
        for axis in [1, *range(axes - 1, 1, -1), 0] if order == cudnn.TENSOR_NHWC else range(axes - 1, -1, -1):
            strides[axis] = step
            step *= shape[axis]
        self._object(cudnn_library.FilterDescriptor, filter).setting = FakeTensor(DTYPES[dtype], shape, tuple(strides))

    def _cudnnSetConvolutionNdDescriptor(
        self, convolution: int, axes: int, padding: Any, stride: Any, dilation: Any, mode: int, dtype: int
    ) -> None:
        if not 2 <= axes <= 6 or min(padding[:axes]) < 0 or min(*stride[:axes], *dilation[:axes]) < 1:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"{padding[:axes]}, {stride[:axes]}, {dilation[:axes]}")
        both = tuple((p, p) for p in padding[:axes])
        # The kernel's size comes with the filter.
        geometry = ConvolutionGeometry((1,) * axes, tuple(stride[:axes]), both, tuple(dilation[:axes]))
        setting = FakeConvolution(geometry, mode, DTYPES[dtype])
        self._object(cudnn_library.ConvolutionDescriptor, convolution).setting = setting

    def _cudnnSetConvolutionGroupCount(self, convolution: int, groups: int) -> None:
        setting = self._setting(cudnn_library.ConvolutionDescriptor, convolution)
        g = setting.geometry
        setting.geometry = ConvolutionGeometry(g.kernel, g.stride, g.padding, g.dilation, groups)

    def _cudnnSetConvolutionMathType(self, convolution: int, math_type: int) -> None:
        self._setting(cudnn_library.ConvolutionDescriptor, convolution).math_type = math_type

    # Convolution: each function takes two operands, the convolution, and what is to be computed.

    def _asked(self, kind: str, first: int, second: int, convolution: int, result: int) -> Asked:
        roles = {"Forward": "xwy", "BackwardData": "wyx", "BackwardFilter": "xyw"}[kind]
        tensors = {
            role: self._setting(
                cudnn_library.FilterDescriptor if role == "w" else cudnn_library.TensorDescriptor, number
            )
            for role, number in zip(roles, (first, second, result), strict=True)
        }
        setting = self._setting(cudnn_library.ConvolutionDescriptor, convolution)
        if len(dtypes := {tensor.dtype for tensor in tensors.values()}) != 1 or computed_in(*dtypes) != setting.dtype:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"types of {tensors}, computed in {setting.dtype}")
        expected = setting.output_shape(tensors["x"], tensors["w"])
        if expected[1] % setting.geometry.groups:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"{expected[1]} outputs in {setting.geometry.groups} groups")
        if tensors["y"].shape != expected:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"y has shape {tensors['y'].shape}, and should have {expected}")
        return Asked(kind, **tensors, convolution=setting)

    def _supported(self, asked: Asked, algorithm: int) -> bool:
        if not 0 <= algorithm < COUNTS[asked.kind]:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"{asked.kind} algorithm {algorithm}")
        return (asked.kind, algorithm) not in NEVER_SUPPORTED and self.supports(asked, algorithm)

    def _workspace_size(
        self,
        handle: int,
        first: int,
        second: int,
        convolution: int,
        result: int,
        algorithm: int,
        size: Any,
        *,
        kind: str,
    ) -> None:
        self._handle(handle)
        asked = self._asked(kind, first, second, convolution, result)
        if not self._supported(asked, algorithm):
            raise Refused(cudnn.STATUS_NOT_SUPPORTED, f"{kind} algorithm {algorithm}")
        size[0] = asked.workspace(algorithm)

    def _algorithms(
        self,
        handle: int,
        first: int,
        second: int,
        convolution: int,
        result: int,
        requested: int,
        returned: Any,
        found: Any,
        *,
        kind: str,
    ) -> None:
        """All of them, those supported first, and of these the last ones first."""
        self._handle(handle)
        asked = self._asked(kind, first, second, convolution, result)
        numbers = sorted(range(COUNTS[kind]), key=lambda number: (not self._supported(asked, number), -number))
        returned[0] = min(requested, len(numbers))
        for place, number in enumerate(numbers[: returned[0]]):
            supported = self._supported(asked, number)
            found[place].algo = number
            found[place].status = cudnn.STATUS_SUCCESS if supported else cudnn.STATUS_NOT_SUPPORTED
            found[place].time = -1.0
            found[place].memory = asked.workspace(number) if supported else 0
            found[place].determinism = (kind, number) not in NON_DETERMINISTIC
            found[place].mathType = asked.convolution.math_type

    def _timed_algorithms(
        self,
        handle: int,
        first: int,
        first_data: int,
        second: int,
        second_data: int,
        convolution: int,
        result: int,
        result_data: int,
        requested: int,
        returned: Any,
        found: Any,
        workspace: int,
        nbytes: int,
        *,
        kind: str,
    ) -> None:
        """Those that the workspace is enough for, as `_algorithms`; the result is written over."""
        assert all((first_data, second_data, result_data))
        asked = self._asked(kind, first, second, convolution, result)
        self._algorithms(handle, first, second, convolution, result, requested, returned, found, kind=kind)
        used = max(map(asked.workspace, range(COUNTS[kind])))
        ctypes.memset(workspace, 0xA7, min(nbytes, used))
        for place in range(returned[0]):
            if found[place].status == cudnn.STATUS_SUCCESS and asked.workspace(found[place].algo) > nbytes:
                found[place].status = cudnn.STATUS_NOT_SUPPORTED
            found[place].time = 1.0 + place if found[place].status == cudnn.STATUS_SUCCESS else -1.0

    def _convolve(
        self,
        handle: int,
        alpha: int,
        first: int,
        first_data: int,
        second: int,
        second_data: int,
        convolution: int,
        algorithm: int,
        workspace: int,
        nbytes: int,
        beta: int,
        result: int,
        result_data: int,
        *,
        kind: str,
    ) -> None:
        self._handle(handle)
        asked = self._asked(kind, first, second, convolution, result)
        if not self._supported(asked, algorithm):
            raise Refused(cudnn.STATUS_NOT_SUPPORTED, f"{kind} algorithm {algorithm}")
        if nbytes < asked.workspace(algorithm) or not workspace:
            raise Refused(cudnn.STATUS_BAD_PARAM, f"workspace of {nbytes} bytes at {workspace:#x}")
        ctypes.memset(workspace, 0xFF, nbytes)
        g = asked.convolution.geometry
        geometry = ConvolutionGeometry(asked.w.shape[2:], g.stride, g.padding, g.dilation, g.groups)
        assert asked.convolution.mode == cudnn.CROSS_CORRELATION
        exact = asked.convolution.dtype
        if kind == "Forward":
            x, w, y = asked.x.array(first_data), asked.w.array(second_data), asked.y.array(result_data)
            x, w, computed = x.astype(exact), w.astype(exact), np.empty(y.shape, exact)
            reference.forward(input0=x, weights=w, output=computed, geometry=geometry)
            target = y
        elif kind == "BackwardData":
            w, y, x = asked.w.array(first_data), asked.y.array(second_data), asked.x.array(result_data)
            computed = np.empty(x.shape, exact)
            reference.backward_data(
                output_gradient=y.astype(exact), weights=w.astype(exact), input_gradient=computed, geometry=geometry
            )
            target = x
        else:
            x, y, w = asked.x.array(first_data), asked.y.array(second_data), asked.w.array(result_data)
            x, y, computed = x.astype(exact), y.astype(exact), np.empty(w.shape, exact)
            reference.backward_weights(input0=x, output_gradient=y, weights_gradient=computed, geometry=geometry)
            target = w
        a, b = (_number(address, asked.convolution.dtype) for address in (alpha, beta))
        target[...] = a * computed + (b * target if b else 0)  # with beta = 0 the result is not read


def _value(kind: Any, argument: Any) -> Any:
    """An argument as the library's function sees it: a number, an address, or a pointer to what it writes."""
    if kind is ctypes.c_char_p or issubclass(kind, ctypes.c_void_p):
        argument = getattr(argument, "_as_parameter_", argument)
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    if issubclass(kind, ctypes._Pointer):
        return ctypes.cast(argument, kind)
    return argument.value if isinstance(argument, ctypes._SimpleCData) else kind(argument).value


def _number(address: int, dtype: np.dtype[Any]) -> float:
    """alpha or beta: on the host, in the type that is computed in."""
    if not address:
        raise Refused(cudnn.STATUS_BAD_PARAM, "no alpha or beta")
    return float((ctypes.c_double if dtype == np.float64 else ctypes.c_float).from_address(address).value)
