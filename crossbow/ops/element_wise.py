"""Element-wise sums, products and maxima of tensors."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_choice, configuration, is_number, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import (
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    RequestType,
    ScaledGradient,
    WeightedSum,
)
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape

MAXIMUM_INPUTS = 256
"""Maximum number of inputs for type="max", whose kernels store the input that an element came from in one byte."""


@configuration
class ElementWiseOp(Kernel):
    """Combines all inputs element by element; all x_i and y have one shape.

    ========== =====================================================================
    sum        y = Σ_i coefficient_i · x_i; without `coefficients` all are 1
    product    y = Π_i x_i
    max        y = max_i x_i; NaN if any x_i is NaN
    ========== =====================================================================

    One node may be an input several times, for example in x · x.

    Use the sum for residual connections (a following `ReLU` is fused into its kernel) and the product for gates.

    Ports ElementWiseOp.java and elementwiseop.cu. Fixed from the original: product and max are implemented (it computed
    the sum for every type); the gradient of an input has that input's coefficient (it had that of the first input).

    See also: `Concat`, `Broadcast`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    number_of_inputs: ClassVar[int | None] = None

    type: str = field(default="sum", kw_only=False)
    """One of "sum", "product" and "max"."""
    coefficients: tuple[float, ...] | None = None
    """One coefficient per input, for type="sum"; None means 1 for each."""

    def __post_init__(self) -> None:
        check_choice(self, "type", ("sum", "product", "max"))
        values = self.coefficients
        if values is not None:
            if self.type != "sum":
                raise refuse(self, "coefficients", values, f"None with type={self.type!r}")
            if not isinstance(values, tuple | list) or not values or not all(is_number(value) for value in values):
                raise refuse(self, "coefficients", values, "finite numbers, one for each input, or None")
            object.__setattr__(self, "coefficients", tuple(float(value) for value in values))

    @property
    def takes_relu(self) -> RequestType | None:
        return WeightedSum if self.type == "sum" else None

    @property
    def is_sum(self) -> bool:
        return self.type == "sum" and (self.coefficients is None or all(value == 1 for value in self.coefficients))

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs or any(shape != inputs[0] for shape in inputs):
            raise ValueError(f"expected inputs of one shape. Received: {', '.join(map(str, inputs)) or 'none'}")
        if self.coefficients is not None and len(self.coefficients) != len(inputs):
            raise ValueError(f"expected one input for each of {self.coefficients}. Received: {len(inputs)} inputs")
        if self.type == "max" and len(inputs) > MAXIMUM_INPUTS:
            raise ValueError(
                f"expected at most {MAXIMUM_INPUTS} inputs with type='max'. Received: {len(inputs)} inputs"
            )
        return inputs[0]

    def factors(self, inputs: int) -> tuple[float, ...]:
        """One coefficient for each of the given number of inputs."""
        return (1.0,) * inputs if self.coefficients is None else self.coefficients

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        if self.type == "product":
            return (site.library.prepare(ProductForward(site.inputs, site.output)),)
        if self.type == "max":
            return (site.library.prepare(MaximumForward(site.inputs, site.output, site.phase)),)
        factors, relu = self.factors(len(site.inputs)), site.fused_relu
        return (site.library.prepare(WeightedSum(site.inputs, site.output, factors, relu=relu)),)

    def gradient(self, input: int = 0) -> Gradient:
        return ElementWiseOpGradient(input=input)


@configuration
class ElementWiseOpGradient(Gradient):
    """Gradient of an `ElementWiseOp` with respect to one input.

    sum: dx_i = coefficient_i · dy; product: dx_i = dy · Π_{j ≠ i} x_j, without a division, so that inputs may be 0;
    max: dx_i = dy if input i is the first of the largest inputs, else 0.
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ElementWiseOp)
        if peer.type == "product":
            return (site.library.prepare(ProductBackward(site.inputs, site.output, self.input)),)
        if peer.type == "max":
            return (site.library.prepare(MaximumBackward(site.inputs, site.output, self.input)),)
        coefficient = peer.factors(len(site.inputs))[self.input]
        return (site.library.prepare(ScaledGradient(site.output, site.inputs[self.input], coefficient)),)
