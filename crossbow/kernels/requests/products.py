"""Requests of operators that multiply matrices: inner product, matrix product, embedding and attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests.request import Request, Roles, gradients, with_bias
from crossbow.types import Phase, Shape, Tensor


@dataclass(frozen=True)
class MatrixProductGeometry:
    """Two stacks of matrices to multiply, with the same number of dimensions. The leading dimensions are broadcast."""

    inputs: tuple[Shape, Shape]
    """Shapes of the inputs."""
    transposed: tuple[bool, bool] = (False, False)
    """Whether each of the two is transposed."""

    def factor(self, number: int) -> Shape:
        """The shape of an input after transposition."""
        *stack, rows, columns = self.inputs[number]
        return (*stack, columns, rows) if self.transposed[number] else (*stack, rows, columns)

    @property
    def y(self) -> Shape:
        """The shape of the product."""
        a, b = self.factor(0), self.factor(1)
        return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


@dataclass(frozen=True)
class InnerProductForward(Request):
    """output = input0 · weightsᵀ + bias (relu: max(…, 0)). weights: (outputs, features); y: (…, outputs);
    x: (…, features), where the features may be several dimensions in logical order, C, H, W."""

    x: Tensor
    weights: Variable
    bias: Variable | None
    y: Tensor
    relu: bool = False

    writes = ("output",)

    @property
    def label(self) -> str:
        return f"{self.name}{' relu' if self.relu else ''}"

    @property
    def reads(self) -> Roles:
        return with_bias(self.bias, "input0", "weights")


@dataclass(frozen=True)
class InnerProductBackwardData(Request):
    """The gradient of an inner product's input."""

    dy: Tensor
    weights: Variable
    dx: Tensor

    reads, writes = ("output_gradient", "weights"), ("input_gradient",)


@dataclass(frozen=True)
class InnerProductBackwardWeights(Request):
    """The gradients of an inner product's variables."""

    x: Tensor
    dy: Tensor
    weights: Variable
    bias: Variable | None

    reads = ("input0", "output_gradient")

    @property
    def writes(self) -> Roles:
        return gradients(self.bias)


@dataclass(frozen=True)
class MatmulForward(Request):
    """output = input0 · input1, each with the dimensions of the geometry."""

    a: Tensor
    b: Tensor
    y: Tensor
    geometry: MatrixProductGeometry

    reads, writes = ("input0", "input1"), ("output",)


@dataclass(frozen=True)
class MatmulBackward(Request):
    """The gradient of input `number` of a matrix product."""

    dy: Tensor
    a: Tensor
    b: Tensor
    number: int
    geometry: MatrixProductGeometry

    writes = ("input_gradient",)

    @property
    def reads(self) -> Roles:
        return ("output_gradient", f"input{1 - self.number}")


@dataclass(frozen=True)
class EmbeddingForward(Request):
    """output (N, T, columns) = the row of the weights (rows, columns) for each index of input0 (N, T); 0 for the
    padding of a batch."""

    x: Tensor
    weights: Variable
    y: Tensor

    reads, writes = ("input0", "state", "weights"), ("output",)


@dataclass(frozen=True)
class EmbeddingBackward(Request):
    """The gradient of an embedding's weights, from the real examples of a batch."""

    x: Tensor
    weights: Variable
    dy: Tensor

    reads, writes = ("input0", "state", "output_gradient"), ("weights_gradient",)


@dataclass(frozen=True)
class SelfAttentionForward(Request):
    """output (N, T, D) = softmax(q kᵀ / √d) v for each of the heads, where input0 (N, T, 3 · D) is q, k and v, and
    d = D / heads. causal: position t attends to positions ≤ t. Training also keeps the probabilities, as (N, heads, T,
    T)."""

    x: Tensor
    y: Tensor
    heads: int
    causal: bool
    phase: Phase

    reads = ("input0",)

    @property
    def writes(self) -> Roles:
        return ("output", "kept") if self.phase is Phase.TRAIN else ("output",)


@dataclass(frozen=True)
class SelfAttentionBackward(Request):
    """The gradient of a self-attention's input, from the probabilities in `kept`."""

    x: Tensor
    dy: Tensor
    heads: int
    causal: bool

    reads, writes = ("input0", "output_gradient", "kept"), ("input_gradient",)


def probabilities_of(x: Tensor, heads: int) -> int:
    """Number of bytes of the probabilities of a self-attention."""
    examples, length, _ = x.shape
    return examples * heads * length * length * x.dtype.itemsize
