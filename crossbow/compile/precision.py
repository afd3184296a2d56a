"""Which operators compute with tensors of 16 bits, where the library has such kernels: decided from the graph alone.

Those that take the time do: convolutions, matrix products, and what has variables for each channel. What only passes
numbers on, or picks among them, follows its inputs. All others get float32's tensors, and give such: functions that exp
and log are in, losses, and the classes of users. Where two operators that do not agree are neighbours, a kernel between
them converts.
"""

from __future__ import annotations

from crossbow.dataflow.graph import BATCH, Graph
from crossbow.ops import (
    BatchNorm,
    ChannelShuffle,
    Concat,
    Conv,
    Dropout,
    ElementWiseOp,
    Flatten,
    InnerProduct,
    MatMul,
    Noop,
    Pad,
    Pool,
    ReLU,
    Reshape,
    Scale,
    Slice,
    Transpose,
)
from crossbow.ops.kernel import Kernel

NARROW: frozenset[type[Kernel]] = frozenset((BatchNorm, Conv, InnerProduct, MatMul, Scale))
FOLLOWING: frozenset[type[Kernel]] = frozenset(
    (ChannelShuffle, Concat, Dropout, ElementWiseOp, Flatten, Noop, Pad, Pool, ReLU, Reshape, Slice, Transpose)
)
"""Operators whose tensors are of 16 bits where all their inputs are."""
WIDE_VARIABLES: frozenset[type[Kernel]] = frozenset((BatchNorm, Scale))
"""Operators whose variables are few, and stay float32's."""


def narrow_vertices(graph: Graph) -> frozenset[int]:
    """The positions of the operators whose tensors are of 16 bits. A gradient's are those of its peer."""
    found: set[int] = set()
    for vertex in graph:
        if vertex.peer is not None:
            narrow = vertex.peer in found
        else:
            kind = type(vertex.kernel)
            inputs = [source != BATCH and source in found for source in vertex.inputs]
            narrow = kind in NARROW or (kind in FOLLOWING and bool(inputs) and all(inputs))
        if narrow:
            found.add(vertex.order)
    return frozenset(found)


def may_be_narrow(kernel: Kernel) -> bool:
    """Whether there are kernels with tensors of 16 bits. (A class derived from one of ours may be another function.)"""
    return type(kernel) in NARROW | FOLLOWING


def has_narrow_variables(kernel: Kernel) -> bool:
    """Whether the operator's variables are of 16 bits, too."""
    return type(kernel) in NARROW - WIDE_VARIABLES
