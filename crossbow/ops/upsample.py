"""Enlarging images by repetition or linear interpolation."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_boolean, check_choice, check_unused, configuration, is_integer, is_number, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import Interpolation, InterpolationBackward, InterpolationForward
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.window import MAXIMUM_AXES
from crossbow.types import Shape

TOLERANCE = 1e-9
"""Number that is added to the positions of "nearest" before they are rounded down: 41 · (2 / 82) must give 1 in spite
of rounding errors."""
Scales = float | tuple[float, ...]


@configuration
class Upsample(Kernel):
    """Resizes the spatial axes of x by repetition ("nearest") or linear interpolation ("linear").

    x: (N, C, W), (N, C, H, W) or (N, C, D, H, W); y: (N, C, …) with sizes ⌊H · scale⌋, or those of `size`.

    With r = 1 / scale (H / H' if `size` is given), position i of an axis of y is taken from this position of x:

    ======================== ========================================================
    nearest                  ⌊r · i⌋
    linear                   r · (i + ½) − ½, between two neighbours; at least 0
    linear, align_corners    i · (H − 1) / (H' − 1): the ends of both axes coincide
    ======================== ========================================================

    Several axes are interpolated one after the other, so "linear" is bilinear for images.

    Use it before a `Conv`, in decoders and feature pyramids. Values of y between neighbours are not sharpened, and a
    smaller `size` takes single values instead of means.

    With factors that are not binary fractions, such as 3.7, PyTorch's "nearest" takes some pixels from a neighbouring
    position, because it multiplies rounded numbers. Here positions are exact.

    Source: `torch.nn.Upsample`, and Keras' UpSampling2D.

    See also: `TransposedConv`, `Pool`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    scale: Scales | None = field(default=None, kw_only=False)
    """Factor of the sizes, > 0: a number, or one per spatial axis. 2 if neither scale nor size is given."""
    size: int | tuple[int, ...] | None = None
    """Sizes of the output, ≥ 1: a number, or one per spatial axis."""
    method: str = "nearest"
    """Kind of resizing: "nearest" or "linear"."""
    align_corners: bool = False
    """Whether the first and last positions of x and y coincide; only with method="linear"."""

    def __post_init__(self) -> None:
        check_choice(self, "method", ("nearest", "linear"))
        check_boolean(self, "align_corners")
        if self.method == "nearest":
            check_unused(self, "method='nearest'", "align_corners")
        several = f"one per spatial axis (1 to {MAXIMUM_AXES})"
        if self.scale is not None and self.size is not None:
            raise refuse(self, "scale", self.scale, f"None with size={self.size!r}")
        if self.scale is None and self.size is None:
            object.__setattr__(self, "scale", 2)
        if self.scale is not None and not all(is_number(value) and value > 0 for value in _values(self.scale)):
            raise refuse(self, "scale", self.scale, f"a number > 0 or a tuple of such, {several}")
        if self.size is not None and not all(is_integer(value) and value >= 1 for value in _values(self.size)):
            raise refuse(self, "size", self.size, f"an integer ≥ 1 or a tuple of such, {several}")
        for name in ("scale", "size"):
            value = getattr(self, name)
            if isinstance(value, tuple | list) and not 1 <= len(value) <= MAXIMUM_AXES:
                raise refuse(self, name, value, f"a number or a tuple, {several}")

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        axes = len(x) - 2
        if not 1 <= axes <= MAXIMUM_AXES or min(x[2:]) < 1:
            raise ValueError(f"expected an input of shape (N, C, W), (N, C, H, W) or (N, C, D, H, W). Received: {x}")
        given = self.size if self.scale is None else self.scale
        if isinstance(given, tuple | list) and len(given) != axes:
            name = "size" if self.scale is None else "scale"
            raise ValueError(f"expected an input with {len(given)} spatial axes, for {name}={given!r}. Received: {x}")
        values = _values(given) * (axes if not isinstance(given, tuple | list) else 1)
        if self.scale is None:
            return (*x[:2], *map(int, values))
        sizes = tuple(math.floor(size * scale) for size, scale in zip(x[2:], values, strict=True))
        if min(sizes) < 1:
            raise ValueError(f"expected a scale that leaves an output. Received: scale={self.scale!r} and an input {x}")
        return (*x[:2], *sizes)

    def interpolations(self, x: Shape) -> tuple[Interpolation, ...]:
        """The interpolation along each spatial axis."""
        sizes = zip(x[2:], self.output_shape(x)[2:], strict=True)
        return tuple(self._interpolation(axis, *pair) for axis, pair in enumerate(sizes))

    def _interpolation(self, axis: int, size: int, target: int) -> Interpolation:
        linear = self.method == "linear"
        if self.align_corners:
            return Interpolation((size - 1) / (target - 1) if target > 1 else 0.0, 0.0, linear)
        ratio = size / target
        if self.scale is not None:
            scales = _values(self.scale)
            ratio = 1 / float(scales[axis if len(scales) > 1 else 0])
        return Interpolation(ratio, ratio / 2 - 0.5 if linear else TOLERANCE, linear)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), y = site.inputs, site.output
        return (site.library.prepare(InterpolationForward(x, y, self.interpolations(x.shape))),)

    def gradient(self, input: int = 0) -> Gradient:
        return UpsampleGradient(input=input)


@configuration
class UpsampleGradient(Gradient):
    """Gradient of an `Upsample`: every dy is added to the positions from which its y was computed, with the same
    factors."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Upsample)
        (x,), dy = site.inputs, site.output
        return (site.library.prepare(InterpolationBackward(dy, x, peer.interpolations(x.shape))),)


def _values(value: object) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)  # type: ignore[return-value]
