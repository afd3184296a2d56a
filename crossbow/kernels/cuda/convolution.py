"""Convolution over one, two or three spatial axes and its gradients: cuDNN's functions, with our own passes.

cuDNN pads both sides of an axis equally. If the paddings differ, the workspace contains the input with a border of
zeros, as wide as the difference, and the gradient of the input is cut out of the gradient of the padded input. A single
spatial axis is the second of two. If images are channels-last, so are the weights; for problems that cuDNN does not
compute in that order, tensors are copied to logical order.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossbow.kernels.cuda import cudnn, cudnn_library
from crossbow.kernels.cuda.api import api, remember
from crossbow.kernels.cuda.bias import AddBias, ChannelSums
from crossbow.kernels.cuda.copy import copied
from crossbow.kernels.cuda.launch import NARROW, CudaKernel, Launch, Structure, current, pointer
from crossbow.kernels.cuda.storage import ChannelsLastStorage
from crossbow.kernels.interface import Buffers, Call, PreparedKernel, Storage, Variable
from crossbow.kernels.registry import Registry
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
)
from crossbow.kernels.strides import channels_of, strides
from crossbow.types import Array, ConfigurationError, Layout, Tensor, address

LEAST_LIMIT, MOST_LIMIT = 64 * 2**20, 2**30
"""Bounds of `workspace_limit`, in bytes."""
SHARE_OF_FREE = 64
"""An algorithm's workspace takes at most 1 / SHARE_OF_FREE of the free memory, because every learner needs one."""

TIMED = 16
"""Maximum number of timing results: cuDNN has eight algorithms, and may also try each in its default arithmetic."""

ALIGNMENT = 256
"""Alignment in bytes of the parts of the workspace."""


@dataclass(frozen=True)
class ConvolutionArithmetic:
    """Options that trade determinism and precision for speed."""

    deterministic: bool = False
    """Whether to choose only algorithms that always add in the same order, in a fixed order of preference. Otherwise
    algorithms are timed, and two runs may choose different ones."""
    tf32: bool = False
    """Whether factors may be rounded to TF32, which has 10 bits after the point instead of 23."""

    def math_type(self, dtype: np.dtype[np.generic]) -> int:
        """cuDNN's math type for tensors of this type; its default rounds to TF32."""
        if dtype.name in NARROW:
            return cudnn.TENSOR_OP_MATH
        return cudnn.DEFAULT_MATH if self.tf32 or dtype != np.float32 else cudnn.FMA_MATH


EXACT = ConvolutionArithmetic()


@dataclass(frozen=True)
class Direction:
    """One of cuDNN's three functions."""

    name: str
    """The direction's part of the functions' names."""
    operands: str
    """The order of x, w and y in the arguments. The last one is computed."""
    algorithms: str
    """Prefix of the names of its algorithms."""
    deterministic: tuple[int, ...]
    """Algorithms that always add in the same order, the preferred ones first."""

    def algorithm_name(self, number: int) -> str:
        names = {value: name for name, value in vars(cudnn).items() if name.startswith(self.algorithms)}
        return names[number].removeprefix(self.algorithms).lower()


FORWARD = Direction(
    "Forward",
    "xwy",
    "CONVOLUTION_FWD_ALGO_",
    (cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, cudnn.CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM),
)
BACKWARD_DATA = Direction("BackwardData", "wyx", "CONVOLUTION_BWD_DATA_ALGO_", (cudnn.CONVOLUTION_BWD_DATA_ALGO_1,))
BACKWARD_FILTER = Direction(
    "BackwardFilter", "xyw", "CONVOLUTION_BWD_FILTER_ALGO_", (cudnn.CONVOLUTION_BWD_FILTER_ALGO_1,)
)


