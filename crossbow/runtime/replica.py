"""The vectors of a learner and of a device's base model. Each kind is one contiguous buffer."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.compile import ModelLayout
from crossbow.conf import SolverConf
from crossbow.synch import Rule
from crossbow.types import Array


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

    def vectors(self) -> dict[str, Array]:
        """The vectors by the names that rules use."""
        named = {"weights": self.weights, "gradient": self.gradient, "velocity": self.velocity}
        return {name: vector for name, vector in named.items() if vector is not None}


def new_base_model(layout: ModelLayout, rule: Rule, solver: SolverConf, devices: int) -> BaseModel:
    used = rule.merge(solver, 1.0, 1).vectors
    return BaseModel(
        buffers=(layout.new_vector(), layout.new_vector()),
        velocity=layout.new_vector() if "base_velocity" in used else None,
        total=layout.new_vector() if devices > 1 else None,
    )


def new_replica(layout: ModelLayout, rule: Rule, solver: SolverConf) -> Replica:
    used = rule.local_step(solver, 1.0, 1, synchronises=True).vectors
    return Replica(
        weights=None if rule.reads_base else layout.new_vector(),
        gradient=layout.new_vector(),
        velocity=layout.new_vector() if "velocity" in used else None,
    )
