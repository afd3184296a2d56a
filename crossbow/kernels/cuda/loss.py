"""Losses and measures, over the first state[EXAMPLES] examples of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossbow.kernels.cuda.four import four, threads_per_line
from crossbow.kernels.cuda.launch import BLOCK, MOST_BLOCKS, REALS, Argument, Kernel, Structure
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.types import ConfigurationError, Layout, Tensor

READS = ("input0", "labels", "state")
NOTHING_IGNORED = -(2**40)
"""Stands for "no label is ignored": no 32-bit label is equal to it."""
NORMALISERS = {"none": 0, "batch": 1, "full": 2, "valid": 3}
"""Their numbers in sources/loss.cu."""
EACH_THREAD = 4
"""Elements that a thread adds up, where there are not very many."""
MOST_SHARES = 1024
"""Blocks that add up, each to a share of the sum."""


def softmax_loss_forward(
    p: Tensor, labels: Tensor, ignored_label: int | None, normalisation: str, logits: Tensor | None
) -> PreparedKernel:
    """input0 (probabilities)[, logits], labels, state → output (1,)."""
    if logits is not None:
        by, shares, reads = _normaliser(normalisation, p), _shares(labels.elements), ("logits", *READS)
        name, function = "softmax_loss_forward of logits", "softmax_loss_of_logits"
        return _sum(name, function, p.dtype, by, (_rows(p, ignored_label),), shares, reads=reads)
    constants = (_rows(p, ignored_label), p.dtype.type(np.finfo(p.dtype.name).tiny))
    by = _normaliser(normalisation, p)
    return _sum("softmax_loss_forward", "softmax_loss", p.dtype, by, constants, _shares(labels.elements))


def softmax_loss_backward(
    p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
) -> PreparedKernel:
    """input0, labels, state → input_gradient: (p − y) / normaliser, with respect to the logits."""
    kernel, counting = Kernel("loss", "softmax_loss_backward", p.dtype), Kernel("loss", "count_labels", p.dtype)
    elements, rows, by = np.int64(p.elements), _rows(p, ignored_label), _normaliser(normalisation, p)
    counts = min(_shares(labels.elements), BLOCK) if normalisation == "valid" else 0
    size = np.dtype(np.int64).itemsize
    blocks = min(-(-p.elements // BLOCK), MOST_BLOCKS)

    def bind(buffers: Buffers) -> Sequence[Call]:
        values, classes, state = (buffers[role] for role in READS)
        counted = buffers["workspace"] if counts else None
        calls = [counting.blocks(counts, classes, state, rows, counted, shared=BLOCK * size)] if counts else []
        arguments = (values, classes, state, buffers["input_gradient"], elements, rows, by, counted, np.int32(counts))
        return [*calls, kernel.blocks(blocks, *arguments, shared=BLOCK * size)]

    return PreparedKernel("softmax_loss_backward cuda", READS, ("input_gradient",), bind, workspace=counts * size)


def euclidean_loss_forward(x: Tensor, labels: Tensor) -> PreparedKernel:
    """input0, labels, state → output (1,): Σ (x − labels)² / (2 · examples)."""
    constants, by = (four(x), np.int64(x.elements // x.shape[0]), is_double(labels)), _normaliser("batch", x, factor=2)
    return _sum("euclidean_loss_forward", "euclidean_loss", x.dtype, by, constants, _shares(x.elements))


def euclidean_loss_backward(x: Tensor, labels: Tensor, dx: Tensor) -> PreparedKernel:
    """input0, labels, state → input_gradient: (x − labels) / examples."""
    kernel = Kernel("loss", "euclidean_loss_backward", x.dtype)
    constants = (four(x), four(dx), np.int64(x.elements // x.shape[0]), is_double(labels))
    writes = ("input_gradient",)

    def bind(buffers: Buffers) -> Sequence[Call]:
        return (kernel.each(x.elements, *(buffers[role] for role in (*READS, *writes)), *constants),)

    return PreparedKernel("euclidean_loss_backward cuda", READS, writes, bind)


def accuracy(p: Tensor, labels: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
    """input0, labels, state → output (1,): fraction of the labels that are among the top_k largest."""
    constants, by = (_rows(p, ignored_label), np.int64(top_k)), _normaliser("valid", p)
    threads = threads_per_line(p, 1)
    if threads == 1:
        return _sum("accuracy", "accuracy", p.dtype, by, constants, _shares(labels.elements))
    return _sum("accuracy", "accuracy_rows", p.dtype, by, constants, min(labels.elements, MOST_SHARES), threads)


def is_double(targets: Tensor) -> np.int32:
    """Whether targets, which need not have the type of the other numbers, are double: for a kernel that takes both."""
    if targets.dtype.name not in REALS:
        raise ConfigurationError(f"cuda: expected targets of type {' or '.join(REALS)}. Received: {targets}")
    return np.int32(targets.dtype == np.float64)


def _sum(
    name: str,
    function: str,
    dtype: np.dtype[np.generic],
    by: Structure,
    constants: Sequence[Argument],
    shares: int,
    threads: int = BLOCK,
    reads: Sequence[str] = READS,
) -> PreparedKernel:
    """A number that is added up: by one block, or by several each a share, and then by one all shares."""
    kernel, total = Kernel("loss", function, dtype), Kernel("loss", "total", dtype)
    size = np.dtype(np.float64).itemsize

    def bind(buffers: Buffers) -> Sequence[Call]:
        inputs, result = [buffers[role] for role in reads], buffers["output"]
        if shares == 1:
            return (kernel.blocks(1, *inputs, *constants, None, by, result, threads=threads, shared=threads * size),)
        kept, state = buffers["workspace"], buffers["state"]
        return (
            kernel.blocks(shares, *inputs, *constants, kept, by, result, threads=threads, shared=threads * size),
            total.blocks(1, kept, np.int64(shares), state, by, result, shared=BLOCK * size),
        )

    workspace = 2 * size * shares if shares > 1 else 0  # of each, its sum and what it has counted
    return PreparedKernel(f"{name} cuda", tuple(reads), ("output",), bind, workspace=workspace)


def _shares(elements: int) -> int:
    """How many blocks add up so many elements, a few with each thread."""
    return min(max(1, -(-elements // (EACH_THREAD * BLOCK))), MOST_SHARES)


def _rows(p: Tensor, ignored_label: int | None) -> Structure:
    """`Rows` of sources/loss.cu."""
    classes, places = p.shape[1], p.elements // (p.shape[0] * p.shape[1])
    steps = (1, classes) if p.layout is Layout.CHANNELS_LAST else (places, 1)
    return Structure(classes, places, *steps, NOTHING_IGNORED if ignored_label is None else ignored_label)


def _normaliser(normalisation: str, x: Tensor, factor: int = 1) -> Structure:
    """`Normaliser` of sources/loss.cu."""
    return Structure(
        NORMALISERS[normalisation], x.elements // (x.shape[0] * x.shape[1]) if len(x.shape) > 1 else 1, factor
    )
