"""Initial values of variables."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import check_boolean, check_choice, check_number, configuration, refuse
from crossbow.types import ConfigurationError, Shape

NORMS = ("fan_in", "fan_out", "average")
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_TRUNCATION = 2.0
"""Bound of a truncated Gaussian, in standard deviations from its mean."""


class Initialiser:
    """Base class of all initialisers, which draw the initial value of a variable.

    Subclasses are `@configuration` dataclasses.
    """

    def check(self, name: str, shape: Shape) -> None:
        """Raises ValueError if a variable of this name and shape cannot be filled."""

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        """An array of this shape. Equal states of the generator give equal values."""
        raise NotImplementedError(f"{type(self).__name__} has no `fill`")


@configuration
class Constant(Initialiser):
    """Sets all elements to `value`: `Constant(1.0)` or `Constant(value=1.0)`. It is the default for biases."""

    value: float = dataclasses.field(default=0.0, kw_only=False)

    def __post_init__(self) -> None:
        _check_float32(self, "value")

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        return np.full(shape, self.value, np.float64)


@configuration
class Values(Initialiser):
    """Copies the values of an array, for example of a trained model: `Values(array)`.

    The array is copied. Two initialisers are equal if shape, type and all values are equal.
    """

    array: NDArray[np.floating] = dataclasses.field(kw_only=False)

    def __post_init__(self) -> None:
        try:
            array = np.array(self.array)
        except ValueError as error:  # rows of different lengths
            raise refuse(self, "array", type(self.array).__name__, f"an array ({error})") from error
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            received = f"type {array.dtype}" if array.dtype.kind != "f" else "values that are not finite"
            raise ConfigurationError(f"Values: array must be of finite floating-point numbers. Received: {received}")
        array.flags.writeable = False
        object.__setattr__(self, "array", array)

    def check(self, name: str, shape: Shape) -> None:
        if shape != self.array.shape:
            raise ValueError(
                f"expected inputs for which {name!r} has the shape of its values, {self.array.shape}. "
                f"Received: inputs for which it has the shape {shape}"
            )

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        self.check("a variable", shape)
        return self.array.astype(np.float64)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values):
            return NotImplemented
        mine, others = self.array, other.array
        return mine.dtype == others.dtype and np.array_equal(mine, others)

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.dtype, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"Values({self.array.dtype} {self.array.shape})"


@configuration
class Uniform(Initialiser):
    """Uniform distribution in [minimum, maximum). The original declares it, but raises an exception."""

    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        _check_float32(self, "minimum")
        _check_float32(self, "maximum")
        if self.minimum > self.maximum:
            raise refuse(self, "maximum", self.maximum, f"≥ minimum={self.minimum!r}")

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        return generator.uniform(self.minimum, self.maximum, shape)


@configuration
class Gaussian(Initialiser):
    """Normal distribution with the given mean and standard deviation. With `truncate`, values that deviate from the
    mean by more than 2 standard deviations are redrawn.

    Fixed from the original: its flag was inverted (the default truncated, `truncate(true)` did not).
    """

    mean: float = 0.0
    std: float
    truncate: bool = False

    def __post_init__(self) -> None:
        _check_float32(self, "mean")
        check_number(self, "std", minimum=0, above=True)
        _check_float32(self, "std")
        check_boolean(self, "truncate")

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        return self.mean + self.std * _normal(shape, generator, self.truncate)


@configuration
class Xavier(Initialiser):
    """Uniform distribution in [−s, s) with s = gain · √(3 / n), whose variance is gain² / n (Glorot and Bengio, 2010).

    `norm` selects n; see `fans`. It is the default for weights; use `MSRA` before ReLUs. `gain` compensates for the
    slope of the following activation; for example, it is 4 for sigmoids.
    """

    norm: str = "fan_in"
    gain: float = 1.0

    def __post_init__(self) -> None:
        check_choice(self, "norm", NORMS)
        check_number(self, "gain", minimum=0, above=True)

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        bound = self.gain * math.sqrt(3.0 / _fan(shape, self.norm))
        return generator.uniform(-bound, bound, shape)


@configuration
class MSRA(Initialiser):
    """Normal distribution with mean 0 and standard deviation √(2 / n) (He et al., 2015).

    `norm` selects n; see `fans`. Use it for weights that are followed by a ReLU.

    Fixed from the original: n follows `norm` (it was always fan_out), and `truncate` is no longer inverted.
    """

    norm: str = "fan_in"
    truncate: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "norm", NORMS)
        check_boolean(self, "truncate")

    def fill(self, shape: Shape, generator: np.random.Generator) -> NDArray[np.float64]:
        return math.sqrt(2.0 / _fan(shape, self.norm)) * _normal(shape, generator, self.truncate)


def _check_float32(owner: Initialiser, name: str) -> None:
    """Raise ConfigurationError unless the field is a number that float32 can represent."""
    check_number(owner, name)
    if not is_float32(getattr(owner, name)):
        raise refuse(owner, name, getattr(owner, name), "a number that float32 can represent")


def is_float32(number: float) -> bool:
    """Whether float32 can represent the finite number."""
    return abs(number) <= LARGEST_FLOAT32


def fans(shape: Shape) -> tuple[float, float]:
    """(fan_in, fan_out), each ≥ 1: the number of inputs that contribute to an output, and of outputs that an input
    contributes to.

    For weights of shape (outputs, inputs, …), they are elements / shape[0] and elements / shape[1]:

    >>> fans((10, 784)), fans((32, 3, 5, 5))
    ((784.0, 10.0), (75.0, 800.0))

    The second pair is 3 · 5 · 5 and 32 · 5 · 5 (at stride 1, away from the border). With groups, fan_out counts the
    outputs of all groups, because the shape does not distinguish them. A missing dimension counts as 1.
    """
    elements = float(math.prod(shape))
    outputs = shape[0] if shape else 1
    inputs = shape[1] if len(shape) > 1 else 1
    if elements == 0:
        return 1.0, 1.0
    return elements / outputs, elements / inputs


def _fan(shape: Shape, norm: str) -> float:
    fan_in, fan_out = fans(shape)
    return {"fan_in": fan_in, "fan_out": fan_out, "average": (fan_in + fan_out) / 2}[norm]


def _normal(shape: Shape, generator: np.random.Generator, truncate: bool) -> NDArray[np.float64]:
    """Standard normal numbers. With `truncate`, numbers beyond the bound are redrawn until none is left."""
    values = generator.standard_normal(shape)
    while truncate:
        beyond = np.abs(values) > _TRUNCATION
        count = int(np.count_nonzero(beyond))
        if count == 0:
            break
        values[beyond] = generator.standard_normal(count)
    return values
