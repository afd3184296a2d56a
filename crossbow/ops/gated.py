"""The common base of activation functions that multiply their input by a gate: GELU, SiLU and HardSwish."""

from __future__ import annotations

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import GatedActivationBackward, GatedActivationForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class Gated(Kernel):
    """Common base of the gated activation functions: y = x · gate(x), element by element; x and y have any shape."""

    @property
    def gate(self) -> str:
        """Name of the gate in the requests."""
        raise NotImplementedError

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(GatedActivationForward(x, site.output, self.gate)),)


@configuration
class GatedGradient(Gradient):
    """Gradient of a gated activation function, computed from its input: dx = dy · (gate(x) + x · gate'(x))."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Gated)
        (x,) = site.inputs
        return (site.library.prepare(GatedActivationBackward(x, site.output, x, peer.gate)),)
