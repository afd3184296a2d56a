"""Trained factors along one or several axes."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_integer, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ScalingBackward, ScalingForward
from crossbow.ops.initialiser import Constant, Initialiser
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.weighted import Weighted
from crossbow.types import Shape


@configuration
class AlongAxes(Weighted):
    """Common base of Scale and LayerNorm, which have variables along some axes."""

    axis: int = 1
    """First axis of the variables, not 0."""
    number_of_axes: int = 1
    """Number of axes of the variables, ≥ 1."""
    bias: bool = False
    weight_initialiser: Initialiser = Constant(1.0)
    bias_initialiser: Initialiser = Constant(0.0)
    weight_learning_rate_multiplier: float = 1.0
    bias_learning_rate_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer other than 0, the axis of the examples")
        check_integer(self, "number_of_axes", 1)
        super().__post_init__()

    def first_axis(self, x: Shape) -> int:
        """The first axis of the variables as a non-negative index. Raises ValueError if they do not fit."""
        axis = self.axis if self.axis > 0 else self.axis + len(x)
        if axis < 1 or axis + self.number_of_axes > len(x):
            raise ValueError(
                f"expected an input with number_of_axes={self.number_of_axes} from axis={self.axis} on, "
                f"excluding the axis of the examples. Received: {x}"
            )
        return axis

    def weights_shape(self, x: Shape) -> Shape:
        axis = self.first_axis(x)
        return x[axis : axis + self.number_of_axes]


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
