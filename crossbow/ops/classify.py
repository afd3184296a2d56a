"""The class with the largest value."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_choice, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LargestIndex
from crossbow.ops.kernel import Kernel, Site
from crossbow.types import Shape

LARGEST_INDEX = 2**24
"""Largest integer up to which float32 represents every integer exactly."""


@configuration
class Classify(Kernel):
    """y = arg max x along `axis`: the index of the largest value.

    If several values are equal, `ties` selects the first or the last index; NaN counts as the largest value. x:
    (N, classes) or (N, classes, …); y: (N,) or (N, …), the shape of x without the axis, or with size 1 there
    (`keep_axis`). The indices are numbers of the run's floating-point type, like every output. A negative axis counts
    from the end. There is no gradient.

    Use it at the end of a check dataflow: if its output is not consumed, `context.predict` returns classes.

    Ports Classify.java and classify.cu. Fixed from the original: the result is available.

    See also: `Accuracy`, `SoftMax`.
    """

    axis: int = 1
    """Axis of the classes, not 0."""
    ties: str = "first"
    """The index to return for equal values: "first" or "last"."""
    keep_axis: bool = False
    """Whether the axis is kept with size 1."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis == 0:
            raise refuse(self, "axis", self.axis, "an integer ≥ 1, or ≤ −1 to count from the end")
        check_choice(self, "ties", ("first", "last"))
        check_boolean(self, "keep_axis")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        axis = self.first_axis(x)
        if not 1 <= axis < len(x):
            raise ValueError(f"expected an input of shape (N, …) that has an axis={self.axis}. Received: {x}")
        if x[axis] == 0:
            raise ValueError(f"expected an input with at least one class. Received: {x}, with axis={self.axis}")
        if x[axis] > LARGEST_INDEX:
            raise ValueError(f"expected at most {LARGEST_INDEX} classes. Received: {x[axis]}")
        return x[:axis] + (1,) * self.keep_axis + x[axis + 1 :]

    def first_axis(self, x: Shape) -> int:
        """The axis as a non-negative index."""
        return self.axis if self.axis > 0 else len(x) + self.axis

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(LargestIndex(x, site.output, self.first_axis(x.shape), self.ties)),)
