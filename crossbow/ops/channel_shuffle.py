"""Channels of several groups, mixed."""

from __future__ import annotations

from crossbow.conf import check_integer, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class ChannelShuffle(Kernel):
    """The first channel of every group, then the second of every group, and so on (Zhang et al., ShuffleNet, 2018).

    x, y: (N, C) or (N, C, …), C being a multiple of `groups`: channel g · C / groups + c of x is channel c · groups + g
    of y. It lets a convolution with groups see channels of all groups of the one before. As PyTorch's ChannelShuffle.
    The original has no such operator.
    """

    groups: int = 2

    def __post_init__(self) -> None:
        check_integer(self, "groups", 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2 or x[1] % self.groups:
            expected = f"expected an input (N, C) or (N, C, …) whose channels are a multiple of groups={self.groups}"
            raise ValueError(f"{expected}. Received: {x}")
        return x

    def order(self, x: Shape) -> tuple[Shape, tuple[int, ...]]:
        """The input's sizes, the groups apart, and the order in which they come."""
        sizes = (x[0], int(self.groups), x[1] // int(self.groups), *x[2:])
        return sizes, (0, 2, 1, *range(3, len(sizes)))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.transpose_forward(x, site.output, *self.order(x.shape)),)

    def gradient(self, input: int = 0) -> Gradient:
        return ChannelShuffleGradient(input=input)


@configuration
class ChannelShuffleGradient(Gradient):
    """Gradient of a `ChannelShuffle`: dx = dy, every channel back in its place."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ChannelShuffle)
        (x,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        return (site.library.transpose_backward(site.output, x, *peer.order(x.shape)),)
