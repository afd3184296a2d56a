"""The sum of a graph's losses, which training minimises."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration, is_number, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import WeightedSum
from crossbow.ops.kernel import Kernel, Site
from crossbow.types import Shape


@configuration
class TotalLoss(Kernel):
    """The weighted sum of all losses of a graph: y = Σ_i weight_i · loss_i, of shape (1,).

    `Dataflow` adds it to a graph with auxiliary losses, or with a loss whose weight is not 1; a network does not
    contain it. Its value is the loss that is reported. It has no gradient operator: the gradient of every loss is
    multiplied by the loss's weight instead.

    See also: `SoftMaxLoss`, `EuclideanLoss`, `SigmoidLoss`.
    """

    number_of_inputs: ClassVar[int | None] = None

    weights: tuple[float, ...]
    """The weight of every loss, > 0."""

    def __post_init__(self) -> None:
        values = self.weights
        if not isinstance(values, tuple) or not values or not all(is_number(value) and value > 0 for value in values):
            raise refuse(self, "weights", values, "a tuple of numbers > 0, one for each loss")

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) != len(self.weights) or any(shape != (1,) for shape in inputs):
            raise ValueError(f"expected {len(self.weights)} losses of shape (1,). Received: {inputs}")
        return (1,)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(WeightedSum(site.inputs, site.output, self.weights)),)
