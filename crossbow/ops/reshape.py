"""Change of a tensor's dimensions."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyBackward, CopyForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class Reshape(Kernel):
    """y = x with other dimensions, and the elements in the same logical order (N, C, H, W).

    x: (N, …); y: (N, *shape). One size in `shape` may be −1, and is then computed from the others. If memory is already
    in logical order, y shares the memory of x.

    The original has no such operator.

    See also: `Flatten`, `Transpose`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    shape: tuple[int, ...] = field(kw_only=False)
    """Shape of one example of the output."""

    def __post_init__(self) -> None:
        sizes = self.shape
        if not isinstance(sizes, tuple | list) or not all(
            is_integer(size) and (size >= 1 or size == -1) for size in sizes
        ):
            raise refuse(self, "shape", sizes, "a tuple of integers ≥ 1, or −1 for the remaining size")
        if list(sizes).count(-1) > 1:
            raise refuse(self, "shape", sizes, "a tuple with at most one −1")
        object.__setattr__(self, "shape", tuple(map(int, sizes)))

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        elements, known = math.prod(x[1:]), math.prod(size for size in self.shape if size != -1)
        sizes = tuple(elements // known if size == -1 else size for size in self.shape)
        if not x or math.prod(sizes) != elements:
            raise ValueError(f"expected an input whose examples have as many elements as {self.shape}. Received: {x}")
        return (x[0], *sizes)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(CopyForward(site.inputs[0], site.output)),)

    def gradient(self, input: int = 0) -> Gradient:
        return ReshapeGradient(input=input)


@configuration
class ReshapeGradient(Gradient):
    """Gradient of a `Reshape`: dx = dy, with the dimensions of x."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Reshape)
        return (site.library.prepare(CopyBackward(site.output, site.inputs[0])),)
