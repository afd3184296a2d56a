"""The rectifier with trained slopes."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_boolean, configuration
from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.requests import SlopeBackward, SlopeForward
from crossbow.ops.initialiser import Constant, Initialiser
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.weighted import Weighted
from crossbow.types import Shape


@configuration
class PReLU(Weighted):
    """y = x for x > 0, and weights · x otherwise, with a trained slope for each channel.

    x, y: (N, C, …); weights: (C,), or (1,) with `shared`.

    At 0, the derivative is the slope.

    Use it like a `ReLU`. It is not fused into the preceding operator. The solver's weight decay also applies to the
    slopes, and pulls them towards 0, the slope of a ReLU. The paper and PyTorch advise against weight decay of slopes,
    but it cannot be turned off for them alone: `SolverConf(weight_decay=0)` turns it off for all variables.

    Source: He, Zhang, Ren and Sun, Delving Deep into Rectifiers (2015), and `torch.nn.PReLU`.

    See also: `ReLU`.
    """

    precision: ClassVar[Precision] = Precision.NARROW

    shared: bool = field(default=False, kw_only=False)
    """Whether all channels have the same slope."""
    weight_initialiser: Initialiser = Constant(0.25)
    weight_learning_rate_multiplier: float = 1.0
    """Factor of the learning rate for the slopes, ≥ 0; 0 freezes them."""

    def __post_init__(self) -> None:
        check_boolean(self, "shared")
        super().__post_init__()

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2:
            raise ValueError(f"expected an input of shape (N, C, …). Received: {x}")
        return x

    def weights_shape(self, x: Shape) -> Shape:
        return (1,) if self.shared else x[1:2]

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), y = site.inputs, site.output
        return (site.library.prepare(SlopeForward(x, self.slopes(site), y)),)

    def slopes(self, site: Site) -> Variable:
        """The variable in the form that kernels take: a single slope has no axis."""
        weights = site.variables["weights"]
        return Variable((), weights.dtype, weights.storage) if self.shared else weights

    def gradient(self, input: int = 0) -> Gradient:
        return PReLUGradient(input=input)


@configuration
class PReLUGradient(Gradient):
    """Gradients of a `PReLU`: dx = dy for x > 0, and weights · dy otherwise; dweights = Σ dy · min(x, 0)."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, PReLU)
        (x,), dy = site.inputs, site.output
        dx = x if site.needs_input_gradient else None
        return (site.library.prepare(SlopeBackward(x, dy, peer.slopes(site), dx)),)
