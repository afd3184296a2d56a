"""Interleaving of the channels of several groups."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_integer, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class ChannelShuffle(Kernel):
    """Interleaves the channels of all groups: the first of every group, then the second, and so on.

    x, y: (N, C) or (N, C, …), where C is a multiple of `groups`: channel g · C / groups + c of x is channel
    c · groups + g of y (Zhang et al., ShuffleNet, 2018), as in PyTorch's ChannelShuffle.

    Use it between two grouped convolutions, so that each group of the second sees channels of all groups of the first.

    The original has no such operator.

    See also: `Conv` (with `groups`), `Transpose`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    groups: int = field(default=2, kw_only=False)
    """Number of groups, ≥ 1."""

    def __post_init__(self) -> None:
        check_integer(self, "groups", 1)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2 or x[1] % self.groups:
            expected = f"expected an input (N, C) or (N, C, …) whose channels are a multiple of groups={self.groups}"
            raise ValueError(f"{expected}. Received: {x}")
        return x

    def order(self, x: Shape) -> tuple[Shape, tuple[int, ...]]:
        """The shape of the input with the groups as a separate dimension, and the permutation of its dimensions."""
        sizes = (x[0], int(self.groups), x[1] // int(self.groups), *x[2:])
        return sizes, (0, 2, 1, *range(3, len(sizes)))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(TransposeForward(x, site.output, *self.order(x.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return ChannelShuffleGradient(input=input)


@configuration
class ChannelShuffleGradient(Gradient):
    """Gradient of a `ChannelShuffle`: dx = dy, with every channel at its original position."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ChannelShuffle)
        (x,) = site.inputs
        return (site.library.prepare(TransposeBackward(site.output, x, *peer.order(x.shape))),)
