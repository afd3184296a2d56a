"""The class with the largest value."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_choice, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LargestIndex
from crossbow.ops.kernel import Site
from crossbow.ops.softmax import AlongAxis
from crossbow.types import LARGEST_EXACT, Shape


@configuration
class Classify(AlongAxis):
    """y = arg max x along `axis`: the index of the largest value.

    If several values are equal, `ties` selects the first or the last index; NaN counts as the largest value. x:
    (N, classes) or (N, classes, …); y: (N,) or (N, …), the shape of x without the axis, or with size 1 there
    (`keep_axis`). The indices are numbers of the run's floating-point type, like every output. A negative axis counts
    from the end. There is no gradient.

    Use it at the end of a check dataflow: if its output is not consumed, `context.predict` returns classes.

    Ports Classify.java and classify.cu. Fixed from the original: the result is available.

    See also: `Accuracy`, `SoftMax`.
    """

    ties: str = "first"
    """The index to return for equal values: "first" or "last"."""
    keep_axis: bool = False
    """Whether the axis is kept with size 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "ties", ("first", "last"))
        check_boolean(self, "keep_axis")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        super().output_shape(x)
        axis = self.first_axis(x)
        if x[axis] == 0:
            raise ValueError(f"expected an input with at least one class. Received: {x}, with axis={self.axis}")
        if x[axis] > LARGEST_EXACT:
            raise ValueError(f"expected at most {LARGEST_EXACT} classes. Received: {x[axis]}")
        return x[:axis] + (1,) * self.keep_axis + x[axis + 1 :]

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.prepare(LargestIndex(x, site.output, self.first_axis(x.shape), self.ties)),)
