"""Concatenation of tensors."""

from __future__ import annotations

import itertools
from dataclasses import field
from typing import ClassVar

from crossbow.conf import configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import ConcatBackward, ConcatForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.types import Shape


@configuration
class Concat(Kernel):
    """Concatenation of the inputs, in order, along `axis`.

    x_i: (N, C_i, …); y: (N, Σ C_i, …) for axis=1. The inputs agree in all other axes. Axes are counted in logical
    order, (N, C, H, W), independent of the memory layout; a negative axis counts from the end.

    Use it to join parallel branches, as in Inception or DenseNet.

    Ports Concat.java and concat.cu. Fixed from the original: the gradient of every input is its own slice (it was
    copied with wrong sizes, and for all inputs in GoogLeNet with offset 0).

    See also: `ElementWiseOp`, `Slice`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    number_of_inputs: ClassVar[int | None] = None

    axis: int = field(default=1, kw_only=False)
    """Axis of concatenation."""

    def __post_init__(self) -> None:
        if not is_integer(self.axis):
            raise refuse(self, "axis", self.axis, "an integer")

    def first_axis(self, x: Shape) -> int:
        """The axis as a non-negative index."""
        return self.axis % len(x)

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs:
            raise ValueError("expected at least one input. Received: none")
        first = inputs[0]
        if not -len(first) <= self.axis < len(first):
            raise ValueError(f"expected an input that has an axis={self.axis}. Received: {first}")
        axis = self.first_axis(first)
        for number, shape in enumerate(inputs):
            if _without(shape, axis) != _without(first, axis) or len(shape) != len(first):
                raise ValueError(
                    f"expected inputs that differ along axis={self.axis} only. "
                    f"Received: input 0 of shape {first}, input {number} of shape {shape}"
                )
        return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(ConcatForward(site.inputs, site.output, self.first_axis(site.output.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return ConcatGradient(input=input)


@configuration
class ConcatGradient(Gradient):
    """Gradient of a `Concat` with respect to one input: the slice of dy that belongs to the input."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Concat)
        axis = peer.first_axis(site.output.shape)
        if "starts" not in site.found:
            site.found["starts"] = list(itertools.accumulate((x.shape[axis] for x in site.inputs), initial=0))
        start = site.found["starts"][self.input]
        return (site.library.prepare(ConcatBackward(site.output, site.inputs[self.input], axis, start)),)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])
