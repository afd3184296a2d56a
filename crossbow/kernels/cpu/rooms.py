"""The rooms of the CPU library, in the order in which they are tried, and conditions of their kernels.

Our own kernels come before oneDNN's if they are faster, and after them for requests that oneDNN rejects.
"""

from __future__ import annotations

from crossbow.kernels.registry import Registry
from crossbow.types import Tensor

WINOGRAD = Registry("winograd", takes_empty=False)
"""Winograd's convolutions, with fewer products and larger rounding errors."""
SIMD = Registry("simd", takes_empty=False)
"""Our own convolutions that are faster than oneDNN's."""
ONEDNN = Registry("onednn", takes_empty=False)
PASSES = Registry("passes", takes_empty=False)
"""Compiled passes."""


def alike(*tensors: Tensor) -> bool:
    """Whether all tensors have the same order in memory."""
    return len({(tensor.shape, tensor.layout) for tensor in tensors}) == 1


def one_layout(*tensors: Tensor) -> bool:
    return len({tensor.layout for tensor in tensors}) == 1


def images(tensor: Tensor) -> bool:
    """Whether there are two spatial axes. The reference serves one or three."""
    return len(tensor.shape) == 4
