"""Sums of tensors, element by element."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_choice, configuration, is_number, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class ElementWiseOp(Kernel):
    """y = Σ_i coefficient_i · x_i, element by element; all x_i and y of one shape.

    Without `coefficients` all are 1. Ports ElementWiseOp.java and elementwiseop.cu. Fixed from the original: the
    gradient of an input has that input's coefficient (it was the first one's).
    """

    number_of_inputs: ClassVar[int | None] = None

    type: str = "sum"
    coefficients: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_choice(self, "type", ("sum", "product", "max"))
        if self.type != "sum":
            raise refuse(self, "type", self.type, "'sum' ('product' and 'max' do not exist yet)")
        values = self.coefficients
        if values is not None:
            if not isinstance(values, tuple | list) or not values or not all(is_number(value) for value in values):
                raise refuse(self, "coefficients", values, "finite numbers, one for each input, or None")
            object.__setattr__(self, "coefficients", tuple(float(value) for value in values))

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs or any(shape != inputs[0] for shape in inputs):
            raise ValueError(f"expected inputs of one shape. Received: {', '.join(map(str, inputs)) or 'none'}")
        if self.coefficients is not None and len(self.coefficients) != len(inputs):
            raise ValueError(f"expected one input for each of {self.coefficients}. Received: {len(inputs)} inputs")
        return inputs[0]

    def factors(self, inputs: int) -> tuple[float, ...]:
        """The coefficient of each of so many inputs."""
        return (1.0,) * inputs if self.coefficients is None else self.coefficients

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        factors = self.factors(len(site.inputs))
        return (site.library.weighted_sum(site.inputs, site.output, factors, relu=site.fused_relu),)

    def gradient(self, input: int = 0) -> Gradient:
        return ElementWiseOpGradient(input=input)


@configuration
class ElementWiseOpGradient(Gradient):
    """Gradient of an `ElementWiseOp` with respect to one input: its coefficient times the gradient."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ElementWiseOp)
        if not site.needs_input_gradient:
            return ()
        coefficient = peer.factors(len(site.inputs))[self.input]
        return (site.library.scale(site.output, site.inputs[self.input], coefficient),)
