"""Permutation of a tensor's axes."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import TransposeBackward, TransposeForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape

MOST_AXES = 8
"""Maximum number of axes of a tensor to transpose, as on GPUs."""


@configuration
class Transpose(Kernel):
    """Permutes the axes of x: axis i of y is axis order[i] of x.

    `order` begins with 0, because examples stay separate: Transpose(order=(0, 3, 1, 2)) turns (N, H, W, C) into
    (N, C, H, W), as PyTorch's permute and Keras' Permute do.

    The original has no such operator.

    See also: `Reshape`, `ChannelShuffle`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    order: tuple[int, ...] = field(kw_only=False)
    """For every axis of y, the axis of x; 0 comes first."""

    def __post_init__(self) -> None:
        order = self.order
        if not isinstance(order, tuple | list) or not all(map(is_integer, order)):
            raise refuse(self, "order", order, "a tuple of integers, as (0, 3, 1, 2)")
        if not order or sorted(order) != list(range(len(order))) or order[0] != 0 or len(order) > MOST_AXES:
            raise refuse(self, "order", order, f"a permutation of at most {MOST_AXES} axes that begins with 0")
        object.__setattr__(self, "order", tuple(map(int, order)))

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != len(self.order):
            raise ValueError(
                f"expected an input of {len(self.order)} dimensions, for order={self.order}. Received: {x}"
            )
        return tuple(x[axis] for axis in self.order)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(TransposeForward(x, site.output, x.shape, self.order)),)

    def gradient(self, input: int = 0) -> Gradient:
        return TransposeGradient(input=input)


@configuration
class TransposeGradient(Gradient):
    """Gradient of a `Transpose`: dx = dy, with the inverse permutation."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Transpose)
        (x,) = site.inputs
        return (site.library.prepare(TransposeBackward(site.output, x, x.shape, peer.order)),)
