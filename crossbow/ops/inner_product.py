"""Inner product: the fully connected layer."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_integer, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import (
    InnerProductBackwardData,
    InnerProductBackwardWeights,
    InnerProductForward,
    RequestType,
)
from crossbow.ops.initialiser import Constant, Initialiser, Xavier
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.weighted import Weighted
from crossbow.types import Shape


@configuration
class InnerProduct(Weighted):
    """Fully connected layer: y[…, o] = b[o] + Σ_f w[o, f] · x[…, f].

    The dimensions of x from `axis` on are the features, in logical order (C, H, W); those before it are kept. With
    axis=1, x: (N, features) or (N, C, H, W) and y: (N, number_of_outputs). With axis=2, x: (N, T, …) and
    y: (N, T, number_of_outputs). A negative axis counts from the end. weights: (number_of_outputs, features);
    bias: (number_of_outputs,).

    Use it for classifiers at the end of a network. It flattens the output of a `Conv` or `Pool` by itself, and a
    following `ReLU` is fused into its kernel.

    Ports InnerProduct.java and innerproduct.cu. Fixed from the original: `bias=False` works (it crashed).

    See also: `MatMul`, `Conv`, `Flatten`.
    """

    precision: ClassVar[Precision] = Precision.NARROW
    narrow_variables: ClassVar[bool] = True

    number_of_outputs: int = field(kw_only=False)
    """Number of output features, ≥ 1."""
    axis: int = 1
    """First dimension of the features, not 0."""
    bias: bool = True
    weight_initialiser: Initialiser = Xavier()
    bias_initialiser: Initialiser = Constant()
    weight_learning_rate_multiplier: float = 1.0
    bias_learning_rate_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_integer(self, "number_of_outputs", 1)
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer ≥ 1, or ≤ −1 to count from the end")
        super().__post_init__()

    @property
    def takes_relu(self) -> RequestType | None:
        return InnerProductForward

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return (*x[: self.first_axis(x)], self.number_of_outputs)

    def weights_shape(self, x: Shape) -> Shape:
        return (self.number_of_outputs, math.prod(x[self.first_axis(x) :]))

    def bias_shape(self, x: Shape) -> Shape:
        return (self.number_of_outputs,)

    def multiply_adds(self, *inputs: Shape) -> int:
        (x,) = inputs
        return math.prod(x) * self.number_of_outputs

    def first_axis(self, x: Shape) -> int:
        """The axis as a non-negative index."""
        axis = self.axis if self.axis > 0 else len(x) + self.axis
        if not 1 <= axis < len(x):
            shape = "(N, features) or (N, C, H, W)" if self.axis == 1 else f"(N, …) that has an axis={self.axis}"
            raise ValueError(f"expected an input of shape {shape}. Received: {x}")
        return axis

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        weights, bias = site.variables["weights"], site.variables.get("bias")
        (x,), y = site.inputs, site.output
        return (site.library.prepare(InnerProductForward(x, weights, bias, y, relu=site.fused_relu)),)

    def gradient(self, input: int = 0) -> Gradient:
        return InnerProductGradient(input=input)


@configuration
class InnerProductGradient(Gradient):
    """Gradients of an `InnerProduct`: dw = dyᵀ x, db = Σ dy and, if an operator upstream trains, dx = dy w.

    x and dy are matrices here, with one row for every combination of the dimensions before `axis`.
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, InnerProduct)
        library, (x,), dy = site.library, site.inputs, site.output
        weights, bias = site.variables["weights"], site.variables.get("bias")
        kernels = [library.prepare(InnerProductBackwardWeights(x, dy, weights, bias))]
        if site.needs_input_gradient:
            kernels.append(library.prepare(InnerProductBackwardData(dy, weights, x)))
        return tuple(kernels)
