"""Normalisation within each example."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LayerNormBackward, LayerNormForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.scale import AlongAxes
from crossbow.types import Shape


@configuration
class LayerNorm(AlongAxes):
    """y = weights · (x − mean) / √(variance + epsilon) (+ bias), with the mean and the biased variance of x over
    `number_of_axes` axes from `axis` on, separately for every position on the other axes.

    x, y: any shape; weights, bias: x.shape[axis : axis + number_of_axes]. By default the last axis is normalised, and
    with axis=-2 and number_of_axes=2 the last two, as torch.nn.LayerNorm does with a normalized_shape of one and of two
    numbers. With axis=1 the channels of every pixel are normalised. A negative axis counts from the end.

    Training and prediction compute the same, and examples of a batch do not depend on each other.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.

    See also: `BatchNorm`, `Scale`.
    """

    precision: ClassVar[Precision] = Precision.NARROW

    axis: int = -1
    """First axis to normalise, not 0."""
    bias: bool = True
    epsilon: float = 1e-5
    """Number that is added to the variance, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "epsilon", minimum=0, above=True)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if 0 in self.weights_shape(x):
            raise ValueError(f"expected at least one element to normalise. Received: {x}")
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), weights, bias = site.inputs, site.variables["weights"], site.variables.get("bias")
        axis = self.first_axis(x.shape)
        return (site.library.prepare(LayerNormForward(x, weights, bias, site.output, axis, self.epsilon)),)

    def gradient(self, input: int = 0) -> Gradient:
        return LayerNormGradient(input=input)


@configuration
class LayerNormGradient(Gradient):
    """Gradients of a `LayerNorm`, where x̂ is the normalised input, g = weights · dy, and means are over the normalised
    axes: dx = (g − mean g − x̂ · mean(g · x̂)) / √(variance + epsilon), dweights = Σ dy · x̂ and dbias = Σ dy over the
    other axes."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, LayerNorm)
        (x,), weights, bias = site.inputs, site.variables["weights"], site.variables.get("bias")
        dx = x if site.needs_input_gradient else None
        axis = peer.first_axis(x.shape)
        return (site.library.prepare(LayerNormBackward(x, site.output, weights, bias, dx, axis, peer.epsilon)),)
