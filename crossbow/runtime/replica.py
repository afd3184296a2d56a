"""The vectors of a learner and of a device's base model. Each kind is one contiguous buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crossbow.compile import ModelLayout, Program
from crossbow.conf import SolverConf
from crossbow.kernels.interface import MixedPrecision
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.memory import assign
from crossbow.synch import Rule
from crossbow.types import Array, aligned_zeros


@dataclass(frozen=True)
class BaseModel:
    """z on one device.

    z of tick t lies in buffer t mod 2, and the next z is written over the one before: until all of it is there, the
    present one is whole, whatever fails.
    """

    buffers: tuple[Array, Array]
    velocity: Array | None
    total: Array | None
    """The sum of the contributions of this device, and then of all: with several devices only."""
    statistics: tuple[Array, Array]
    """The mean of the learners' statistics, by the tick's parity as z."""
    statistics_total: Array | None
    """This device's part of their next mean, and then the whole: with several devices only."""

    def current(self, tick: int) -> Array:
        return self.buffers[tick % 2]

    def vectors(self, parity: int) -> dict[str, Array]:
        """The vectors by the names that rules use, for a tick of this parity."""
        following = self.buffers[1 - parity]
        named = {"base": self.buffers[parity], "base_next": following, "base_previous": following}
        if self.velocity is not None:
            named["base_velocity"] = self.velocity
        if self.total is not None:
            named["total"] = self.total
        return named


@dataclass(frozen=True)
class Replica:
    """w_i with its gradient and velocity. Under rules that read the base, `weights` is None."""

    weights: Array | None
    gradient: Array
    velocity: Array | None
    statistics: tuple[Array, Array]
    """What the learner has observed before a tick of each parity: a tick's last task reads one and writes the other,
    so that what it read stays still while the base model's mean is made of it."""

    def vectors(self) -> dict[str, Array]:
        """The vectors by the names that rules use."""
        named = {"weights": self.weights, "gradient": self.gradient, "velocity": self.velocity}
        return {name: vector for name, vector in named.items() if vector is not None}


Zeros = Callable[[int], Array]
"""Gives so many zeroed bytes of a device's memory."""


def new_base_model(
    program: Program, rule: Rule, solver: SolverConf, devices: int, zeros: Zeros = aligned_zeros
) -> BaseModel:
    used, several = rule.merge(solver, ANY, 1).vectors, devices > 1
    first, second, velocity, total = _vectors(program.model, (True, True, "base_velocity" in used, several), zeros)
    observed, following, statistics_total = _vectors(program.statistics, (True, True, several), zeros)
    assert first is not None
    assert second is not None
    assert observed is not None
    assert following is not None
    return BaseModel((first, second), velocity, total, (observed, following), statistics_total)


def new_replica(program: Program, rule: Rule, solver: SolverConf, zeros: Zeros = aligned_zeros) -> Replica:
    used = rule.local_step(solver, ANY, 1, synchronises=True).vectors
    weights, velocity, gradient = _vectors(program.model, (not rule.reads_base, "velocity" in used, True), zeros)
    observed, following = _vectors(program.statistics, (True, True), zeros)
    assert gradient is not None
    assert observed is not None
    assert following is not None
    return Replica(weights, gradient, velocity, (observed, following))


def new_narrow_vectors(program: Program, mixed: MixedPrecision, zeros: Zeros) -> dict[str, Array]:
    """What a learner needs beside, where kernels compute with 16 bits: by the names that programs use."""
    layout, scaling = replace(program.model, dtype=mixed.dtype), mixed.new_scaling()
    made = zeros(scaling.nbytes).view(scaling.dtype)
    assign(made, scaling)
    weights, gradient = layout.new_vectors(2, zeros)
    return {"narrow_weights": weights, "narrow_gradient": gradient, "scaling": made}


def _vectors(layout: ModelLayout, wanted: Sequence[bool], zeros: Zeros) -> list[Array | None]:
    """Vectors in one piece of memory; None where none is wanted."""
    made = iter(layout.new_vectors(sum(wanted), zeros))
    return [next(made) if wish else None for wish in wanted]
