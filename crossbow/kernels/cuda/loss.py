"""Losses and measures, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from crossbow.kernels.cuda.four import four, threads_per_line
from crossbow.kernels.cuda.launch import BLOCK, REALS, Argument, CudaKernel, Structure
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import (
    EuclideanLossBackward,
    EuclideanLossForward,
    LabelAccuracy,
    Request,
    SigmoidLossBackward,
    SigmoidLossForward,
    SoftmaxLossBackward,
    SoftmaxLossForward,
)
from crossbow.kernels.requests.losses import ignored_or_none
from crossbow.types import Array, ConfigurationError, Layout, Tensor

NORMALISERS = {"none": 0, "batch": 1, "full": 2, "valid": 3, "weight": 4}
"""Their numbers in sources/loss.cu."""
EACH_THREAD = 4
"""Number of elements that a thread adds up, unless there are very many elements."""
MOST_SHARES = 1024
"""Maximum number of blocks, each of which adds up a share of the sum."""


@CUDA.kernel(SoftmaxLossForward, lambda request: request.targets is None)
def softmax_loss_forward(request: SoftmaxLossForward) -> PreparedKernel:
    """With the logits, the kernel also reads the probabilities: only those that are too small to be exact are computed
    again."""
    p, rows, by = request.p, rows_of(request.p, request.ignored_label), normaliser_of(request.normalisation, request.p)
    shares = shares_of(request.labels.elements)
    if request.logits is not None:
        arguments = ("logits", "input0", *request.reads[1:])
        return sum_of(request, "softmax_loss_of_logits", p.dtype, by, (rows,), shares, arguments=arguments)
    constants = (rows, p.dtype.type(np.finfo(p.dtype.name).tiny))
    return sum_of(request, "softmax_loss", p.dtype, by, constants, shares)


@CUDA.kernel(SoftmaxLossBackward, lambda request: request.targets is None)
def softmax_loss_backward(request: SoftmaxLossBackward) -> PreparedKernel:
    p, labels, ignored_label, normalisation = request.p, request.labels, request.ignored_label, request.normalisation
    kernel, counting = CudaKernel("loss", "softmax_loss_backward", p.dtype), CudaKernel("loss", "count_labels", p.dtype)
    elements, rows, by = np.int64(p.elements), rows_of(p, ignored_label), normaliser_of(normalisation, p)
    counts = min(shares_of(labels.elements), BLOCK) if normalisation == "valid" else 0
    size = np.dtype(np.int64).itemsize

    def bind(buffers: Buffers) -> Sequence[Call]:
        values, classes, state = (buffers[role] for role in request.reads)
        counted = buffers["workspace"] if counts else None
        calls = [counting.blocks(counts, classes, state, rows, counted, shared=BLOCK * size)] if counts else []
        arguments = (values, classes, state, buffers["input_gradient"], elements, rows, by, counted, np.int32(counts))
        return [*calls, kernel.each(p.elements, *arguments, shared=BLOCK * size, work=1)]

    return request.prepared("cuda", bind, workspace=counts * size)


@CUDA.kernel(EuclideanLossForward)
def euclidean_loss_forward(request: EuclideanLossForward) -> PreparedKernel:
    x, labels = request.x, request.labels
    constants, by = (
        (four(x), np.int64(x.elements // x.shape[0]), is_double(labels)),
        normaliser_of("batch", x, factor=2),
    )
    return sum_of(request, "euclidean_loss", x.dtype, by, constants, shares_of(x.elements))


@CUDA.kernel(EuclideanLossBackward)
def euclidean_loss_backward(request: EuclideanLossBackward) -> PreparedKernel:
    x, labels, dx = request.x, request.labels, request.dx
    kernel = CudaKernel("loss", "euclidean_loss_backward", x.dtype)
    constants = (four(x), four(dx), np.int64(x.elements // x.shape[0]), is_double(labels))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, *(buffers[role] for role in request.roles), *constants),)

    return request.prepared("cuda", bind)


@CUDA.kernel(SigmoidLossForward)
def sigmoid_loss_forward(request: SigmoidLossForward) -> PreparedKernel:
    x, labels = request.x, request.labels
    size = x.elements // x.shape[0]
    constants, by = (four(x), np.int64(size), is_double(labels)), by_example(request.normalisation, size)
    return sum_of(request, "sigmoid_loss", x.dtype, by, constants, shares_of(x.elements))


@CUDA.kernel(SigmoidLossBackward)
def sigmoid_loss_backward(request: SigmoidLossBackward) -> PreparedKernel:
    x, labels, dx = request.x, request.labels, request.dx
    kernel, size = CudaKernel("loss", "sigmoid_loss_backward", x.dtype), x.elements // x.shape[0]
    constants = (four(x), four(dx), np.int64(size), is_double(labels), by_example(request.normalisation, size))

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, *(buffers[role] for role in request.roles), *constants),)

    return request.prepared("cuda", bind)


@CUDA.kernel(LabelAccuracy)
def accuracy(request: LabelAccuracy) -> PreparedKernel:
    p, labels, top_k, ignored_label = request.p, request.labels, request.top_k, request.ignored_label
    constants, by = (rows_of(p, ignored_label), np.int64(top_k)), normaliser_of("valid", p)
    threads = threads_per_line(p, 1)
    if threads == 1:
        return sum_of(request, "accuracy", p.dtype, by, constants, shares_of(labels.elements))
    return sum_of(request, "accuracy_rows", p.dtype, by, constants, min(labels.elements, MOST_SHARES), threads)


def is_double(targets: Tensor) -> np.int32:
    """Whether targets are of type double, for a kernel that supports both types: their type may differ from that of the
    other numbers."""
    if targets.dtype.name not in REALS:
        raise ConfigurationError(f"cuda: expected targets of type {' or '.join(REALS)}. Received: {targets}")
    return np.int32(targets.dtype == np.float64)


def sum_of(
    request: Request,
    function: str,
    dtype: np.dtype[np.generic],
    by: Structure,
    constants: Sequence[Argument | Callable[[], Array]],
    shares: int,
    threads: int = BLOCK,
    arguments: Sequence[str] = (),
) -> PreparedKernel:
    """The kernel for a sum: one block computes it, or several blocks compute shares, which one block then adds up.

    constants: arguments, or functions that return an array in the GPU's memory and are called while binding. arguments:
    the roles that the kernel takes, if they differ from those that the request reads.
    """
    roles = tuple(arguments or request.reads)
    kernel, total = CudaKernel("loss", function, dtype), CudaKernel("loss", "total", dtype)
    size = np.dtype(np.float64).itemsize

    def bind(buffers: Buffers) -> Sequence[Call]:
        inputs, result = [buffers[role] for role in roles], buffers["output"]
        values = [each() if callable(each) else each for each in constants]
        if shares == 1:
            return (kernel.blocks(1, *inputs, *values, None, by, result, threads=threads, shared=threads * size),)
        kept, state = buffers["workspace"], buffers["state"]
        return (
            kernel.blocks(shares, *inputs, *values, kept, by, result, threads=threads, shared=threads * size),
            total.blocks(1, kept, np.int64(shares), state, by, result, shared=BLOCK * size),
        )

    workspace = 2 * size * shares if shares > 1 else 0  # each share's sum and count
    more = tuple(role for role in roles if role not in request.reads)
    return request.prepared("cuda", bind, workspace=workspace, more_reads=more)


def shares_of(elements: int) -> int:
    """The number of blocks that add up this many elements, with a few elements for each thread."""
    return min(max(1, -(-elements // (EACH_THREAD * BLOCK))), MOST_SHARES)


def rows_of(p: Tensor, ignored_label: int | None) -> Structure:
    """`Rows` of sources/loss.cu."""
    classes, places = p.shape[1], p.elements // (p.shape[0] * p.shape[1])
    steps = (1, classes) if p.layout is Layout.CHANNELS_LAST else (places, 1)
    return Structure(classes, places, *steps, ignored_or_none(ignored_label))


def by_example(normalisation: str, size: int) -> Structure:
    """`Normaliser` of sources/loss.cu for `size` labels of each example."""
    return Structure(NORMALISERS[normalisation], size, 1)


def normaliser_of(normalisation: str, x: Tensor, factor: int = 1) -> Structure:
    """`Normaliser` of sources/loss.cu."""
    return Structure(
        NORMALISERS[normalisation], x.elements // (x.shape[0] * x.shape[1]) if len(x.shape) > 1 else 1, factor
    )
