"""Activation functions."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_choice, check_number, check_unused, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ActivationBackward, ActivationForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class ReLU(Kernel):
    """Activation function, applied element by element; x and y have any shape.

    ========= ===============================================
    relu      max(x, 0) + negative_slope · min(x, 0)
    sigmoid   1 / (1 + exp(−x))
    tanh      tanh(x)
    clipped   min(max(x, 0), ceiling)
    ========= ===============================================

    At a kink, the derivative is that of the left side: for "relu" it is negative_slope at 0, and for "clipped" it is 0
    at both kinks.

    Use it after `Conv`, `InnerProduct`, `BatchNorm` or an `ElementWiseOp` sum, into whose kernels "relu" is fused. Use
    `MSRA` to initialise the weights before it.

    Ports ReLU.java and cudnnrelu.cu. Fixed from the original: the default ceiling was 0.

    See also: `SoftMax`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING
    derivative_from_output: ClassVar[bool] = True

    mode: str = field(default="relu", kw_only=False)
    """One of "relu", "sigmoid", "tanh" and "clipped"."""
    negative_slope: float = 0.0
    """Slope for x < 0, ≥ 0; only with mode="relu"."""
    ceiling: float | None = None
    """Upper bound of the output, > 0; only with mode="clipped", where None means 6."""

    def __post_init__(self) -> None:
        check_choice(self, "mode", ("relu", "sigmoid", "tanh", "clipped"))
        check_number(self, "negative_slope", minimum=0)
        check_number(self, "ceiling", minimum=0, above=True, optional=True)
        if self.mode != "relu" and self.negative_slope != 0:
            raise refuse(self, "negative_slope", self.negative_slope, f"0 with mode={self.mode!r}")
        if self.mode != "clipped":
            check_unused(self, f"mode={self.mode!r}", "ceiling")
        elif self.ceiling is None:
            object.__setattr__(self, "ceiling", 6.0)

    @property
    def setting(self) -> tuple[str, float, float]:
        """Arguments for kernels: mode, slope and ceiling."""
        return self.mode, self.negative_slope, self.ceiling or 0.0

    @property
    def is_relu(self) -> bool:
        return self.mode == "relu" and self.negative_slope == 0

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), y = site.inputs, site.output
        return (site.library.prepare(ActivationForward(x, y, *self.setting)),)

    def gradient(self, input: int = 0) -> Gradient:
        return ReLUGradient(input=input)


@configuration
class ReLUGradient(Gradient):
    """Gradient of a `ReLU`, from its output."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ReLU)
        (x,), y = site.inputs, site.output
        return (site.library.prepare(ActivationBackward(y, y, x, *peer.setting)),)
