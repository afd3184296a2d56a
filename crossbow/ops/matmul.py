"""Product of two matrices, or of two stacks of matrices."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from crossbow.conf import check_boolean, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class MatMul(Kernel):
    """Matrix product y = a b. The last two dimensions are the matrices; the dimensions before them are broadcast.

    a: (…, m, k), or (…, k, m) with `transpose_a`; b: (…, k, n), or (…, n, k) with `transpose_b`; y: (…, m, n). As in
    NumPy and ONNX, a one-dimensional a is a row and a one-dimensional b a column, and y lacks that dimension. The
    gradient of an input is summed over its broadcast dimensions.

    Use it for products of two activations, as in attention. `InnerProduct` multiplies by trained weights.

    The original has only a function in C, which no program calls.

    See also: `InnerProduct`, `Transpose`.
    """

    precision: ClassVar[Precision] = Precision.NARROW
    narrow_variables: ClassVar[bool] = True

    number_of_inputs: ClassVar[int | None] = 2

    transpose_a: bool = False
    """Whether a is transposed."""
    transpose_b: bool = False
    """Whether b is transposed."""

    def __post_init__(self) -> None:
        check_boolean(self, "transpose_a")
        check_boolean(self, "transpose_b")

    def geometry(self, a: Shape, b: Shape) -> MatrixProductGeometry:
        """The inputs as stacks of matrices. Raises ValueError if they cannot be multiplied."""
        received = f"Received: {a} and {b}"
        if not a or not b:
            raise ValueError(f"expected inputs of at least one dimension. {received}")
        for name, shape in (("transpose_a", a), ("transpose_b", b)):
            if getattr(self, name) and len(shape) == 1:
                raise ValueError(f"expected at least two dimensions with {name}=True. {received}")
        column = (*b, 1) if len(b) == 1 else b
        rank = max(len(a), len(column))
        first, second = ((1,) * (rank - len(shape)) + shape for shape in (a, column))
        geometry = MatrixProductGeometry((first, second), (self.transpose_a, self.transpose_b))
        if geometry.factor(0)[-1] != geometry.factor(1)[-2]:
            raise ValueError(
                f"expected as many columns of a as rows of b, not {geometry.factor(0)[-1]} and "
                f"{geometry.factor(1)[-2]}. {received}"
            )
        try:
            np.broadcast_shapes(first[:-2], second[:-2])
        except ValueError:
            raise ValueError(f"expected equal dimensions, or 1, before those of the matrices. {received}") from None
        return geometry

    def output_shape(self, *inputs: Shape) -> Shape:
        a, b = inputs
        *stack, rows, columns = self.geometry(a, b).y
        return (*stack, *((rows,) if len(a) > 1 else ()), *((columns,) if len(b) > 1 else ()))

    def multiply_adds(self, *inputs: Shape) -> int:
        geometry = self.geometry(*inputs)
        return math.prod(geometry.y) * geometry.factor(0)[-1]

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        a, b = site.inputs
        return (site.library.prepare(MatmulForward(a, b, site.output, self.geometry(a.shape, b.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return MatMulGradient(input=input)


@configuration
class MatMulGradient(Gradient):
    """Gradient of a `MatMul` with respect to one input: da = dy bᵀ, db = aᵀ dy."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, MatMul)
        a, b = site.inputs
        return (site.library.prepare(MatmulBackward(site.output, a, b, self.input, peer.geometry(a.shape, b.shape))),)
