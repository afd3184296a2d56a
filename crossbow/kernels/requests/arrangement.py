"""Requests of operators that move or select elements: concatenation, copies, transposes, slices, padding, crops, and
the index of the largest value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.requests.request import BACKWARD, FORWARD, Request, RolePair, Roles, inputs
from crossbow.kernels.strides import moves_nothing
from crossbow.types import Shape, Tensor


@dataclass(frozen=True)
class ConcatForward(Request):
    """output = the concatenation of the inputs along `axis`."""

    xs: tuple[Tensor, ...]
    y: Tensor
    axis: int

    writes = ("output",)

    @property
    def reads(self) -> Roles:
        return inputs(len(self.xs))


@dataclass(frozen=True)
class ConcatBackward(Request):
    """Gradient of one input of a concatenation: the slice from `start` on along `axis`."""

    dy: Tensor
    dx: Tensor
    axis: int
    start: int

    reads, writes = ("output_gradient",), ("input_gradient",)


@dataclass(frozen=True)
class CopyForward(Request):
    """output = the elements of input0 in logical order, with y's shape."""

    x: Tensor
    y: Tensor

    reads, writes = ("input0",), ("output",)

    @property
    def alias(self) -> RolePair | None:
        return FORWARD if self.x.same_order(self.y) else None

    @property
    def in_place(self) -> RolePair | None:
        return self.alias


@dataclass(frozen=True)
class CopyBackward(Request):
    """The gradient of a copy's input."""

    dy: Tensor
    dx: Tensor

    reads, writes = ("output_gradient",), ("input_gradient",)

    @property
    def alias(self) -> RolePair | None:
        return BACKWARD if self.dy.same_order(self.dx) else None

    @property
    def in_place(self) -> RolePair | None:
        return self.alias


@dataclass(frozen=True)
class TransposeForward(Request):
    """output = input0, viewed as an array of `sizes`, with its axes in `order`, viewed with y's shape.

    Each axis of x consists of one or more neighbouring `sizes`, and each axis of y of one or more neighbouring sizes in
    the new order.
    """

    x: Tensor
    y: Tensor
    sizes: Shape
    order: tuple[int, ...]

    reads, writes = ("input0",), ("output",)

    @property
    def alias(self) -> RolePair | None:
        return FORWARD if moves_nothing(self.x, self.y, self.sizes, self.order) else None

    @property
    def in_place(self) -> RolePair | None:
        return self.alias


@dataclass(frozen=True)
class TransposeBackward(Request):
    """Gradient of a transpose's input: the inverse transpose, with the same sizes and order."""

    dy: Tensor
    dx: Tensor
    sizes: Shape
    order: tuple[int, ...]

    reads, writes = ("output_gradient",), ("input_gradient",)

    @property
    def alias(self) -> RolePair | None:
        return BACKWARD if moves_nothing(self.dx, self.dy, self.sizes, self.order) else None

    @property
    def in_place(self) -> RolePair | None:
        return self.alias


@dataclass(frozen=True)
class SliceForward(Request):
    """output = the elements start, start + step, … of input0 along `axis`, up to the size of y."""

    x: Tensor
    y: Tensor
    axis: int
    start: int
    step: int

    reads, writes = ("input0",), ("output",)


@dataclass(frozen=True)
class SliceBackward(Request):
    """Gradient of a slice's input: the output's gradient in the slice, and 0 elsewhere."""

    dy: Tensor
    dx: Tensor
    axis: int
    start: int
    step: int

    reads, writes = ("output_gradient",), ("input_gradient",)


@dataclass(frozen=True)
class PadForward(Request):
    """output = input0 with `before` padding elements before it on each axis; padding has the given value."""

    x: Tensor
    y: Tensor
    before: tuple[int, ...]
    value: float

    reads, writes = ("input0",), ("output",)


@dataclass(frozen=True)
class PadBackward(Request):
    """Gradient of a padding's input: the part inside the padding."""

    dy: Tensor
    dx: Tensor
    before: tuple[int, ...]

    reads, writes = ("output_gradient",), ("input_gradient",)


@dataclass(frozen=True)
class LargestIndex(Request):
    """output = the index of the largest value along `axis`, the "first" or "last" of equal values; NaN counts as the
    largest. y lacks the axis, or has it with size 1."""

    name = "classify"

    x: Tensor
    y: Tensor
    axis: int
    ties: str = "first"

    reads, writes = ("input0",), ("output",)


@dataclass(frozen=True, eq=False)
class ImageTransform:
    """A transform of images (N, C, H, W) with a border of zeros: (pixel − mean) · scale, for a window.

    A window is (top, left) in the image with its border, and has the output's size.
    """

    padding: int
    """Pixels of the border on each side."""
    mirror: bool
    """Whether half of the random windows are mirrored."""
    mean: NDArray[np.float64]
    """(C, 1, 1), or (C, H, W) by the pixel's position in the image without its border."""
    scale: NDArray[np.float64]
    """(C, 1, 1)."""

    @property
    def border_mean(self) -> NDArray[np.float64]:
        """The mean of the border's pixels: (C, 1, 1)."""
        mean: NDArray[np.float64] = self.mean.mean(axis=(1, 2), keepdims=True)
        return mean

    def choices(self, x: Shape, y: Shape) -> tuple[int, int]:
        """Numbers of possible tops and lefts for windows of y's size."""
        rows, columns = (x[axis] + 2 * self.padding - y[axis] + 1 for axis in (2, 3))
        return rows, columns

    def centre(self, x: Shape, y: Shape) -> tuple[int, int]:
        """(top, left) of the centred window."""
        rows, columns = self.choices(x, y)
        return (rows - 1) // 2, (columns - 1) // 2


@dataclass(frozen=True)
class ImageWindows(Request):
    """output = transformed windows of the images of input0: the centred windows if seed is None.

    Otherwise, the words of an image are `crossbow.kernels.random.image_words` of its (epoch, index) in slot_positions
    of the slot: top = below(word 0, tops), left = below(word 1, lefts), and with `mirror` it is mirrored if below(word
    2, 2) is 1.
    """

    name = "data_transform"

    x: Tensor
    y: Tensor
    transform: ImageTransform
    seed: int | None
    key: int

    writes = ("output",)

    @property
    def reads(self) -> Roles:
        return ("input0",) if self.seed is None else ("input0", "state", "slot_positions")
