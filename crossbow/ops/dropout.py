"""Dropout."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import DropoutBackward, DropoutForward, ScaledGradient, WeightedSum
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Phase, Shape


@configuration
class Dropout(Kernel):
    """In training, sets every element to 0 with probability `ratio`, and else multiplies it by 1 / (1 − ratio).

    x and y have any shape. In testing, y = x. The mask depends only on the seed, the number of the task, the operator
    and the element's position in (N, C, H, W) order: `crossbow.kernels.random.keep_mask` (Srivastava et al., 2014).

    Use it as regularisation, usually after the activation of an `InnerProduct`.

    Ports Dropout.java and cudnndropout.cu. Fixed from the original: learners on one device draw independent masks.

    See also: `BatchNorm`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    train_only: ClassVar[bool] = True

    ratio: float = field(default=0.5, kw_only=False)
    """Probability that an element is dropped, in [0, 1)."""

    def __post_init__(self) -> None:
        check_number(self, "ratio", minimum=0, maximum=1, below=True)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), y = site.inputs, site.output
        if site.phase is Phase.CHECK or self.ratio == 0:
            return (site.library.prepare(WeightedSum((x,), y, (1.0,))),)
        return (site.library.prepare(DropoutForward(x, y, self.ratio, site.seed, site.key)),)

    def gradient(self, input: int = 0) -> Gradient:
        return DropoutGradient(input=input)


@configuration
class DropoutGradient(Gradient):
    """Gradient of a `Dropout`: dy with the same mask and factor."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Dropout)
        (x,), dy = site.inputs, site.output
        if site.phase is Phase.CHECK or peer.ratio == 0:
            return (site.library.prepare(ScaledGradient(dy, x, 1.0)),)
        return (site.library.prepare(DropoutBackward(dy, x, peer.ratio, site.seed, site.key)),)
