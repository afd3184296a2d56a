"""Trained factors along one or several axes."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import (
    check_boolean,
    check_integer,
    check_learning_rate_multipliers,
    check_unused,
    configuration,
    is_integer,
    refuse,
)
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.ops.initialiser import Constant, Initialiser, check_initialisers
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site, VariableSpec
from crossbow.types import Shape


@configuration
class AlongAxes(Kernel):
    """Common base of Scale and LayerNorm, which have variables along some axes."""

    axis: int = 1
    """First axis of the variables, not 0."""
    number_of_axes: int = 1
    """Number of axes of the variables, ≥ 1."""
    bias: bool = False
    """Whether a trained bias is added."""
    weight_initialiser: Initialiser = Constant(1.0)
    bias_initialiser: Initialiser = Constant(0.0)
    weight_learning_rate_multiplier: float = 1.0
    """Factor of the learning rate for the weights, ≥ 0; 0 freezes them."""
    bias_learning_rate_multiplier: float = 1.0
    """Factor of the learning rate for the bias, ≥ 0; 0 freezes it."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer other than 0, the axis of the examples")
        check_integer(self, "number_of_axes", 1)
        check_boolean(self, "bias")
        check_learning_rate_multipliers(self)
        check_initialisers(self)
        if not self.bias:
            check_unused(self, "bias=False", "bias_initialiser", "bias_learning_rate_multiplier")

    def first_axis(self, x: Shape) -> int:
        """The first axis of the variables as a non-negative index. Raises ValueError if they do not fit."""
        axis = self.axis if self.axis > 0 else self.axis + len(x)
        if axis < 1 or axis + self.number_of_axes > len(x):
            raise ValueError(
                f"expected an input with number_of_axes={self.number_of_axes} from axis={self.axis} on, "
                f"excluding the axis of the examples. Received: {x}"
            )
        return axis

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        (x,) = inputs
        axis = self.first_axis(x)
        shape = x[axis : axis + self.number_of_axes]
        weights = VariableSpec("weights", shape, self.weight_initialiser, self.weight_learning_rate_multiplier)
        bias = VariableSpec("bias", shape, self.bias_initialiser, self.bias_learning_rate_multiplier)
        return (weights, bias) if self.bias else (weights,)


@configuration
class Scale(AlongAxes):
    """y = weights · x (+ bias), with variables along `number_of_axes` axes of x from `axis` on.

    x, y: any shape; weights, bias: x.shape[axis : axis + number_of_axes]. With axis=1 and number_of_axes=1 there is one
    factor per channel. A negative axis counts from the end.

    Use it after a normalisation without scale and shift.

    It equals Caffe's layer with trained factors. The original has only the configuration (Scale.java, never bound).

    See also: `BatchNorm`, `ElementWiseOp`.
    """

    precision: ClassVar[Precision] = Precision.NARROW

    @property
    def is_frozen(self) -> bool:
        return self.weight_learning_rate_multiplier == 0 and (not self.bias or self.bias_learning_rate_multiplier == 0)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        self.first_axis(x)
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), weights, bias = site.inputs, site.variables["weights"], site.variables.get("bias")
        return (site.library.prepare(ScalingForward(x, weights, bias, site.output, self.first_axis(x.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return ScaleGradient(input=input)


@configuration
class ScaleGradient(Gradient):
    """Gradients of a `Scale`: dweights = Σ dy · x and dbias = Σ dy over the other axes, dx = weights · dy."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Scale)
        (x,), weights, bias = site.inputs, site.variables["weights"], site.variables.get("bias")
        dx = x if site.needs_input_gradient else None
        axis = peer.first_axis(x.shape)
        return (site.library.prepare(ScalingBackward(x, site.output, weights, bias, dx, axis)),)
