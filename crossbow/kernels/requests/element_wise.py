"""Requests of operators without variables that work element-wise, or along one axis."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.kernels.requests.request import BACKWARD, FORWARD, Request, RolePair, Roles, inputs
from crossbow.types import Phase, Tensor


@dataclass(frozen=True)
class ActivationForward(Request):
    """output = f(input0). mode: "relu", "sigmoid", "tanh" or "clipped"."""

    x: Tensor
    y: Tensor
    mode: str
    negative_slope: float
    ceiling: float

    reads, writes, in_place = ("input0",), ("output",), FORWARD

    @property
    def label(self) -> str:
        return f"{self.name} {self.mode}"


@dataclass(frozen=True)
class ActivationBackward(Request):
    """The gradient of an activation's input, from its output."""

    y: Tensor
    dy: Tensor
    dx: Tensor
    mode: str
    negative_slope: float
    ceiling: float

    reads, writes, in_place = ("output", "output_gradient"), ("input_gradient",), BACKWARD

    @property
    def label(self) -> str:
        return f"{self.name} {self.mode}"


@dataclass(frozen=True)
class GatedActivationForward(Request):
    """output = input0 · gate(input0). gate: "gelu", "gelu_tanh", "silu" or "hard_swish"."""

    x: Tensor
    y: Tensor
    gate: str

    reads, writes, in_place = ("input0",), ("output",), FORWARD

    @property
    def label(self) -> str:
        return f"{self.name} {self.gate}"


@dataclass(frozen=True)
class GatedActivationBackward(Request):
    """The gradient of a gated activation's input, from this input."""

    x: Tensor
    dy: Tensor
    dx: Tensor
    gate: str

    reads, writes, in_place = ("input0", "output_gradient"), ("input_gradient",), BACKWARD

    @property
    def label(self) -> str:
        return f"{self.name} {self.gate}"


@dataclass(frozen=True)
class SoftmaxForward(Request):
    """output = softmax of input0 along an axis."""

    x: Tensor
    y: Tensor
    axis: int

    reads, writes, in_place = ("input0",), ("output",), FORWARD


@dataclass(frozen=True)
class SoftmaxBackward(Request):
    """The gradient of a softmax's input, from its output."""

    y: Tensor
    dy: Tensor
    dx: Tensor
    axis: int

    reads, writes, in_place = ("output", "output_gradient"), ("input_gradient",), BACKWARD


@dataclass(frozen=True)
class LogSoftmaxForward(Request):
    """output = the logarithm of softmax of input0 along an axis."""

    x: Tensor
    y: Tensor
    axis: int

    reads, writes, in_place = ("input0",), ("output",), FORWARD


@dataclass(frozen=True)
class LogSoftmaxBackward(Request):
    """The gradient of a logarithmic softmax's input, from its output."""

    y: Tensor
    dy: Tensor
    dx: Tensor
    axis: int

    reads, writes, in_place = ("output", "output_gradient"), ("input_gradient",), BACKWARD


@dataclass(frozen=True)
class DropoutForward(Request):
    """output = input0 with a fraction `ratio` set to zero. The mask is `crossbow.kernels.random.keep_mask`."""

    x: Tensor
    y: Tensor
    ratio: float
    seed: int
    key: int

    reads, writes, in_place = ("input0", "state"), ("output",), FORWARD


@dataclass(frozen=True)
class DropoutBackward(Request):
    """The gradient of a dropout's input, with the same mask, drawn again."""

    dy: Tensor
    dx: Tensor
    ratio: float
    seed: int
    key: int

    reads, writes, in_place = ("output_gradient", "state"), ("input_gradient",), BACKWARD


@dataclass(frozen=True)
class WeightedSum(Request):
    """output = Σ coefficient × input (relu: max(…, 0))."""

    xs: tuple[Tensor, ...]
    y: Tensor
    coefficients: tuple[float, ...]
    relu: bool = False

    writes, in_place = ("output",), FORWARD

    @property
    def label(self) -> str:
        return f"{self.name}{' relu' if self.relu else ''}"

    @property
    def reads(self) -> Roles:
        return inputs(len(self.xs))


@dataclass(frozen=True)
class ScaledGradient(Request):
    """input_gradient = coefficient × output_gradient."""

    name = "scale"

    dy: Tensor
    dx: Tensor
    coefficient: float

    reads, writes, in_place = ("output_gradient",), ("input_gradient",), BACKWARD

    @property
    def alias(self) -> RolePair | None:
        return BACKWARD if self.coefficient == 1 else None


@dataclass(frozen=True)
class ProductForward(Request):
    """output = Π input, from left to right."""

    xs: tuple[Tensor, ...]
    y: Tensor

    writes, in_place = ("output",), FORWARD

    @property
    def reads(self) -> Roles:
        return inputs(len(self.xs))


@dataclass(frozen=True)
class ProductBackward(Request):
    """The gradient of input `index` of a product: output_gradient · Π the other inputs, from left to right."""

    xs: tuple[Tensor, ...]
    dy: Tensor
    index: int

    writes, in_place = ("input_gradient",), BACKWARD

    @property
    def reads(self) -> Roles:
        others = (role for number, role in enumerate(inputs(len(self.xs))) if number != self.index)
        return ("output_gradient", *others)


@dataclass(frozen=True)
class MaximumForward(Request):
    """output = the largest of at most 256 inputs; NaN counts as the largest. Training also writes `kept`."""

    xs: tuple[Tensor, ...]
    y: Tensor
    phase: Phase

    in_place = FORWARD

    @property
    def reads(self) -> Roles:
        return inputs(len(self.xs))

    @property
    def writes(self) -> Roles:
        return ("output", "kept") if self.phase is Phase.TRAIN else ("output",)


@dataclass(frozen=True)
class MaximumBackward(Request):
    """The gradient of input `index` of a maximum: output_gradient if it is the first of the largest inputs, else 0."""

    xs: tuple[Tensor, ...]
    dy: Tensor
    index: int

    reads, writes, in_place = ("output_gradient", "kept"), ("input_gradient",), BACKWARD
