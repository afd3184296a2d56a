"""Mixed precision: tensors of 16 and of 32 bits, for the tensor cores, and for half the memory.

Accumulators, the solver's weights, the rules' vectors and running statistics stay float32. A task rounds the weights
once, when it begins, and widens the gradients when it ends.

float16 has no numbers between 0 and 6e-8, so its gradients are those of the loss times a scale (Micikevicius et al.,
"Mixed Precision Training", ICLR 2018). A scale that is too large causes numbers that are not finite. The task's
gradient then counts as zero, so that the averaging is unchanged, and the scale is halved. At the smallest scale, the
gradient itself is the cause: it is kept, and ends the run as in float32. bfloat16 has float32's range, and needs no
scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.cuda.launch import NARROW, CudaKernel
from crossbow.kernels.cuda.transfer import to_device
from crossbow.kernels.interface import Buffers, Call, PreparedKernel
from crossbow.types import ConfigurationError, Tensor

FIRST_SCALE = 2.0**12
"""The scale at the beginning of training."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-14, 2.0**24
STEADY_TASKS = 2000
"""Number of tasks without an overflow after which the scale is doubled."""
RUN = 4096
"""Number of elements of a gradient that a block widens."""
KINDS = {"narrow": 0, "scaled": 1, "ready": 2}
"""Kinds of gradients, by their numbers in sources/mixed.cu."""


def narrow_type(name: str) -> np.dtype[np.generic]:
    """Return float16 or bfloat16. NumPy alone lacks bfloat16: raises ConfigurationError, with the package to install.

    >>> narrow_type("bfloat16").itemsize
    2
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ConfigurationError(
            f"expected ml_dtypes for precision='bfloat16': pip install ml_dtypes. Received: {error}"
        ) from error
    found: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
    return found


class Mixed:
    """`MixedPrecision` on GPUs, with float32 as the other type."""

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        if dtype.name not in NARROW:
            raise ConfigurationError(f"Mixed: dtype must be {' or '.join(NARROW)}. Received: {dtype}")
        self.dtype = dtype
        self.scales = dtype.name == "float16"

    def new_scaling(self) -> NDArray[np.float32]:
        """Return the initial state: the scale, whether a gradient was too large in this task, the number of tasks since
        the last change, and the number of tasks with a gradient that was too large."""
        return np.array([FIRST_SCALE, 0, 0, 0], np.float32)

    def convert(self, x: Tensor, y: Tensor, *, gradient: bool) -> PreparedKernel:
        """input0[, scaling] → output."""
        name, scaled = "narrow" if y.dtype == self.dtype else "widen", gradient and self.scales
        kernel, elements = self._kernel(name), np.int64(x.elements)

        def bind(buffers: Buffers) -> Sequence[Call]:
            scaling = buffers["scaling"] if scaled else None
            return (kernel.each(x.elements, buffers["input0"], buffers["output"], elements, scaling, pointwise=True),)

        return PreparedKernel(f"{name} {self.dtype}", ("input0", *self._scaling(scaled)), ("output",), bind)

    def narrow_weights(self, *, training: bool) -> PreparedKernel:
        """weights[, scaling] → narrow_weights."""
        scaled, kernel = training and self.scales, self._kernel("narrow_weights")
        numbers = np.float32(STEADY_TASKS), np.float32(SMALLEST_SCALE), np.float32(LARGEST_SCALE)

        def bind(buffers: Buffers) -> Sequence[Call]:
            weights, scaling = buffers["weights"], buffers["scaling"] if scaled else None
            arrays = weights, buffers["narrow_weights"], np.int64(weights.size), scaling
            return (kernel.each(-(-weights.size // kernel.pack), *arrays, *numbers),)

        reads = ("weights", *self._scaling(scaled))
        return PreparedKernel(f"narrow_weights {self.dtype}", reads, ("narrow_weights",), bind)

    def widen_gradient(self, parts: Sequence[tuple[slice, str]]) -> PreparedKernel:
        """narrow_gradient, gradient[, scaling] → gradient."""
        table, smallest = _runs(parts), np.float32(SMALLEST_SCALE)
        widen, discard = self._kernel("widen_gradient"), self._kernel("discard_overflown")

        def bind(buffers: Buffers) -> Sequence[Call]:
            gradient, scaling = buffers["gradient"], buffers["scaling"] if self.scales else None
            calls = [widen.blocks(len(table), buffers["narrow_gradient"], gradient, to_device(table), scaling)]
            if scaling is not None:
                threads, arguments = -(-gradient.size // discard.pack), (gradient, np.int64(gradient.size), scaling)
                calls.append(discard.each(threads, *arguments, smallest))
            return calls

        reads = ("narrow_gradient", "gradient", *self._scaling(self.scales))
        return PreparedKernel(f"widen_gradient {self.dtype}", reads, ("gradient",), bind)

    def _kernel(self, name: str) -> CudaKernel:
        return CudaKernel("mixed", name, self.dtype)

    def _scaling(self, scaled: bool) -> tuple[str, ...]:
        return ("scaling",) if scaled else ()


def _runs(parts: Sequence[tuple[slice, str]]) -> NDArray[np.int64]:
    """A row for each block: the beginning and end of its run, and the kind of its elements."""
    return np.array(
        [
            (start, min(start + RUN, part.stop), KINDS[kind])
            for part, kind in parts
            for start in range(part.start, part.stop, RUN)
        ],
        np.int64,
    ).reshape(-1, 3)
