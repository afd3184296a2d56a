"""The base of every operator: a configuration that knows shapes and mathematics, and asks a library for kernels.

An operator is a small class with fixed parts: `output_shape`, `variables`, `prepare`, and the class of its gradient.
Whoever writes one outside this package gives `output_shape`, `forward` and `backward` in array-module code instead
of `prepare`; it then runs on every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import SolverConf, configuration, is_integer, is_number, plain, shown
from crossbow.kernels.interface import KernelLibrary, PreparedKernel, Variable
from crossbow.ops.initialiser import Initialiser
from crossbow.types import Array, LabelRange, Phase, Shape, Tensor


@dataclass(frozen=True)
class VariableSpec:
    """A trainable variable of an operator. Raises ValueError where a field is wrong, or the initialiser cannot fill the
    shape."""

    name: str
    shape: Shape
    initialiser: Initialiser
    learning_rate_multiplier: float = 1.0
    """≥ 0; times the solver's learning rate, for the whole step. 0 keeps the variable as it is."""
    minimum: float = -math.inf
    """What no value may be less than, initially or loaded, as 0 of a running variance."""

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
        """What the initialiser draws. Raises ValueError where that does not fit the variable."""
        kind = type(self.initialiser).__name__
        try:
            drawn = np.asarray(self.initialiser.fill(self.shape, generator))
        except Exception as error:
            raise ValueError(f"its initialiser {kind} raised {type(error).__name__}: {error}") from error
        if drawn.shape != self.shape or drawn.dtype.kind not in "fiu":
            received = f"those of {kind}, of shape {drawn.shape} and type {drawn.dtype}"
            raise ValueError(
                f"expected initial values of shape {self.shape} that are real numbers. Received: {received}"
            )
        return drawn if drawn.dtype.kind == "f" else drawn.astype(np.float64)


@dataclass(frozen=True)
class Site:
    """Where an operator stands when its kernels are prepared. For a gradient operator, that of its peer."""

    library: KernelLibrary
    phase: Phase
    inputs: tuple[Tensor, ...]
    output: Tensor
    labels: Tensor | None
    variables: Mapping[str, Variable]
    seed: int
    """The run's seed."""
    key: int
    """The operator's number, which separates its random numbers from the others'."""
    needs_input_gradient: bool = True
    """Gradient operators: whether anything upstream trains. If not, only variable gradients are computed."""
    logits: Tensor | None = None
    """Operators with `gradient_past`: the input of the operator before, as far as there is one; role `logits`."""
    fused_relu: bool = False
    """Whether the output is that of the ReLU behind this operator; a BatchNorm's gradient then is that of both."""


class Kernel:
    """An operator's configuration and mathematics. Subclasses are `@configuration` dataclasses.

    A subclass outside Crossbow overrides `output_shape`, perhaps `variables`, and `forward` and `backward`.
    """

    number_of_inputs: ClassVar[int | None] = 1
    """How many edges end here; None is one or more."""
    takes_labels: ClassVar[bool] = False
    """Whether the batch's labels are an input (they come from the batch, not through an edge)."""
    is_loss: ClassVar[bool] = False
    """Whether the output, of shape (1,), is what training makes small."""
    is_measure: ClassVar[bool] = False
    """Whether the output, of shape (1,), is reported (accuracy)."""
    takes_indices: ClassVar[bool] = False
    """Whether the inputs are indices. They have no gradient: the operator's gradient is that of its variables only."""
    train_only: ClassVar[bool] = False
    """Whether the operator is left out of the check dataflow (dropout)."""
    reads_batch: ClassVar[bool] = False
    """Whether the input is the batch itself: nothing may stand before the operator."""
    gradient_past: ClassVar[type[Kernel] | None] = None
    """The kind of operator that must produce the input, and past which the gradient is: that of SoftMaxLoss is with
    respect to the logits, the input of the SoftMax before it."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """The output's shape. Raises ValueError that says what was expected and what was received."""
        raise NotImplementedError(f"{type(self).__name__} has no output_shape")

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        """The trainable variables, in order."""
        return ()

    def running_statistics(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        """What a training task observes and keeps beside the variables (running means), in order.

        A training kernel reads `name` and writes `name_next`, which may be the same memory; a check kernel reads
        `name`. They are no parameters: no gradient, no solver. The base model's are the mean of the learners'.
        """
        return ()

    def check_training(self, *inputs: Shape) -> None:
        """Raises ValueError where inputs of these shapes can be tested with, but not trained with."""

    def check_producer(self, producer: Kernel, *inputs: Shape) -> None:
        """Operators with `gradient_past`: raises ValueError where the operator before is configured otherwise."""

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        """Operators that take labels: raises ValueError where the data set's labels do not fit the inputs."""

    def counts(self, labels: Array) -> float:
        """Losses and measures: what a batch with these labels counts. The value of a whole check set, whatever its
        batches, is Σ counts(labels of a batch) · its value / counts(all labels)."""
        return float(len(labels))

    def own_solver(self) -> SolverConf | None:
        """How the operator's variables are updated, if it says so itself. They are then the only ones, and the
        context's solver is not asked."""
        return None

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        """The forward kernels, in order."""
        from crossbow.ops.array import prepare_forward

        return prepare_forward(self, site)

    def gradient(self, input: int = 0) -> Gradient | None:
        """The gradient operator with respect to one input, or None where there is no gradient.

        The one of input 0 also computes the gradients of the variables.
        """
        from crossbow.ops.array import ArrayGradient

        if type(self).backward is Kernel.backward:
            return None
        return ArrayGradient(input=input)

    # Array-module code, for operators outside the package.

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        """The output, from arrays of `xp` (NumPy or CuPy). A loss or measure gets the labels as its last input, and
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
        """The gradients of the inputs (None for an input for which `gradient` returns None) and of the variables by
        name. For a loss, `output_gradient` is an array with one 1."""
        raise NotImplementedError(f"{type(self).__name__} has no `backward`")


@configuration
class Gradient:
    """The gradient operator of a peer, with respect to one of the peer's inputs.

    Its input is the gradient of the peer's output; its output, of the shape of the peer's input, the gradient of that
    input. The one of input 0 also writes the gradients of the peer's variables.
    """

    input: int = 0
    """Which input of the peer."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        """The kernels, in order. `site` is the peer's."""
        raise NotImplementedError
