"""A part of a tensor along an axis."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_integer, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import SliceBackward, SliceForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class Slice(Kernel):
    """y = x[…, start:stop:step, …] along `axis`; negative indices count from the end, as in Python.

    x: (N, d_1, …). Axis 0, the axis of the examples, is rejected. Axes are counted in logical order, (N, C, H, W),
    independent of the memory layout.

    Use several slices of one input to split it, as in ShuffleNet.

    The original has no such operator.

    See also: `Concat`, `Pad`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    axis: int = 1
    """Axis to slice, not 0."""
    start: int = 0
    """First index."""
    stop: int | None = None
    """First index after the slice; None is the end."""
    step: int = 1
    """Distance between indices, ≥ 1."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer other than 0, the axis of the examples")
        if not is_integer(self.start):
            raise refuse(self, "start", self.start, "an integer")
        if self.stop is not None and not is_integer(self.stop):
            raise refuse(self, "stop", self.stop, "an integer or None")
        check_integer(self, "step", 1)

    def places(self, x: Shape) -> tuple[int, range]:
        """The axis as a non-negative index, and the indices along it. Raises ValueError if there are none."""
        axis = self.axis if self.axis > 0 else len(x) + self.axis
        if not 1 <= axis < len(x):
            raise ValueError(f"expected an input (N, …) that has an axis={self.axis}. Received: {x}")
        stop = None if self.stop is None else int(self.stop)
        places = range(x[axis])[int(self.start) : stop : int(self.step)]
        if not places:
            expected = f"expected an input with elements from {self.start} to {self.stop} along axis={self.axis}"
            raise ValueError(f"{expected}. Received: {x}")
        return axis, places

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        axis, places = self.places(x)
        return (*x[:axis], len(places), *x[axis + 1 :])

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        axis, places = self.places(x.shape)
        return (site.library.prepare(SliceForward(x, site.output, axis, places.start, places.step)),)

    def gradient(self, input: int = 0) -> Gradient:
        return SliceGradient(input=input)


@configuration
class SliceGradient(Gradient):
    """Gradient of a `Slice`: dy at the sliced indices, and 0 elsewhere."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Slice)
        (x,) = site.inputs
        axis, places = peer.places(x.shape)
        return (site.library.prepare(SliceBackward(site.output, x, axis, places.start, places.step)),)