@dataclass(frozen=True)
class Problem:
    """A convolution in cuDNN's form: two or more spatial axes, each with the same padding on both sides."""

    x: Tensor
    w: Tensor
    y: Tensor
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    math_type: int

    def descriptors(self) -> dict[str, cudnn.Descriptor]:
        """Descriptors of x, w, y, and "convolution"."""
        dtype, w_format = self.x.dtype, cudnn.TENSOR_NCHW
        if self.w.layout is Layout.CHANNELS_LAST:
            w_format = cudnn.TENSOR_NHWC
        windows = (self.padding, self.stride, self.dilation, self.groups)
        return {
            "x": cudnn.tensor_descriptor(self.x.shape, strides(self.x), dtype),
            "w": cudnn.filter_descriptor(self.w.shape, w_format, dtype),
            "y": cudnn.tensor_descriptor(self.y.shape, strides(self.y), dtype),
            "convolution": cudnn.convolution_descriptor(*windows, self.math_type, dtype),
        }

    def plain(self) -> Problem:
        """The same problem in logical order."""
        x, w, y = (replace(tensor, layout=Layout.PLAIN) for tensor in (self.x, self.w, self.y))
        return replace(self, x=x, w=w, y=y)


@dataclass(frozen=True)
class Algorithm:
    """One of a direction's algorithms, its arithmetic, and its workspace in bytes."""

    number: int
    math_type: int
    workspace: int

    def of(self, problem: Problem) -> Problem:
        """The problem in the algorithm's arithmetic."""
        return replace(problem, math_type=self.math_type)


def choose(direction: Direction, problem: Problem, deterministic: bool) -> Algorithm:
    """Return the algorithm for a problem on the current device: the same one at every call.

    With `deterministic`, it is the first of the direction's deterministic algorithms that cuDNN supports for the
    problem; otherwise the one with the shortest measured time. In both cases the first algorithm within
    `workspace_limit` is chosen, or, if there is none, the one with the smallest workspace. An algorithm that fails,
    with any status, is skipped. Raises CudnnError if none is left, and CUDA's error if the GPU cannot be used after a
    failure.
    """
    return remember((direction, problem, deterministic), lambda: _choose(direction, problem, deterministic))


def chosen() -> dict[tuple[Direction, Problem, bool], Algorithm]:
    """The results of `choose` so far, by its arguments."""
    table: dict[Any, Any] = api().remembered  # by device, and by `remember`'s key
    return {key: algorithm for (_, key), algorithm in table.items() if isinstance(algorithm, Algorithm)}


