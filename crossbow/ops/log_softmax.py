"""Logarithm of softmax: scores to log-probabilities."""

from __future__ import annotations

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LogSoftmaxBackward, LogSoftmaxForward
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.softmax import AlongAxis


@configuration
class LogSoftMax(AlongAxis):
    """y = x − log Σ exp(x), with the sum over `axis`; computed from x − max x to prevent overflow.

    x and y: (N, classes), or with more dimensions. A negative axis counts from the end; axis 0 is rejected.

    Networks from PyTorch often end with it. The softmax of log-probabilities equals the probabilities, so a SoftMax and
    a SoftMaxLoss after it compute the same negative log-likelihood as PyTorch's NLLLoss.

    See also: `SoftMax`, `SoftMaxLoss`.
    """

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(LogSoftmaxForward(x, site.output, self.first_axis(x.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return LogSoftMaxGradient(input=input)


@configuration
class LogSoftMaxGradient(Gradient):
    """Gradient of a `LogSoftMax`: dx = dy − exp(y) · Σ dy."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, LogSoftMax)
        (x,), y = site.inputs, site.output
        return (site.library.prepare(LogSoftmaxBackward(y, y, x, peer.first_axis(x.shape))),)
