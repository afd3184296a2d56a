"""A part of a tensor along an axis."""

from __future__ import annotations

from crossbow.conf import check_integer, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class Slice(Kernel):
    """y = x[…, start:stop:step, …] along `axis`, as Python counts: what is negative counts from the end.

    x: (N, d_1, …); axis 0, that of the examples, is refused. Axes are counted in logical order, (N, C, H, W), whatever
    lies in memory. Two of one input are a split, as ShuffleNet's. The original has no such operator.
    """

    axis: int = 1
    start: int = 0
    stop: int | None = None
    """The first that is left out; None is to the end."""
    step: int = 1

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer other than 0, the axis of the examples")
        if not is_integer(self.start):
            raise refuse(self, "start", self.start, "an integer")
        if self.stop is not None and not is_integer(self.stop):
            raise refuse(self, "stop", self.stop, "an integer or None")
        check_integer(self, "step", 1)

    def places(self, x: Shape) -> tuple[int, range]:
        """The axis counted from the first, and the places along it. Raises ValueError."""
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
        return (site.library.slice_forward(x, site.output, axis, places.start, places.step),)

    def gradient(self, input: int = 0) -> Gradient:
        return SliceGradient(input=input)


@configuration
class SliceGradient(Gradient):
    """Gradient of a `Slice`: dy at its places, and 0 elsewhere."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Slice)
        (x,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        axis, places = peer.places(x.shape)
        return (site.library.slice_backward(site.output, x, axis, places.start, places.step),)
