"""Repetition of a tensor along some of its dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from crossbow.conf import configuration, is_integer, refuse
from crossbow.ops.kernel import ArrayGradient, Gradient, Kernel
from crossbow.types import Array, Shape


@configuration
class Broadcast(Kernel):
    """Repeats every example of x to `shape`.

    x: (N, d_1, …, d_r), with every d_i equal to 1 or shape[i]; y: (N, *shape). The gradient is the sum over the
    repetitions.

    Use it before an `ElementWiseOp`, whose inputs must have equal shapes: for example, to multiply images by one
    weight per channel, as in squeeze-and-excitation.

    The original has no such operator.

    See also: `Reshape`, `ElementWiseOp`.
    """

    shape: tuple[int, ...] = field(kw_only=False)
    """Shape of one example of the output."""

    def __post_init__(self) -> None:
        sizes = self.shape
        if not isinstance(sizes, tuple | list) or not all(is_integer(size) and size >= 1 for size in sizes):
            raise refuse(self, "shape", sizes, "a tuple of integers ≥ 1")
        object.__setattr__(self, "shape", tuple(int(size) for size in sizes))

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != len(self.shape) + 1 or any(d not in (1, size) for d, size in zip(x[1:], self.shape, strict=True)):
            sizes = ", ".join(map(str, self.shape))
            raise ValueError(f"expected an input (N, …) that can be repeated to (N, {sizes}). Received: {x}")
        return (x[0], *self.shape)

    def gradient(self, input: int = 0) -> Gradient:
        return BroadcastGradient(input=input)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        (x,) = inputs
        repeated: Array = xp.broadcast_to(x, (len(x), *self.shape))
        return repeated

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        (x,) = inputs
        dy: NDArray[Any] = output_gradient
        repeated = tuple(axis for axis, size in enumerate(x.shape) if size != dy.shape[axis])
        return [dy.sum(axis=repeated, keepdims=True)], {}


@configuration
class BroadcastGradient(ArrayGradient):
    """Gradient of a `Broadcast`: the sum over the repeated dimensions."""
