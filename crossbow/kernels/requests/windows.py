"""Requests of operators whose windows slide over the spatial axes: convolution, pooling, response normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests.request import BACKWARD, Request, RolePair, Roles, gradients, with_bias
from crossbow.types import Phase, Tensor


@dataclass(frozen=True)
class WindowGeometry:
    """Windows that slide over the spatial axes: one value per axis in every field."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    """Empty means 1 on all axes."""
    padding: tuple[tuple[int, int], ...] = ()
    """(before, after). Empty means none."""
    dilation: tuple[int, ...] = ()
    """Distance between neighbours in a window. Empty means 1 on all axes."""

    def __post_init__(self) -> None:
        axes = len(self.kernel)
        for name, usual in (("stride", 1), ("padding", (0, 0)), ("dilation", 1)):
            value = getattr(self, name) or (usual,) * axes
            if len(value) != axes:
                raise ValueError(f"expected {axes} values, as kernel={self.kernel} has. Received: {name}={value}")
            object.__setattr__(self, name, value)

    @property
    def extent(self) -> tuple[int, ...]:
        """Distance from the first to the last element of a window, inclusive: d (k − 1) + 1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


@dataclass(frozen=True)
class ConvolutionGeometry(WindowGeometry):
    """Geometry of a convolution (a cross-correlation, as in other frameworks)."""

    groups: int = 1


@dataclass(frozen=True)
class PoolingGeometry(WindowGeometry):
    """Geometry of a pooling. Windows may extend beyond the padded input (rounding up)."""

    method: str = "max"
    """"max", "average" or "stochastic"."""
    count_padding: bool = True
    """In average pooling, whether padding counts in the divisor. Positions beyond input and padding never count."""


@dataclass(frozen=True)
class ResponseGeometry:
    """Windows and constants of local response normalisation: y = x · (kappa + share · Σ x²)^−beta."""

    axes: tuple[int, ...]
    """(1,) for the channels, or (2, 3) for the image."""
    size: int
    """Size of the window on each axis."""
    share: float
    beta: float
    kappa: float
    leads: bool = False
    """Whether the longer half of an even window is before its element."""

    @property
    def before(self) -> int:
        """Extent of the window before its element."""
        return (self.size - (not self.leads)) // 2

    @property
    def after(self) -> int:
        return self.size - 1 - self.before


@dataclass(frozen=True)
class ConvolutionForward(Request):
    """output = the convolution of input0 (relu: max(…, 0)). weights: (outputs, channels / groups, *kernel)."""

    x: Tensor
    weights: Variable
    bias: Variable | None
    y: Tensor
    geometry: ConvolutionGeometry
    relu: bool = False

    writes = ("output",)

    @property
    def label(self) -> str:
        return f"{self.name}{' relu' if self.relu else ''}"

    @property
    def reads(self) -> Roles:
        return with_bias(self.bias, "input0", "weights")


@dataclass(frozen=True)
class ConvolutionBackwardData(Request):
    """The gradient of a convolution's input (sum: plus `addend`)."""

    dy: Tensor
    weights: Variable
    dx: Tensor
    geometry: ConvolutionGeometry
    sum: bool = False

    writes = ("input_gradient",)

    @property
    def label(self) -> str:
        return f"{self.name}{' sum' if self.sum else ''}"

    @property
    def reads(self) -> Roles:
        return ("output_gradient", "weights", *(("addend",) if self.sum else ()))

    @property
    def in_place(self) -> RolePair | None:
        return ("addend", "input_gradient") if self.sum else None


@dataclass(frozen=True)
class ConvolutionBackwardWeights(Request):
    """The gradients of a convolution's variables."""

    x: Tensor
    dy: Tensor
    weights: Variable
    bias: Variable | None
    geometry: ConvolutionGeometry

    reads = ("input0", "output_gradient")

    @property
    def writes(self) -> Roles:
        return gradients(self.bias)


@dataclass(frozen=True)
class PoolingForward(Request):
    """output = the maximum, the average or a random element of every window of input0.

    In training, max and stochastic pooling also write `kept`, for the gradient. Among equal maxima in a window, the
    first one (row-major) is used. Stochastic pooling's random numbers are `crossbow.kernels.random.random_words`, one
    per output.
    """

    x: Tensor
    y: Tensor
    geometry: PoolingGeometry
    phase: Phase
    seed: int = 0
    key: int = 0

    @property
    def label(self) -> str:
        return f"{self.name} {self.geometry.method}"

    @property
    def keeps(self) -> bool:
        """Whether `kept` is written."""
        return self.phase is Phase.TRAIN and self.geometry.method != "average"

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return self.phase is Phase.TRAIN and self.geometry.method == "stochastic"

    @property
    def reads(self) -> Roles:
        return ("input0", "state") if self.draws else ("input0",)

    @property
    def writes(self) -> Roles:
        return ("output", "kept") if self.keeps else ("output",)


@dataclass(frozen=True)
class PoolingBackward(Request):
    """The gradient of a pooling's input.

    relu: only for a maximum, whether the gradient of a ReLU before the pooling is included. Its derivative follows from
    the output.
    """

    dy: Tensor
    dx: Tensor
    geometry: PoolingGeometry
    relu: bool = False

    writes = ("input_gradient",)

    @property
    def label(self) -> str:
        return f"{self.name} {self.geometry.method}{' relu' if self.relu else ''}"

    @property
    def reads(self) -> Roles:
        if self.geometry.method == "average":
            return ("output_gradient",)
        return ("output_gradient", "kept", *(("output",) if self.relu else ()))


@dataclass(frozen=True)
class LRNForward(Request):
    """Local response normalisation of input0. A library may store intermediate results for the gradient."""

    x: Tensor
    y: Tensor
    geometry: ResponseGeometry
    phase: Phase

    reads, writes = ("input0",), ("output",)


@dataclass(frozen=True)
class LRNBackward(Request):
    """The gradient of a local response normalisation's input."""

    x: Tensor
    dy: Tensor
    dx: Tensor
    geometry: ResponseGeometry

    reads, writes, in_place = ("input0", "output_gradient"), ("input_gradient",), BACKWARD
