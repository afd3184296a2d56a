"""The rooms of the CPU library, in the order in which they are asked, and what their kernels ask of tensors.

Kernels of our own come before oneDNN's where they gain, and after them where oneDNN has none, or refuses.
"""

from __future__ import annotations

from crossbow.kernels.registry import Registry
from crossbow.types import Tensor

WINOGRAD = Registry("winograd", takes_empty=False)
"""Convolutions with fewer products, which round more."""
SIMD = Registry("simd", takes_empty=False)
"""Convolutions of our own that gain."""
ONEDNN = Registry("onednn", takes_empty=False)
PASSES = Registry("passes", takes_empty=False)
"""Compiled passes."""


def alike(*tensors: Tensor) -> bool:
    """Whether equal places in memory hold equal indices."""
    return len({(tensor.shape, tensor.layout) for tensor in tensors}) == 1


def one_layout(*tensors: Tensor) -> bool:
    return len({tensor.layout for tensor in tensors}) == 1


def images(tensor: Tensor) -> bool:
    """Whether there are two spatial axes. With one or three, windows slide in NumPy."""
    return len(tensor.shape) == 4
