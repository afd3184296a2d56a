"""Requests of operators with variables along some axes of a tensor: batch normalisation and scaling."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests.request import BACKWARD, FORWARD, Request, RolePair, Roles, gradients, with_bias
from crossbow.types import Tensor


@dataclass(frozen=True)
class BatchNormSetting:
    """Settings of a batch normalisation."""

    epsilon: float
    fraction: float | None
    """Fraction of the running statistics that a training task keeps; with None, they are means over all tasks, with a
    `count`."""
    bias: bool
    relu: bool = False
    """Whether the following ReLU is fused: the output is that of the ReLU, and the gradient includes that of the
    ReLU."""
    sum: bool = False
    """Whether the following sum with another tensor, `addend`, is fused. A fused ReLU is then the one after the sum."""

    @property
    def parameters(self) -> Roles:
        return ("weights", "bias") if self.bias else ("weights",)

    @property
    def inputs(self) -> Roles:
        """The tensors that a forward kernel reads."""
        return ("input0", "addend") if self.sum else ("input0",)

    @property
    def masks_sum(self) -> bool:
        """Whether the gradient includes that of a ReLU after a sum, which is the gradient of the addend, too."""
        return self.sum and self.relu

    @property
    def observed(self) -> Roles:
        statistics = ("running_mean", "running_variance")
        return statistics if self.fraction is not None else (*statistics, "count")


@dataclass(frozen=True)
class BatchNormTraining(Request):
    """output = input0 normalised by the batch, and `…_next` of every running statistic, which may share its memory.

    kept: the batch's statistics, for the gradient.
    """

    x: Tensor
    y: Tensor
    setting: BatchNormSetting

    @property
    def relu(self) -> bool:
        return self.setting.relu

    @property
    def label(self) -> str:
        return _with_fused(self.name, self.setting)

    @property
    def reads(self) -> Roles:
        return (*self.setting.inputs, *self.setting.parameters, *self.setting.observed)

    @property
    def writes(self) -> Roles:
        return ("output", "kept", *(f"{role}_next" for role in self.setting.observed))


@dataclass(frozen=True)
class BatchNormInference(Request):
    """output = input0 normalised by the running statistics."""

    x: Tensor
    y: Tensor
    setting: BatchNormSetting

    writes, in_place = ("output",), FORWARD

    @property
    def relu(self) -> bool:
        return self.setting.relu

    @property
    def label(self) -> str:
        return _with_fused(self.name, self.setting)

    @property
    def reads(self) -> Roles:
        return (*self.setting.inputs, *self.setting.parameters, "running_mean", "running_variance")


@dataclass(frozen=True)
class BatchNormBackward(Request):
    """The gradients of a batch normalisation with its fused ReLU; after a fused sum, also the gradient of the addend.

    dx: None if the gradient of the input is not needed.
    """

    x: Tensor
    dy: Tensor
    dx: Tensor | None
    setting: BatchNormSetting

    @property
    def label(self) -> str:
        return _with_fused(self.name, self.setting)

    @property
    def reads(self) -> Roles:
        if self.setting.masks_sum:
            return ("input0", "output", "output_gradient", "weights", "kept")
        # With a ReLU, the bias determines where the ReLU was flat.
        parameters = self.setting.parameters if self.setting.relu else ("weights",)
        return ("input0", "output_gradient", *parameters, "kept")

    @property
    def writes(self) -> Roles:
        own = tuple(f"{role}_gradient" for role in self.setting.parameters)
        own = (*own, "addend_gradient") if self.setting.masks_sum else own
        return own if self.dx is None else (*own, "input_gradient")

    @property
    def in_place(self) -> RolePair | None:
        if self.setting.masks_sum:
            return ("output_gradient", "addend_gradient")
        return None if self.dx is None else BACKWARD


@dataclass(frozen=True)
class ScalingForward(Request):
    """output = weights · input0 (+ bias). The variables have one shape, along the axes of x from `axis` on."""

    x: Tensor
    weights: Variable
    bias: Variable | None
    y: Tensor
    axis: int

    writes, in_place = ("output",), FORWARD

    @property
    def reads(self) -> Roles:
        return with_bias(self.bias, "input0", "weights")


@dataclass(frozen=True)
class ScalingBackward(Request):
    """The gradients of a scaling. dx: None if the gradient of the input is not needed."""

    x: Tensor
    dy: Tensor
    weights: Variable
    bias: Variable | None
    dx: Tensor | None
    axis: int

    reads = ("input0", "output_gradient", "weights")

    @property
    def writes(self) -> Roles:
        own = gradients(self.bias)
        return own if self.dx is None else (*own, "input_gradient")

    @property
    def in_place(self) -> RolePair | None:
        return None if self.dx is None else BACKWARD


@dataclass(frozen=True)
class LayerNormForward(Request):
    """output = weights · (input0 − mean) / √(variance + epsilon) (+ bias).

    Mean and variance are those over the axes of x along which the variables lie, from `axis` on.
    """

    x: Tensor
    weights: Variable
    bias: Variable | None
    y: Tensor
    axis: int
    epsilon: float

    writes, in_place = ("output",), FORWARD

    @property
    def reads(self) -> Roles:
        return with_bias(self.bias, "input0", "weights")


@dataclass(frozen=True)
class LayerNormBackward(Request):
    """The gradients of a layer normalisation. dx: None if the gradient of the input is not needed."""

    x: Tensor
    dy: Tensor
    weights: Variable
    bias: Variable | None
    dx: Tensor | None
    axis: int
    epsilon: float

    reads = ("input0", "output_gradient", "weights")

    @property
    def writes(self) -> Roles:
        own = gradients(self.bias)
        return own if self.dx is None else (*own, "input_gradient")

    @property
    def in_place(self) -> RolePair | None:
        return None if self.dx is None else BACKWARD


def _with_fused(name: str, setting: BatchNormSetting) -> str:
    return f"{name}{' sum' if setting.sum else ''}{' relu' if setting.relu else ''}"


@dataclass(frozen=True)
class BiasForward(Request):
    """output += bias, along axis 1."""

    y: Tensor
    bias: Variable

    reads, writes = ("output", "bias"), ("output",)


@dataclass(frozen=True)
class BiasBackward(Request):
    """The gradient of a bias along axis 1: the sums of output_gradient over the other axes."""

    dy: Tensor
    bias: Variable

    reads, writes = ("output_gradient",), ("bias_gradient",)


@dataclass(frozen=True)
class SlopeForward(Request):
    """output = input0 where it is > 0, and weights · input0 elsewhere. The weights lie along axis 1, or are a single
    number, of shape ()."""

    x: Tensor
    weights: Variable
    y: Tensor

    reads, writes = ("input0", "weights"), ("output",)


@dataclass(frozen=True)
class SlopeBackward(Request):
    """The gradients of slopes. dx: None if the gradient of the input is not needed."""

    x: Tensor
    dy: Tensor
    weights: Variable
    dx: Tensor | None

    reads = ("input0", "output_gradient", "weights")

    @property
    def writes(self) -> Roles:
        return ("weights_gradient",) if self.dx is None else ("weights_gradient", "input_gradient")
