"""What losses share."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_boolean, check_number
from crossbow.ops.kernel import Kernel
from crossbow.types import LabelRange, Shape


class LabelLoss(Kernel):
    """Common base of losses of labels: a scalar of shape (1,), of which a graph may have several.

    A subclass declares the fields, in an order of its own: descriptions of networks in checkpoints have this order.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True

    weight: float
    auxiliary: bool

    def __post_init__(self) -> None:
        check_number(self, "weight", minimum=0, above=True)
        check_boolean(self, "auxiliary")

    @property
    def loss_weight(self) -> float:
        return float(self.weight)

    @property
    def is_auxiliary(self) -> bool:
        return bool(self.auxiliary)


class ValueLoss(LabelLoss):
    """Common base of losses whose labels are numbers: x is (N, …), and labels have its shape, or (N,) if x has one
    value per example."""

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if not x:
            raise ValueError(f"expected an input of shape (N, …). Received: {x}")
        return (1,)

    @staticmethod
    def are_values(labels: LabelRange, x: Shape) -> bool:
        """Whether the labels are numbers that fit an input of this shape."""
        one_value = labels.shape == x[:1] and all(size == 1 for size in x[1:])
        return not labels.classes and (labels.shape == x or one_value)
