"""Inner product: the fully connected layer."""

from __future__ import annotations

import math

from crossbow.conf import check_boolean, check_integer, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.initialiser import Constant, Initialiser, Xavier
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.types import Shape


@configuration
class InnerProduct(Kernel):
    """Fully connected: y[n, o] = b[o] + Σ_f w[o, f] · x[n, f].

    x: (N, features) or (N, C, H, W), whose features are ordered C, H, W; y: (N, number_of_outputs);
    weights: (number_of_outputs, features); bias: (number_of_outputs,).

    Ports InnerProduct.java and innerproduct.cu; `bias=False`, which crashes the original, included. Only `axis=1`
    (one output row per example) exists so far.
    """

    number_of_outputs: int
    axis: int = 1
    bias: bool = True
    weight_initialiser: Initialiser = Xavier()
    bias_initialiser: Initialiser = Constant()

    def __post_init__(self) -> None:
        check_integer(self, "number_of_outputs", 1)
        check_integer(self, "axis", 1)
        if self.axis != 1:
            raise refuse(self, "axis", self.axis, "1 (the only one so far)")
        check_boolean(self, "bias")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2:
            raise ValueError(f"expected an input of shape (N, features) or (N, C, H, W). Received: {x}")
        return (x[0], self.number_of_outputs)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        features = math.prod(inputs[0][1:])
        weights = VariableSpec("weights", (self.number_of_outputs, features), self.weight_initialiser)
        bias = VariableSpec("bias", (self.number_of_outputs,), self.bias_initialiser)
        return (weights, bias) if self.bias else (weights,)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        weights, bias = site.variables["weights"], site.variables.get("bias")
        (x,), y = site.inputs, site.output
        return (site.library.inner_product_forward(x, weights, bias, y, relu=site.fused_relu),)

    def gradient(self, input: int = 0) -> Gradient:
        return InnerProductGradient(input=input)


@configuration
class InnerProductGradient(Gradient):
    """Gradients of an `InnerProduct`: dw = dyᵀ x, db = Σ_n dy, and dx = dy w unless nothing upstream trains."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, InnerProduct)
        library, (x,), dy = site.library, site.inputs, site.output
        weights, bias = site.variables["weights"], site.variables.get("bias")
        kernels = [library.inner_product_backward_weights(x, dy, weights, bias)]
        if site.needs_input_gradient:
            kernels.append(library.inner_product_backward_data(dy, weights, x))
        return tuple(kernels)
