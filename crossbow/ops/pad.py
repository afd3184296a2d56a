"""Constant padding of a tensor."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_number, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PadBackward, PadForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.window import is_pair
from crossbow.types import Shape


@configuration
class Pad(Kernel):
    """Pads x with a constant before and after it, on every axis except the axis of the examples.

    x: (N, d_1, …, d_r); y: (N, b_1 + d_1 + a_1, …), where `padding` is ((b_1, a_1), …, (b_r, a_r)), as in PyTorch's
    ConstantPad and Keras' ZeroPadding.

    Use it where the padding of `Conv` and `Pool`, which needs no copy, does not suffice.

    The original has no such operator.

    See also: `Slice`, `DataTransform`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    padding: tuple[tuple[int, int], ...] = field(kw_only=False)
    """(before, after) for every axis of an example, each ≥ 0."""
    value: float = 0.0
    """The padding value."""

    def __post_init__(self) -> None:
        pairs = self.padding
        if not isinstance(pairs, tuple | list) or not pairs or not all(map(is_pair, pairs)):
            raise refuse(self, "padding", pairs, "a pair of integers ≥ 0 for every axis of an example")
        check_number(self, "value")
        object.__setattr__(self, "padding", tuple((int(before), int(after)) for before, after in pairs))

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 1 + len(self.padding):
            expected = f"expected an input (N, …) of {1 + len(self.padding)} dimensions, for padding={self.padding}"
            raise ValueError(f"{expected}. Received: {x}")
        return (x[0], *(size + sum(pair) for size, pair in zip(x[1:], self.padding, strict=True)))

    @property
    def before(self) -> tuple[int, ...]:
        """Offset of x on each axis of y."""
        return (0, *(before for before, _ in self.padding))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(PadForward(site.inputs[0], site.output, self.before, float(self.value))),)

    def gradient(self, input: int = 0) -> Gradient:
        return PadGradient(input=input)


@configuration
class PadGradient(Gradient):
    """Gradient of a `Pad`: the part of dy inside the border."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Pad)
        return (site.library.prepare(PadBackward(site.output, site.inputs[0], peer.before)),)
