"""The rules with a barrier as the papers have them, in plain NumPy: what the engine must compute, by another way.

The model is an inner product, a softmax and the cross-entropy. Everything is written out for one weight matrix and one
bias, without the engine's flat vectors, coefficients and flags. Only the order of the examples is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.data.order import TrainingOrder

Array = NDArray[Any]


@dataclass
class Model:
    """A weight matrix (classes, features) and a bias (classes,), or anything of their form."""

    weights: Array
    bias: Array

    def copy(self) -> Model:
        return Model(self.weights.copy(), self.bias.copy())

    def zeros(self) -> Model:
        return Model(np.zeros_like(self.weights), np.zeros_like(self.bias))

    def __add__(self, other: Model) -> Model:
        return Model(self.weights + other.weights, self.bias + other.bias)

    def __sub__(self, other: Model) -> Model:
        return self + -1.0 * other

    def __rmul__(self, factor: float) -> Model:
        return Model(factor * self.weights, factor * self.bias)

    def sign(self) -> Model:
        return Model(np.sign(self.weights), np.sign(self.bias))

    def norm(self) -> float:
        return float(np.sqrt(np.square(self.weights).sum() + np.square(self.bias).sum()))

    def loss_and_gradient(self, x: Array, labels: Array) -> tuple[float, Model]:
        logits = x @ self.weights.T + self.bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        rows = np.arange(len(x))
        loss = float(np.mean(-np.log(p[rows, labels])))
        p[rows, labels] -= 1
        p /= len(x)
        return loss, Model(p.T @ x, p.sum(axis=0))


@dataclass
class Simulation:
    """k learners on the batches of a training order."""

    images: Array
    labels: Array
    batch_size: int
    seed: int
    learners: int
    start: Model
    rate: Callable[[int], float]
    """γ of the tick whose first task is number t."""
    momentum: float = 0.0
    decay: float = 0.0
    nesterov: bool = False
    l1: bool = False
    clip: float | None = None
    multipliers: tuple[float, float] = (1.0, 1.0)
    """Of the learning rates of weights and bias."""
    momentum_at: Callable[[int], float] | None = None
    """The momentum of the tick whose first task is number t, where it changes."""
    task: int = 0
    clipped: int = 0
    """How many gradients were too long."""
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = TrainingOrder(len(self.images), self.batch_size, self.seed)
        self.z, self.z_previous = self.start.copy(), self.start.copy()
        self.w = [self.start.copy() for _ in range(self.learners)]
        self.v = [self.start.zeros() for _ in range(self.learners)]
        self.base_velocity = self.start.zeros()

    def gradient(self, model: Model) -> Model:
        """That of the next task's batch."""
        indices = np.empty(self.batch_size, np.intp)
        self.order.indices(self.task, indices)
        self.task += 1
        loss, gradient = model.loss_and_gradient(self.images[indices], self.labels[indices])
        self.losses.append(loss)
        return gradient

    def shortened(self, gradient: Model) -> Model:
        """The gradient, clipped by its norm."""
        norm = gradient.norm()
        if self.clip is None or norm <= self.clip:
            return gradient
        self.clipped += 1
        return (self.clip / norm) * gradient

    def step(self, w: Model, v: Model, g: Model, rate: float, momentum: float) -> tuple[Model, Model]:
        """The solver's step and the new velocity, as textbooks have it."""
        g = g + self.decay * (w.sign() if self.l1 else w)
        g = Model(self.multipliers[0] * g.weights, self.multipliers[1] * g.bias)
        v = momentum * v - rate * g
        return (momentum * v - rate * g if self.nesterov else v), v

    def restart(self) -> None:
        self.z_previous = self.z.copy()
        self.w = [self.z.copy() for _ in self.w]
        self.v = [self.z.zeros() for _ in self.v]
        self.base_velocity = self.z.zeros()

    def pace(self) -> tuple[float, float]:
        momentum = self.momentum if self.momentum_at is None else self.momentum_at(self.task)
        return self.rate(self.task), momentum

    def sma_tick(self, alpha: float, tau: int, base_momentum: float) -> None:
        """Algorithm 1 of the Crossbow paper: c_i from the weights before the last local step; then z."""
        rate, momentum = self.pace()
        corrections = []
        for step in range(tau):
            for i in range(self.learners):
                g = self.shortened(self.gradient(self.w[i]))
                correction = alpha * (self.w[i] - self.z)
                moved, self.v[i] = self.step(self.w[i], self.v[i], g, rate, momentum)
                self.w[i] = self.w[i] + moved
                if step == tau - 1:
                    self.w[i] = self.w[i] - correction
                    corrections.append(correction)
        after = self.z + base_momentum * (self.z - self.z_previous)
        for correction in corrections:
            after = after + correction
        self.z, self.z_previous = after, self.z

    def averaging_tick(self, tau: int) -> None:
        """Everybody alone from z, then the mean."""
        mean = self.alone(tau)
        self.z, self.z_previous = mean, self.z
        self.w = [mean.copy() for _ in self.w]

    def diloco_tick(self, tau: int, rate: float, momentum: float) -> None:
        """Algorithm 1 of the DiLoCo paper. Nesterov's momentum is as PyTorch documents it."""
        change = self.z - self.alone(tau)
        self.base_velocity = momentum * self.base_velocity + change
        self.z, self.z_previous = self.z - rate * (change + momentum * self.base_velocity), self.z
        self.w = [self.z.copy() for _ in self.w]

    def polyak_ruppert_tick(self, tau: int, alpha: float, clock: int) -> None:
        """z is the mean over ticks, from 0, of the learners' means."""
        mean = self.alone(tau)
        self.w = [w - alpha * (w - self.z) for w in self.w]
        self.z, self.z_previous = self.z + (1 / (clock + 1)) * (mean - self.z), self.z

    def alone(self, tau: int) -> Model:
        """τ local steps of every learner, and the mean of where they lead."""
        rate, momentum = self.pace()
        for _ in range(tau):
            for i in range(self.learners):
                g = self.shortened(self.gradient(self.w[i]))
                moved, self.v[i] = self.step(self.w[i], self.v[i], g, rate, momentum)
                self.w[i] = self.w[i] + moved
        total = self.z.zeros()
        for w in self.w:
            total = total + w
        return (1 / self.learners) * total

    def ssgd_tick(self) -> None:
        """One step along the mean of the learners' gradients at z."""
        rate, momentum = self.pace()
        total = self.z.zeros()
        for _ in range(self.learners):
            total = total + self.gradient(self.z)
        mean = self.shortened((1 / self.learners) * total)
        moved, self.base_velocity = self.step(self.z, self.base_velocity, mean, rate, momentum)
        self.z = self.z + moved