def workspace_limit(deterministic: bool) -> int:
    """Maximum size in bytes of an algorithm's workspace, if some algorithm needs no more. With `deterministic`, it does
    not depend on the free memory, so that two runs choose the same algorithms."""
    return LEAST_LIMIT if deterministic else min(max(api().free_memory() // SHARE_OF_FREE, LEAST_LIMIT), MOST_LIMIT)


def _choose(direction: Direction, problem: Problem, deterministic: bool) -> Algorithm:
    limit = workspace_limit(deterministic)
    timed = [] if deterministic else _timed(direction, problem, limit)
    candidates = dict.fromkeys((*timed, *((number, problem.math_type) for number in direction.deterministic)))
    known: list[Algorithm] = []
    failure: cudnn.CudnnError | None = None
    for number, math_type in candidates:
        try:
            known.append(Algorithm(number, math_type, _workspace(direction, problem, number, math_type)))
        except cudnn.CudnnError as error:
            failure = _passed_over(error)
    for algorithm in sorted(known, key=lambda one: max(one.workspace - limit, 0)):
        try:
            if (algorithm.number, algorithm.math_type) not in timed:  # some are rejected only when they run
                _try(direction, problem, algorithm)
            return algorithm
        except cudnn.CudnnError as error:
            failure = _passed_over(error)
    assert failure is not None
    raise failure


def _passed_over(error: cudnn.CudnnError) -> cudnn.CudnnError:
    """Return the error if the GPU can still be used; otherwise raise CUDA's error, which persists in the process."""
    try:
        api().runtime.streamSynchronize(current().pointer)
    except Exception as lost:
        raise lost from error
    return error


def _workspace(direction: Direction, problem: Problem, number: int, math_type: int) -> int:
    """Bytes of workspace that an algorithm needs. Raises CudnnError if it does not support the problem."""
    nbytes, descriptors = ctypes.c_size_t(), replace(problem, math_type=math_type).descriptors()
    first, second, result = (descriptors[operand] for operand in direction.operands)
    asked = (first, second, descriptors["convolution"], result, number, ctypes.byref(nbytes))
    cudnn.check(f"cudnnGetConvolution{direction.name}WorkspaceSize", current().cudnn, *asked)
    return nbytes.value


def _timed(direction: Direction, problem: Problem, limit: int) -> list[tuple[int, int]]:
    """Numbers and arithmetics of the algorithms whose workspace is within the limit, the fastest first. cuDNN runs each
    on temporary memory. For 16-bit tensors, cuDNN chooses the arithmetic; for others it is the problem's."""
    descriptors, memory = problem.descriptors(), _memory(direction, problem)
    first, second, result = (
        (descriptors[operand], pointer(array)) for operand, array in zip(direction.operands, memory, strict=True)
    )
    workspace = api().zeros(max(limit, 1))
    found, count = (cudnn_library.AlgorithmPerformance * TIMED)(), ctypes.c_int()
    try:
        cudnn.check(
            f"cudnnFindConvolution{direction.name}AlgorithmEx",
            current().cudnn,
            *(*first, *second, descriptors["convolution"], *result),
            *(TIMED, ctypes.byref(count), found, pointer(workspace), limit),
        )
    except cudnn.CudnnError as error:
        _passed_over(error)
    # The memory is released next, so no work that uses it may be running.
    api().runtime.streamSynchronize(current().pointer)
    narrow = problem.x.dtype.name in NARROW
    right = (one for one in found[: count.value] if narrow or one.mathType == problem.math_type)
    return [(one.algo, one.mathType) for one in right if one.status == cudnn.STATUS_SUCCESS]


def _try(direction: Direction, problem: Problem, algorithm: Algorithm) -> None:
    """Run an algorithm once, on temporary memory. Raises CudnnError if it fails."""
    memory, workspace = _memory(direction, problem), api().zeros(max(algorithm.workspace, 1))
    arrays = dict(zip(direction.operands, memory, strict=True))
    try:
        _call(direction, algorithm.of(problem).descriptors(), algorithm, arrays, workspace, problem.x.dtype)()
    finally:
        api().runtime.streamSynchronize(current().pointer)


def _memory(direction: Direction, problem: Problem) -> list[Array]:
    """Zeroed memory for the operands, in their order."""
    tensors = {"x": problem.x, "w": problem.w, "y": problem.y}
    return [api().zeros(tensors[operand].nbytes) for operand in direction.operands]


def _call(
    direction: Direction,
    descriptors: Mapping[str, cudnn.Descriptor],
    algorithm: Algorithm,
    arrays: Mapping[str, Array],
    workspace: Array | None,
    dtype: np.dtype[np.generic],
    *,
    add: bool = False,
) -> cudnn.CudnnCall:
    """Return cuDNN's call for x, w and y of a type, in cuDNN's form. descriptors: descriptors with the algorithm's
    arithmetic. add: whether the result is added to the target."""
    first, second, last = ((descriptors[operand], pointer(arrays[operand])) for operand in direction.operands)
    alpha, beta = cudnn.scalar(1, dtype), cudnn.scalar(int(add), dtype)
    return cudnn.CudnnCall(
        f"cudnnConvolution{direction.name}",
        (
            *(alpha, *first, *second, descriptors["convolution"], algorithm.number),
            *(None if workspace is None else pointer(workspace), algorithm.workspace),
            *(beta, *last),
        ),
        references=(workspace, *arrays.values()),
    )


@dataclass(frozen=True)
class Part:
    """A tensor that cuDNN reads from the workspace, or writes there."""

    staged: Tensor
    """The tensor in cuDNN's form."""
    own: Tensor
    """The tensor itself, which is the inner part of the staged tensor if that is larger."""
    before: tuple[int, ...]
    """Offset within the staged tensor, along each spatial axis."""
    place: slice
    """The range of the staged tensor in the workspace, in bytes."""

    def fill(self, memory: Array, array: Array) -> Launch:
        """Return the call that copies the array to the workspace."""
        return _moved(self.own, array, self.staged, memory, self.before)

    def empty(self, memory: Array, array: Array, *, add: bool = False) -> Launch:
        """Return the call that copies from the workspace to the array, or adds to it."""
        return _moved(self.staged, memory, self.own, array, [-size for size in self.before], add=add)


def _moved(source: Tensor, x: Array, target: Tensor, y: Array, before: Sequence[int], *, add: bool = False) -> Launch:
    axes = [[*_four(tensor)] for tensor in (source, target)]
    shift = [0] * (4 - len(before)) + [*before]
    order = sorted(range(4), key=lambda axis: -axes[1][axis][1])  # adjacent threads write adjacent elements
    pairs = [[tensor[axis] for axis in order] for tensor in axes]
    fours = [Structure(*(size for size, _ in pair), *(step for _, step in pair)) for pair in pairs]
    kernel = CudaKernel("convolution", "move", source.dtype)
    shifts = Structure(*(shift[axis] for axis in order))
    return kernel.each(target.elements, x, fours[0], y, fours[1], shifts, np.int32(add))


def _four(tensor: Tensor) -> Sequence[tuple[int, int]]:
    """(size, stride) of four axes: with three spatial axes, images and channels are joined."""
    axes = [*zip(tensor.shape, strides(tensor), strict=True)]
    if len(axes) == 5:
        (n, _), (c, step), *image = axes
        return [(n * c, step), *image]
    return axes


class Convolution:
    """A direction with its algorithm, and the copies that it requires. `reserve` extends its workspace."""

    def __init__(
        self,
        direction: Direction,
        x: Tensor,
        weights: Variable,
        y: Tensor,
        geometry: ConvolutionGeometry,
        arithmetic: ConvolutionArithmetic,
    ) -> None:
        self.direction = direction
        problem, before, tensors = problem_of(x, weights, y, geometry, arithmetic)
        try:
            self.problem, self.algorithm = _first_possible(direction, problem, arithmetic.deterministic)
        except cudnn.CudnnError as error:
            if not error.is_refusal:
                raise
            raise ConfigurationError(
                f"expected a convolution that cuDNN computes. Received: input {x.shape} of {x.dtype}, weights "
                f"{weights.shape}, {geometry}: {error}"
            ) from error
        self.descriptors = self.problem.descriptors()
        self.workspace = 0
        self.own = self.reserve(self.algorithm.workspace)
        self.parts: dict[str, Part] = {}
        for operand, own in tensors.items():
            staged: Tensor = getattr(self.problem, operand)
            if staged.shape != own.shape or not staged.same_order(own):
                shift = before if operand == "x" else ()
                self.parts[operand] = Part(staged, own, shift, self.reserve(staged.nbytes))

    def reserve(self, nbytes: int) -> slice:
        """Reserve a part of the workspace."""
        start = self.workspace
        self.workspace += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return slice(start, start + nbytes)

    @property
    def name(self) -> str:
        return f"cudnn:{self.direction.algorithm_name(self.algorithm.number)}"

    def calls(self, buffers: Buffers, roles: Mapping[str, str], *, add: bool = False) -> list[Call]:
        """The calls. roles: the roles of x, w and y. add: whether the result is added to the target."""
        before: list[Call] = []
        after: list[Call] = []
        result = self.direction.operands[-1]
        arrays = {operand: buffers[role] for operand, role in roles.items()}
        for operand, part in self.parts.items():
            memory, array = buffers["workspace"][part.place], arrays[operand]
            if operand == result:
                after.append(part.empty(memory, array, add=add))
            else:
                before.append(part.fill(memory, array))
            arrays[operand] = memory
        own = buffers["workspace"][self.own] if self.algorithm.workspace else None
        call = _call(
            *(self.direction, self.descriptors, self.algorithm, arrays, own, self.problem.x.dtype),
            add=add and result not in self.parts,
        )
        return [*before, call, *after]


def _first_possible(direction: Direction, problem: Problem, deterministic: bool) -> tuple[Problem, Algorithm]:
    """The problem or, if cuDNN does not support it, the problem in logical order; and its algorithm. The problem has
    the algorithm's arithmetic."""
    plain = problem.plain()
    if plain != problem:
        with contextlib.suppress(cudnn.CudnnError):
            algorithm = choose(direction, problem, deterministic)
            return algorithm.of(problem), algorithm
    algorithm = choose(direction, plain, deterministic)
    return algorithm.of(plain), algorithm


def problem_of(
    x: Tensor, weights: Variable, y: Tensor, geometry: ConvolutionGeometry, arithmetic: ConvolutionArithmetic
) -> tuple[Problem, tuple[int, ...], dict[str, Tensor]]:
    """The problem for cuDNN, the offset of the input in cuDNN's input, and the actual tensors (one spatial axis as
    two)."""
    last = isinstance(weights.storage, ChannelsLastStorage)
    w = Tensor(weights.shape, weights.dtype, Layout.CHANNELS_LAST if last else Layout.PLAIN)
    padding, stride, dilation = geometry.padding, geometry.stride, geometry.dilation
    if len(geometry.kernel) == 1:
        x, w, y = (replace(t, shape=(*t.shape[:2], 1, t.shape[2])) for t in (x, w, y))
        padding, stride, dilation = ((0, 0), *padding), (1, *stride), (1, *dilation)
    both = tuple(min(sides) for sides in padding)
    before = tuple(sides[0] - p for sides, p in zip(padding, both, strict=True))
    room = (size + sum(sides) - 2 * p for size, sides, p in zip(x.shape[2:], padding, both, strict=True))
    inside = replace(x, shape=(*x.shape[:2], *room))
    problem = Problem(inside, w, y, both, stride, dilation, geometry.groups, arithmetic.math_type(x.dtype))
    return problem, before, {"x": x, "w": w, "y": y}


def kernels(arithmetic: ConvolutionArithmetic = EXACT) -> Registry:
    """Return cuDNN's convolutions, with the library's settings."""
    room = Registry("cudnn")
    room.kernel(ConvolutionForward)(functools.partial(forward, arithmetic=arithmetic))
    room.kernel(ConvolutionBackwardData)(functools.partial(backward_data, arithmetic=arithmetic))
    room.kernel(ConvolutionBackwardWeights)(functools.partial(backward_weights, arithmetic=arithmetic))
    return room


def forward(request: ConvolutionForward, arithmetic: ConvolutionArithmetic = EXACT) -> PreparedKernel:
    x, weights, y = request.x, request.weights, request.y
    storages: dict[str, Storage] = {}
    if weights.storage is None and x.layout is Layout.CHANNELS_LAST:
        storages["weights"] = ChannelsLastStorage(weights.shape, weights.shape[1:])
        weights = replace(weights, storage=storages["weights"])
    convolution = Convolution(FORWARD, x, weights, y, request.geometry, arithmetic)
    roles = {"x": "input0", "w": "weights", "y": "output"}
    add = AddBias(y.dtype, channels_of(y), relu=request.relu)

    def bind(buffers: Buffers) -> Sequence[Call]:
        calls = convolution.calls(buffers, roles)
        if request.relu or request.bias is not None:
            calls.append(add(buffers["output"], buffers.get("bias")))
        return calls

    return request.prepared(convolution.name, bind, workspace=convolution.workspace, storages=storages)


def backward_data(request: ConvolutionBackwardData, arithmetic: ConvolutionArithmetic = EXACT) -> PreparedKernel:
    geometry = request.geometry
    convolution = Convolution(BACKWARD_DATA, request.dx, request.weights, request.dy, geometry, arithmetic)
    roles = {"x": "input_gradient", "w": "weights", "y": "output_gradient"}

    copy = copied(request.dx, request.dx)

    def bind(buffers: Buffers) -> Sequence[Call]:
        calls = convolution.calls(buffers, roles, add=request.sum)
        if request.sum and address(buffers["addend"]) != address(buffers["input_gradient"]):
            calls.insert(0, copy(buffers["addend"], buffers["input_gradient"]))
        return calls

    return request.prepared(convolution.name, bind, workspace=convolution.workspace)


def backward_weights(request: ConvolutionBackwardWeights, arithmetic: ConvolutionArithmetic = EXACT) -> PreparedKernel:
    dy, bias, geometry = request.dy, request.bias, request.geometry
    convolution = Convolution(BACKWARD_FILTER, request.x, request.weights, dy, geometry, arithmetic)
    roles = {"x": "input0", "w": "weights_gradient", "y": "output_gradient"}
    sums = ChannelSums(dy)
    partial = convolution.reserve(sums.nbytes if bias is not None else 0)

    def bind(buffers: Buffers) -> Sequence[Call]:
        calls = convolution.calls(buffers, roles)
        if bias is not None:
            memory = buffers["workspace"][partial] if sums.nbytes else None
            calls.extend(sums.calls(buffers["output_gradient"], buffers["bias_gradient"], memory))
        return calls

    return request.prepared(convolution.name, bind, workspace=convolution.workspace)
