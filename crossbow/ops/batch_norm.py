"""Batch normalisation."""

from __future__ import annotations

import math
from typing import ClassVar

from crossbow.conf import check_choice, check_number, check_unused, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import (
    BatchNormBackward,
    BatchNormInference,
    BatchNormSetting,
    BatchNormTraining,
    RequestType,
)
from crossbow.ops.initialiser import Constant, Initialiser
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site, VariableSpec
from crossbow.ops.weighted import Weighted
from crossbow.types import Phase, Shape


@configuration
class BatchNorm(Weighted):
    """Batch normalisation of every channel (Ioffe and Szegedy, 2015): y = weights · (x − μ) / √(σ² + ε) + bias.

    x, y: (N, C) or (N, C, …); weights, bias: (C,). In training, μ and σ² are the mean and the (biased) variance of the
    channel over the batch and all positions. Every training task updates the running statistics::

        running ← (1 − f) · running + f · observed

    with the observed mean and the *unbiased* variance, as in PyTorch and cuDNN. With statistics="fixed",
    f = 1 − moving_average_fraction. With statistics="cma" (cumulative moving average), f = 1 / (1 + number of previous
    batches), which gives the plain mean over all batches. In testing, μ and σ² are the running statistics of the base
    model, which are the mean over the learners.

    The running statistics are `running_mean` (initially 0), `running_variance` (1) and, with "cma", `count`; every
    learner has its own. If several nodes share the operator, they update the statistics one after the other.

    Use it between a convolution (with `bias=False`, because the bias cancels out) and its activation.

    Ports BatchNorm.java and cudnnbatchnorm.cu. Fixed from the original: statistics belong to a learner, not to a
    device; test batches are not counted; `bias=False` works.

    See also: `Scale`, `LRN`.
    """

    precision: ClassVar[Precision] = Precision.NARROW
    gradient_takes_relu: ClassVar[bool] = True

    epsilon: float = 1e-5
    """ε, added to the variance, > 0."""
    moving_average_fraction: float = 0.9
    """Fraction of the running statistics that a task keeps, in [0, 1]; only with statistics="fixed"."""
    statistics: str = "fixed"
    """Kind of average of the running statistics: "fixed" (exponential) or "cma" (cumulative)."""
    bias: bool = True
    weight_initialiser: Initialiser = Constant(1.0)
    bias_initialiser: Initialiser = Constant(0.0)
    weight_learning_rate_multiplier: float = 1.0
    bias_learning_rate_multiplier: float = 1.0
    mean_initialiser: Initialiser = Constant(0.0)
    """Initialiser of the running mean; `Values` for an imported model."""
    variance_initialiser: Initialiser = Constant(1.0)
    """Initialiser of the running variance."""
    count_initialiser: Initialiser = Constant(0.0)
    """Initialiser of the number of batches in the running statistics; only with statistics="cma"."""

    def __post_init__(self) -> None:
        check_number(self, "epsilon", minimum=0, above=True)
        check_number(self, "moving_average_fraction", minimum=0, maximum=1)
        check_choice(self, "statistics", ("fixed", "cma"))
        super().__post_init__()
        unused = "count_initialiser" if self.statistics == "fixed" else "moving_average_fraction"
        check_unused(self, f"statistics={self.statistics!r}", unused)

    @property
    def takes_relu(self) -> RequestType | None:
        return BatchNormTraining

    @property
    def takes_sum(self) -> RequestType | None:
        return BatchNormTraining

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2:
            raise ValueError(f"expected an input of shape (N, C) or (N, C, …). Received: {x}")
        return x

    def check_training(self, *inputs: Shape) -> None:
        (x,) = inputs
        if math.prod(x) <= x[1]:
            raise ValueError(f"expected more than one value per channel to train on. Received: an input of shape {x}")

    def weights_shape(self, x: Shape) -> Shape:
        return x[1:2]

    def running_statistics(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        shape = inputs[0][1:2]
        mean = VariableSpec("running_mean", shape, self.mean_initialiser)
        variance = VariableSpec("running_variance", shape, self.variance_initialiser, minimum=0)
        if self.statistics == "fixed":
            return (mean, variance)
        return (mean, variance, VariableSpec("count", (1,), self.count_initialiser, minimum=0))

    def setting(self, site: Site) -> BatchNormSetting:
        fraction = self.moving_average_fraction if self.statistics == "fixed" else None
        return BatchNormSetting(self.epsilon, fraction, bias=self.bias, relu=site.fused_relu, sum=site.fused_sum)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), setting = site.inputs, self.setting(site)
        if site.phase is Phase.TRAIN:
            return (site.library.prepare(BatchNormTraining(x, site.output, setting)),)
        return (site.library.prepare(BatchNormInference(x, site.output, setting)),)

    def gradient(self, input: int = 0) -> Gradient:
        return BatchNormGradient(input=input)


@configuration
class BatchNormGradient(Gradient):
    """Gradients of a `BatchNorm`, through the mean and the variance of the batch.

    With m values per channel and x̂ = (x − μ) / σ: dweights = Σ dy · x̂, dbias = Σ dy,
    dx = weights / σ · (dy − dbias / m − x̂ · dweights / m).
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, BatchNorm)
        (x,), dy = site.inputs, site.output
        dx = x if site.needs_input_gradient else None
        return (site.library.prepare(BatchNormBackward(x, dy, dx, peer.setting(site))),)
