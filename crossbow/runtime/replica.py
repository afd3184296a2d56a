"""The vectors of a learner and of a device's base model. Each kind is one contiguous buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crossbow.compile import ModelLayout, Program
from crossbow.host_memory import aligned_zeros
from crossbow.kernels.library import MixedPrecision
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.memory import assign
from crossbow.solver import SolverConf
from crossbow.synch import BarrierRule, Rule
from crossbow.types import Array


@dataclass(frozen=True)
class BaseModel:
    """z on one device.

    z of tick t is in buffer t mod 2, and the next z overwrites the previous one: the current z stays intact until the
    next one is complete, whatever fails. Without a barrier there is one buffer, listed twice.
    """

    buffers: tuple[Array, Array]
    velocity: Array | None
    mean: Array | None
    """With several devices or ranks: a part of the mean of what learners send, and then the whole mean. On one device:
    the mean, under rules that combine it with other vectors."""
    statistics: tuple[Array, Array]
    """The mean of the learners' statistics, double-buffered by parity like z."""
    statistics_mean: Array | None
    """With several devices or ranks: a part of their next mean, and then the whole mean."""

    def current(self, tick: int) -> Array:
        return self.buffers[tick % 2]

    def vectors(self, parity: int) -> dict[str, Array]:
        """The vectors by the names that rules use, for a tick of this parity."""
        following = self.buffers[1 - parity]
        named = {"base": self.buffers[parity], "base_next": following, "base_previous": following}
        if self.velocity is not None:
            named["base_velocity"] = self.velocity
        if self.mean is not None:
            named["mean"] = self.mean
        return named


KINDS = ("weights", "gradient", "velocity", "taken", "received")
"""The vectors that a learner may have."""


@dataclass(frozen=True)
class Replica:
    """w_i with its gradient and velocity. Under rules that read the base, `weights` is None."""

    weights: Array | None
    gradient: Array
    velocity: Array | None
    statistics: tuple[Array, Array]
    """The learner's statistics, double-buffered: the last task of a tick reads one and writes the other, so that the
    one that it read stays unchanged while the base model's mean is computed. Without a barrier both are one."""
    taken: Array | None = None
    """The value of z with which the learner began, if the rule needs it."""
    received: Array | None = None
    """Messages on their way to the learner, if learners send to each other."""

    def vectors(self) -> dict[str, Array]:
        """The vectors by the names that rules use."""
        named = {name: getattr(self, name) for name in KINDS}
        return {name: vector for name, vector in named.items() if vector is not None}


Zeros = Callable[[int], Array]
"""Function that allocates zeroed bytes of a device's memory."""


def new_base_model(
    program: Program,
    rule: Rule,
    solver: SolverConf,
    *,
    several: bool,
    mean_first: bool = False,
    zeros: Zeros = aligned_zeros,
) -> BaseModel:
    """several: whether the mean of all learners is a sum over devices or ranks. mean_first: whether it has a vector of
    its own on a single device, too."""
    used = rule.vectors(solver, ANY)
    two = isinstance(rule, BarrierRule)
    wanted = (True, two, "base_velocity" in used, several or mean_first)
    first, second, velocity, mean = _vectors(program.model, wanted, zeros)
    observed, following, statistics_mean = _vectors(program.statistics, (True, two, several), zeros)
    assert first is not None
    assert observed is not None
    buffers = (first, first if second is None else second)
    return BaseModel(buffers, velocity, mean, (observed, observed if following is None else following), statistics_mean)


def new_replica(program: Program, rule: Rule, solver: SolverConf, zeros: Zeros = aligned_zeros) -> Replica:
    used = rule.vectors(solver, ANY)
    wanted = [not rule.reads_base, "velocity" in used, True, "taken" in used, "received" in used]
    weights, velocity, gradient, taken, received = _vectors(program.model, wanted, zeros)
    observed, following = _vectors(program.statistics, (True, isinstance(rule, BarrierRule)), zeros)
    assert gradient is not None
    assert observed is not None
    statistics = (observed, observed if following is None else following)
    return Replica(weights, gradient, velocity, statistics, taken, received)


def narrow_vectors(program: Program, mixed: MixedPrecision | None, zeros: Zeros) -> dict[str, Array]:
    """Additional vectors of a learner whose kernels compute with 16 bits, by the names that programs use; empty
    otherwise."""
    if mixed is None:
        return {}
    layout, scaling = replace(program.model, dtype=mixed.dtype), mixed.new_scaling()
    made = zeros(scaling.nbytes).view(scaling.dtype)
    assign(made, scaling)
    weights, gradient = layout.new_vectors(2, zeros)
    return {"narrow_weights": weights, "narrow_gradient": gradient, "scaling": made}


def _vectors(layout: ModelLayout, wanted: Sequence[bool], zeros: Zeros) -> list[Array | None]:
    """Vectors in one piece of memory, with None for those that are not needed."""
    made = iter(layout.new_vectors(sum(wanted), zeros))
    return [next(made) if wish else None for wish in wanted]
