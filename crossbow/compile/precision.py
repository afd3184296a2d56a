"""Which operators compute with tensors of 16 bits, where the library has such kernels: decided from the class alone.

Those whose sums have many terms of one magnitude, and which take the time: convolutions, matrix products, and what
stands between them. Others get float32's tensors, and give such: functions that exp and log are in, losses, and the
classes of users. Where two operators that do not agree are neighbours, a kernel between them converts.
"""

from __future__ import annotations

from crossbow.ops import (
    BatchNorm,
    Concat,
    Conv,
    Dropout,
    ElementWiseOp,
    Flatten,
    InnerProduct,
    MatMul,
    Noop,
    Pool,
    ReLU,
    Scale,
)
from crossbow.ops.kernel import Kernel

NARROW: frozenset[type[Kernel]] = frozenset(
    (BatchNorm, Concat, Conv, Dropout, ElementWiseOp, Flatten, InnerProduct, MatMul, Noop, Pool, ReLU, Scale)
)
WIDE_VARIABLES: frozenset[type[Kernel]] = frozenset((BatchNorm, Scale))
"""Operators whose variables are few, and stay float32's."""


def is_narrow(kernel: Kernel) -> bool:
    """Whether tensors of the operator are of 16 bits. (A class derived from one of ours may be another function.)"""
    return type(kernel) in NARROW


def has_narrow_variables(kernel: Kernel) -> bool:
    """Whether its variables are, too."""
    return is_narrow(kernel) and type(kernel) not in WIDE_VARIABLES
