"""The class with the largest value."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_choice, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Kernel, Site
from crossbow.types import Shape

LARGEST_INDEX = 2**24
"""Up to here float32 counts without a gap."""


@configuration
class Classify(Kernel):
    """y = arg max x along `axis`: the index of the largest value, the first or last of equal ones; of a NaN, if any.

    x: (N, classes) or (N, classes, …); y: (N,) or (N, …), x's shape without the axis, or with size 1 there
    (`keep_axis`). The indices are numbers of the type that the run computes in, since every output is. A negative axis
    counts from the end. There is no gradient. A check dataflow with one Classify whose output nobody takes predicts
    classes: `context.predict` returns them.

    Ports Classify.java and classify.cu. Fixed from the original: its result goes somewhere.
    """

    axis: int = 1
    ties: str = "first"
    """Which of equal values it is: "first" or "last"."""
    keep_axis: bool = False

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
            raise ValueError(f"expected an input with a class at least. Received: {x}, with axis={self.axis}")
        if x[axis] > LARGEST_INDEX:
            raise ValueError(f"expected at most {LARGEST_INDEX} classes. Received: {x[axis]}")
        return x[:axis] + (1,) * self.keep_axis + x[axis + 1 :]

    def first_axis(self, x: Shape) -> int:
        """The axis counted from the first."""
        return self.axis if self.axis > 0 else len(x) + self.axis

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.classify(x, site.output, self.first_axis(x.shape), self.ties),)
