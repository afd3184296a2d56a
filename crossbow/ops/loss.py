"""Base classes of losses."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_boolean, check_number
from crossbow.ops.kernel import Kernel
from crossbow.types import LabelRange, Shape


class LabelLoss(Kernel):
    """Base class of losses that take labels. The output is a scalar of shape (1,). A graph may have several losses.

    Subclasses declare the fields themselves. The order of their fields differs, and is part of the descriptions of
    networks in checkpoints.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True

    weight: float
    """Factor of the loss in the sum that training minimises, > 0. It is not part of the output."""
    auxiliary: bool
    """Whether the loss is for training only; tests, prediction and export omit it with all that only it needs."""

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
    """Base class of losses whose labels are numbers. x: (N, …); labels: of the same shape, or (N,) if x has one value
    per example."""

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
