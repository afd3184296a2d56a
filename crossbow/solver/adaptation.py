"""Adaptive steps, the part of an update that is not a linear combination: Adam, AdamW, RMSprop and Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.types import Array

STEP = "step"
"""The term of an update that stands for the result of its adaptation."""
NUMBERS = ("decay", "gain", "epsilon", "keep", "part")
"""The numbers of an adaptation after the coefficients of d, in the order in which kernels read them."""

Terms = Mapping[str, float]
"""The coefficient of each vector, by name, in the order of summation."""


@dataclass(frozen=True)
class StepCount:
    """A counter of steps, with the two decays whose bias it corrects."""

    name: str
    """The counter: an array of one float64."""
    beta1: float
    beta2: float

    def advance(self, counter: Array) -> tuple[float, float]:
        """Count a step, and return its bias correction (1 / (1 − beta1^n), 1 / √(1 − beta2^n)), where n is the number
        of steps."""
        counter[0] += 1
        steps = float(counter[0])
        return 1 / (1 - self.beta1**steps), 1 / float(np.sqrt(1 - self.beta2**steps))


UNCORRECTED = (1.0, 1.0)
"""The bias correction of a method without one."""


@dataclass(frozen=True)
class AdaptationForm:
    """The names of the vectors that an adaptation reads and writes, for which a kernel is prepared. `Adaptation` has
    the formula."""

    descent: tuple[str, ...]
    """The terms of d."""
    second_moment: str
    velocity: str | None = None
    of_steps: bool = False
    """Whether the velocity averages steps (RMSprop), not gradients (Adam)."""


@dataclass(frozen=True)
class Adaptation:
    """A step that adapts to the size of each element's gradient. Element by element, with the bias correction (a, b)::

    d = Σ coefficient × term                   the descent: the gradient with regularisation
    s ← decay · s + gain · d²                  the second moment
    v ← keep · v + part · d                    the velocity, unless it is None or of steps
    step = a · v / (b · √s + epsilon)          with d instead of v if there is no velocity, or it is of steps
    v ← keep · v + part · step;  step = v      the velocity of steps
    """

    descent: Terms
    second_moment: str
    decay: float
    gain: float
    epsilon: float
    velocity: str | None = None
    keep: float = 0.0
    part: float = 1.0
    of_steps: bool = False
    """Whether the velocity averages steps (RMSprop), not gradients (Adam)."""
    count: StepCount | None = None

    @property
    def form(self) -> AdaptationForm:
        return AdaptationForm(tuple(self.descent), self.second_moment, self.velocity, self.of_steps)

    @property
    def coefficients(self) -> list[float]:
        """The coefficients of d, followed by the numbers of `NUMBERS`."""
        return [*self.descent.values(), *(getattr(self, name) for name in NUMBERS)]

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the vectors that are written."""
        return (self.second_moment,) if self.velocity is None else (self.second_moment, self.velocity)

    def apply(self, vectors: Mapping[str, Array], correction: tuple[float, float]) -> NDArray[np.float64]:
        """Update the moments in `vectors`, and return the step."""
        first, second = correction
        descent = sum_of(self.descent, vectors)
        squares: NDArray[Any] = vectors[self.second_moment]
        squares[...] = self.decay * squares + self.gain * descent * descent
        direction = descent
        velocity: NDArray[Any] | None = None if self.velocity is None else vectors[self.velocity]
        if velocity is not None and not self.of_steps:
            velocity[...] = direction = self.keep * velocity + self.part * descent
        step: NDArray[np.float64] = first * direction / (second * np.sqrt(squares) + self.epsilon)
        if velocity is not None and self.of_steps:
            velocity[...] = step = self.keep * velocity + self.part * step
        return step


def sum_of(terms: Terms, vectors: Mapping[str, Array]) -> NDArray[np.float64]:
    """Σ coefficient × vector, in double precision. There is at least one term."""
    total: NDArray[np.float64] = np.zeros_like(vectors[next(iter(terms))], np.float64)
    for name, coefficient in terms.items():
        total += coefficient * np.asarray(vectors[name], np.float64)
    return total
