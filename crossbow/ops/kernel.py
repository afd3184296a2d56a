"""The base class of all operators: a configuration that defines shapes and computation, and requests kernels of a
library.

An operator is a small class with fixed parts: `output_shape`, `variables`, `prepare`, and the class of its gradient.
An operator outside this package implements `output_shape`, `forward` and `backward` in array-module code instead of
`prepare`; it then runs on every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import configuration, is_integer, is_number, plain, shown
from crossbow.kernels.interface import PreparedKernel, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.kernels.requests import RequestType
from crossbow.ops.array import prepare_backward, prepare_forward
from crossbow.ops.initialiser import Initialiser
from crossbow.solver import SolverConf
from crossbow.types import Array, LabelRange, Phase, Shape, Tensor


@dataclass(frozen=True)
class VariableSpec:
    """A trainable variable of an operator.

    Raises ValueError if a field is invalid, or if the initialiser cannot fill the shape.
    """

    name: str
    shape: Shape
    initialiser: Initialiser
    learning_rate_multiplier: float = 1.0
    """Factor of the solver's learning rate for the whole step, ≥ 0. 0 freezes the variable."""
    minimum: float = -math.inf
    """Smallest allowed value, initial or loaded, for example 0 for a running variance."""

    def __post_init__(self) -> None:
        for name in ("shape", "learning_rate_multiplier", "minimum"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        name, shape, multiplier = self.name, self.shape, self.learning_rate_multiplier
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected a variable's name, a str that is not empty. Received: {shown(name)}")
        if not isinstance(shape, tuple | list) or not all(is_integer(size) and size >= 0 for size in shape):
            raise ValueError(f"expected a shape of {name!r}, a tuple of integers ≥ 0. Received: {shown(shape)}")
        object.__setattr__(self, "shape", tuple(shape))
        if not isinstance(self.initialiser, Initialiser):
            expected = f"expected an initialiser of {name!r}, as Gaussian(std=0.1)"
            raise ValueError(f"{expected}. Received: {shown(self.initialiser)}")
        if not is_number(multiplier) or multiplier < 0:
            expected = f"expected a learning_rate_multiplier of {name!r} that is a finite number ≥ 0"
            raise ValueError(f"{expected}. Received: {shown(multiplier)}")
        self.initialiser.check(name, self.shape)

    def initial_values(self, generator: np.random.Generator) -> NDArray[np.floating]:
        """Values drawn by the initialiser. Raises ValueError if they do not fit the variable."""
        kind = type(self.initialiser).__name__
        try:
            drawn = np.asarray(self.initialiser.fill(self.shape, generator))
        except Exception as error:
            raise ValueError(f"its initialiser {kind} raised {type(error).__name__}: {error}") from error
        if drawn.shape != self.shape or drawn.dtype.kind not in "fiu":
            received = f"values of {kind}, of shape {drawn.shape} and type {drawn.dtype}"
            raise ValueError(
                f"expected initial values of shape {self.shape} that are real numbers. Received: {received}"
            )
        return drawn if drawn.dtype.kind == "f" else drawn.astype(np.float64)


@dataclass(frozen=True)
class Site:
    """The place of an operator in a graph: the information with which its kernels are prepared. A gradient operator
    gets the site of its peer."""

    library: KernelLibrary
    phase: Phase
    inputs: tuple[Tensor, ...]
    output: Tensor
    labels: Tensor | None
    variables: Mapping[str, Variable]
    seed: int
    """Seed of the run."""
    key: int
    """Number of the operator, which separates its random numbers from those of other operators."""
    needs_input_gradient: bool = True
    """For gradient operators: whether an operator upstream trains. If not, only gradients of variables are computed."""
    logits: Tensor | None = None
    """For operators with `gradient_past`: the input of the preceding operator, if there is one; role `logits`."""
    fused_relu: bool = False
    """Whether the following ReLU is fused: `output` is then that of the ReLU, and the gradient of a BatchNorm includes
    that of the ReLU. For the gradient of a max pooling: whether it includes that of the ReLU before the pooling."""
    fused_sum: bool = False
    """Whether the following sum with another tensor, role `addend`, is fused. `fused_relu` then refers to the ReLU
    after the sum."""
    found: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Intermediate results that the gradients with respect to many inputs share."""


class Precision(Enum):
    """The types of an operator's tensors if the library has kernels for 16-bit numbers."""

    WIDE = "wide"
    """The library's own type, for functions with exp or log, losses, and users' operators."""
    FOLLOWING = "following"
    """16 bits if all inputs have 16 bits, for operators that only copy or select numbers."""
    NARROW = "narrow"
    """16 bits, for the operators that take most of the time."""


class Kernel:
    """Configuration and computation of an operator. Subclasses are `@configuration` dataclasses.

    A subclass outside Crossbow overrides `output_shape`, `forward`, `backward` and, if it is trained, `variables`.
    """

    number_of_inputs: ClassVar[int | None] = 1
    """Number of incoming edges; None means one or more."""
    takes_labels: ClassVar[bool] = False
    """Whether the labels are an input. They come with the batch, not through an edge."""
    is_loss: ClassVar[bool] = False
    """Whether the output, of shape (1,), is minimised by training."""
    is_measure: ClassVar[bool] = False
    """Whether the output, of shape (1,), is a metric to report, such as the accuracy."""
    takes_indices: ClassVar[bool] = False
    """Whether the inputs are indices, which have no gradient: only variables have one."""
    train_only: ClassVar[bool] = False
    """Whether the check dataflow omits the operator (dropout)."""
    reads_batch: ClassVar[bool] = False
    """Whether the input is the batch itself, so that no operator may precede this one."""
    is_step: ClassVar[bool] = False
    """Whether the operator only marks the point at which the learner takes its step."""
    gradient_past: ClassVar[type[Kernel] | None] = None
    """Type of the operator that must produce the input, and that the gradient bypasses: the gradient of SoftMaxLoss is
    taken with respect to the logits, which are the input of the preceding SoftMax."""

    # Optimisations that the compiler may apply, besides calling the kernels. A derived class may compute another
    # function, so it does not inherit them.

    precision: ClassVar[Precision] = Precision.WIDE
    """Types of the tensors if the library has kernels for 16-bit numbers."""
    narrow_variables: ClassVar[bool] = False
    """Whether the variables have 16 bits, too, if the tensors have."""
    gradient_takes_relu: ClassVar[bool] = False
    """Whether the gradient includes the gradient of a ReLU that is fused into the operator."""
    derivative_from_output: ClassVar[bool] = False
    """Whether the operator has one input, whose gradient is computed element by element from the output, not from the
    input."""

    @property
    def loss_weight(self) -> float:
        """For losses: the factor of the output in the sum of all losses, which training minimises, > 0."""
        return 1.0

    @property
    def is_auxiliary(self) -> bool:
        """For losses: whether the loss, with all that only it needs, is part of the training dataflow only."""
        return False

    @property
    def takes_relu(self) -> RequestType | None:
        """Type of the request whose kernel can include the ReLU after the operator; None if there is none."""
        return None

    @property
    def takes_sum(self) -> RequestType | None:
        """Type of the request whose kernel can include the sum after the operator, and the ReLU after the sum; None if
        there is none."""
        return None

    @property
    def is_frozen(self) -> bool:
        """Whether training changes none of the variables, so that their gradients are not needed. A derived class
        inherits it unless it overrides `variables`."""
        return False

    @property
    def is_relu(self) -> bool:
        """Whether the output is max(input, 0), which the kernel of the preceding operator may include."""
        return False

    @property
    def is_sum(self) -> bool:
        """Whether the output is the sum of all inputs, which the kernel of a preceding operator may include."""
        return False

    @property
    def picks_largest(self) -> bool:
        """Whether every element of the output is the largest of some elements of the input, and its gradient goes to
        that element."""
        return False

    def __init_subclass__(cls) -> None:
        # A class with other variables than its base must itself define whether they are frozen.
        nearest = next(base for base in cls.__mro__ if vars(base).keys() & {"variables", "is_frozen"})
        reset = _OF_ONE_CLASS if "is_frozen" in vars(nearest) else (*_OF_ONE_CLASS, "is_frozen")
        for name in reset:
            if name not in vars(cls):
                setattr(cls, name, vars(Kernel)[name])

    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of the output. Raises ValueError with what was expected and what was received."""
        raise NotImplementedError(f"{type(self).__name__} has no output_shape")

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        """Trainable variables, in order."""
        return ()

    def running_statistics(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        """Statistics that a training task observes (running means), in order.

        A training kernel reads `name` and writes `name_next`, which may share memory; a check kernel reads `name`.
        They are not trained: they have no gradient, and the solver does not change them. The base model has their mean
        over the learners.
        """
        return ()

    def check_training(self, *inputs: Shape) -> None:
        """Raise ValueError if inputs of these shapes are valid in testing, but not in training."""

    def check_producer(self, producer: Kernel, *inputs: Shape) -> None:
        """For operators with `gradient_past`: raise ValueError if the configuration of the preceding operator does not
        fit."""

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        """For operators that take labels: raise ValueError if the data set's labels do not fit the inputs."""

    def multiply_adds(self, *inputs: Shape) -> int:
        """Number of multiply-adds in the products of a forward pass; 0 for an operator without products."""
        return 0

    def counts(self, labels: Array) -> float:
        """Weight of a batch with these labels, for losses and metrics. The value for a whole check set, independent of
        the batch size, is Σ counts(labels of a batch) · value of the batch / counts(all labels)."""
        return float(len(labels))

    def prediction(self) -> Kernel | None:
        """For a loss that has the variables of the network: the operator that predicts with these variables, which are
        found by their names, from the inputs of the loss. None for other losses, whose input is the prediction. A
        derived class does not inherit it."""
        return None

    def own_solver(self) -> SolverConf | None:
        """The solver of the operator's variables, if the operator defines its own. No other operator may then have
        variables, and the context's solver is not used."""
        return None

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        """Forward kernels, in order."""
        if type(self).forward is Kernel.forward:
            raise NotImplementedError(f"{type(self).__name__} has neither `prepare` nor `forward`")
        return prepare_forward(self, site)

    def gradient(self, input: int = 0) -> Gradient | None:
        """The gradient operator with respect to one input, or None if that input has no gradient.

        The gradient operator of input 0 also computes the gradients of the variables.
        """
        if type(self).backward is Kernel.backward:
            return None
        return ArrayGradient(input=input)

    # Array-module code, for operators outside the package.

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        """The output, from arrays of `xp` (NumPy or CuPy). A loss or metric receives the labels as its last input, and
        only the real examples of a padded batch."""
        raise NotImplementedError(f"{type(self).__name__} has neither `prepare` nor `forward`")

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array | None], Mapping[str, Array]]:
        """Gradients of the inputs (None for an input for which `gradient` returns None), and of the variables by name.
        For a loss, `output_gradient` is an array with a single 1."""
        raise NotImplementedError(f"{type(self).__name__} has no `backward`")


_OF_ONE_CLASS = (
    "precision",
    "narrow_variables",
    "gradient_takes_relu",
    "derivative_from_output",
    "takes_relu",
    "takes_sum",
    "is_relu",
    "is_sum",
    "picks_largest",
    "prediction",
)


@configuration
class Gradient:
    """Gradient operator of a peer, with respect to one of the peer's inputs.

    Its input is the gradient of the peer's output. Its output is the gradient of the peer's input, and has that input's
    shape. The gradient operator of input 0 also writes the gradients of the peer's variables.
    """

    input: int = 0
    """Index of the peer's input."""

    @property
    def takes_sum(self) -> RequestType | None:
        """Type of the request whose kernel can add another gradient to that of the peer's input; None if there is
        none."""
        return None

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        """The kernels, in order. `site` is the peer's. Not called if there is nothing to compute."""
        raise NotImplementedError


@configuration
class ArrayGradient(Gradient):
    """Gradient of an operator outside the package. It calls `backward` once for every input."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        return prepare_backward(peer, self.input, site)
