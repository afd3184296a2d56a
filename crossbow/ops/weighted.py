"""The common base of operators with weights and, in most cases, a bias."""

from __future__ import annotations

import dataclasses

from crossbow.conf import check_boolean, check_number, check_unused, refuse
from crossbow.ops.initialiser import Initialiser
from crossbow.ops.kernel import Kernel, VariableSpec
from crossbow.types import Shape


class Weighted(Kernel):
    """Base class of operators with weights and, if they have a field `bias`, with a bias.

    Subclasses declare the fields themselves. The order of their fields differs, and is part of the descriptions of
    networks in checkpoints.
    """

    bias: bool = False
    """Whether a trained bias is added."""
    weight_initialiser: Initialiser
    bias_initialiser: Initialiser
    weight_learning_rate_multiplier: float
    """Factor of the learning rate for the weights, ≥ 0; 0 freezes them."""
    bias_learning_rate_multiplier: float
    """Factor of the learning rate for the bias, ≥ 0; 0 freezes it."""

    def __post_init__(self) -> None:
        check_boolean(self, "bias")
        check_variables(self)
        if not self.bias:
            check_unused(self, "bias=False", "bias_initialiser", "bias_learning_rate_multiplier")

    @property
    def is_frozen(self) -> bool:
        return self.weight_learning_rate_multiplier == 0 and (not self.bias or self.bias_learning_rate_multiplier == 0)

    def weights_shape(self, x: Shape) -> Shape:
        """Shape of the weights for an input of this shape."""
        raise NotImplementedError(f"{type(self).__name__} has no weights_shape")

    def bias_shape(self, x: Shape) -> Shape:
        """Shape of the bias for an input of this shape."""
        return self.weights_shape(x)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        (x,) = inputs
        weights = VariableSpec(
            "weights", self.weights_shape(x), self.weight_initialiser, self.weight_learning_rate_multiplier
        )
        if not self.bias:
            return (weights,)
        bias = VariableSpec("bias", self.bias_shape(x), self.bias_initialiser, self.bias_learning_rate_multiplier)
        return weights, bias


def check_variables(owner: object) -> None:
    """Raise ConfigurationError if a field of an operator whose name ends with "_initialiser" is not an `Initialiser`,
    or one whose name ends with "_learning_rate_multiplier" is not a number ≥ 0."""
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, field.name)
        if field.name.endswith("_initialiser") and not isinstance(value, Initialiser):
            raise refuse(owner, field.name, value, "an initialiser, as Gaussian(std=0.1)")
        if field.name.endswith("_learning_rate_multiplier"):
            check_number(owner, field.name, minimum=0)
