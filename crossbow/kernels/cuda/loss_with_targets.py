"""Cross-entropy with label smoothing and class weights, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.launch import BLOCK, CudaKernel
from crossbow.kernels.cuda.loss import normaliser_of, rows_of, shares_of, sum_of
from crossbow.kernels.cuda.rooms import CUDA
from crossbow.kernels.cuda.transfer import to_device
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.kernels.requests import SoftmaxLossBackward, SoftmaxLossForward


def _kind(normalisation: str) -> str:
    """The normaliser's name: "valid" adds up class weights."""
    return "weight" if normalisation == "valid" else normalisation


@CUDA.kernel(SoftmaxLossForward, lambda request: request.targets is not None)
def softmax_loss_forward(request: SoftmaxLossForward) -> PreparedKernel:
    assert request.targets is not None
    p, by = request.p, normaliser_of(_kind(request.normalisation), request.p)
    values = p if request.logits is None else request.logits
    constants = (
        rows_of(values, request.ignored_label),
        functools.partial(to_device, request.targets.weights(p.shape[1])),
        np.float64(request.targets.smoothing),
        np.int32(request.logits is not None),
        p.dtype.type(np.finfo(p.dtype.name).tiny),
    )
    return sum_of(request, "loss_with_targets", p.dtype, by, constants, shares_of(request.labels.elements))


@CUDA.kernel(SoftmaxLossBackward, lambda request: request.targets is not None)
def softmax_loss_backward(request: SoftmaxLossBackward) -> PreparedKernel:
    assert request.targets is not None
    p, smoothing = request.p, np.float64(request.targets.smoothing)
    weights = request.targets.weights(p.shape[1])
    kernel, adding = (CudaKernel("loss", name, p.dtype) for name in ("backward_with_targets", "sum_weights"))
    rows, by = rows_of(p, request.ignored_label), normaliser_of(_kind(request.normalisation), p)
    sums = min(shares_of(request.labels.elements), BLOCK) if request.normalisation == "valid" else 0
    size = np.dtype(np.float64).itemsize

    def bind(buffers: Buffers) -> Sequence[Call]:
        values, labels, state = (buffers[role] for role in request.reads)
        on_device, summed = to_device(weights), buffers["workspace"] if sums else None
        calls = [adding.blocks(sums, labels, state, rows, on_device, summed, shared=BLOCK * size)] if sums else []
        targets = (on_device, smoothing, np.float64(weights.sum()))
        elements, number = np.int64(p.elements), np.int32(sums)
        arguments = (values, labels, state, buffers["input_gradient"], elements, rows, *targets, by, summed, number)
        return [*calls, kernel.each(p.elements, *arguments, shared=BLOCK * size, work=1)]

    return request.prepared("cuda", bind, workspace=sums * size)
