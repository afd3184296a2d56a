"""The vectors of a learner and of a device's base model. Each kind is one contiguous buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossbow.compile import ModelLayout, Program
from crossbow.host_memory import Zeros, aligned_zeros
from crossbow.kernels.library import MixedPrecision
from crossbow.runtime.coefficients import ANY
from crossbow.runtime.memory import assign
from crossbow.solver import SolverConf
from crossbow.synch import BarrierRule, Rule
from crossbow.synch.two_level import RESTING
from crossbow.types import Array


@dataclass(frozen=True)
class BaseModel:
    """z on one device.

    z of tick t is in buffer t mod 2, and the next z overwrites the previous one: the current z stays intact until the
    next one is complete, even after a failure. Without a barrier there is one buffer, listed twice.
    """

    buffers: tuple[Array, Array]
    velocity: Array | None
    mean: Array | None
    """With a synchroniser, memory of a part of the mean of the contributions, and then of the whole mean. Otherwise the
    mean, under rules that combine it with other vectors."""
    statistics: tuple[Array, Array]
    """The mean of the learners' statistics, double-buffered by parity like z."""
    statistics_mean: Array | None
    """With a synchroniser, memory of a part of the next mean of the statistics, and then of the whole mean."""
    second_moment: Array | None = None
    step_count: Array | None = None
    """Number of adaptive steps of z, a counter for each learner: on CPUs, learners count the steps of their slices."""

    def current(self, tick: int) -> Array:
        return self.buffers[tick % 2]

    def vectors(self, parity: int) -> dict[str, Array]:
        """The vectors by the names that rules use, for a tick of this parity."""
        following = self.buffers[1 - parity]
        named = {"base": self.buffers[parity], "base_next": following, "base_previous": following}
        if self.velocity is not None:
            named["base_velocity"] = self.velocity
        if self.second_moment is not None:
            named["base_second_moment"] = self.second_moment
        if self.step_count is not None:
            named["base_step_count"] = self.step_count
        if self.mean is not None:
            named["mean"] = self.mean
        return named


KINDS = ("weights", "gradient", "velocity", "second_moment", "taken", "received")
"""Names of the vectors that a learner may have."""


@dataclass(frozen=True)
class Replica:
    """w_i with its gradient and velocity. Under rules that read the base, `weights` is None."""

    weights: Array | None
    gradient: Array
    velocity: Array | None
    statistics: tuple[Array, Array]
    """The learner's statistics, double-buffered: the last task of a tick reads one and writes the other, so that the
    former stays unchanged while the base model's mean is computed. Without a barrier, both are the same buffer."""
    taken: Array | None = None
    """The value of z with which the learner began, if the rule needs it."""
    received: Array | None = None
    """Messages on their way to the learner, if learners send to each other."""
    second_moment: Array | None = None
    """The running mean or sum of the gradient's squares, if the solver's method has one."""
    step_count: Array | None = None
    """(1,): number of adaptive steps since the moments were 0, if the method has a bias correction."""

    def vectors(self) -> dict[str, Array]:
        """The vectors, and the count of steps, by the names that rules use."""
        named = {name: getattr(self, name) for name in (*KINDS, "step_count")}
        return {name: vector for name, vector in named.items() if vector is not None}


COUNT_NBYTES = 8
"""Size of a counter of steps in bytes."""


def new_base_model(
    program: Program,
    rule: Rule,
    solver: SolverConf,
    *,
    several: bool,
    mean_first: bool = False,
    zeros: Zeros = aligned_zeros,
    learners: int = 1,
) -> BaseModel:
    """several: whether the mean of all learners is a sum over devices or ranks. mean_first: whether the mean is
    computed in a separate vector on a single device, too. learners: number of learners that merge slices of z."""
    used = rule.vectors(solver, ANY)
    two = isinstance(rule, BarrierRule)
    wanted = (True, two, "base_velocity" in used, several or mean_first, "base_second_moment" in used)
    first, second, velocity, mean, second_moment = _vectors(program.model, wanted, zeros)
    observed, following, statistics_mean = _vectors(program.statistics, (True, two, several), zeros)
    assert first is not None
    assert observed is not None
    buffers = (first, first if second is None else second)
    statistics = (observed, observed if following is None else following)
    count = _step_counts(learners, "base_step_count", rule, solver, zeros)
    return BaseModel(buffers, velocity, mean, statistics, statistics_mean, second_moment, count)


def new_replica(
    program: Program, rule: Rule, solver: SolverConf, zeros: Zeros = aligned_zeros, part: slice | None = None
) -> Replica:
    """part: for a mirror, the range of the vectors that it contains. A mirror has no statistics."""
    used = rule.vectors(solver, ANY)
    others = [name in used for name in ("taken", "received", "second_moment")]
    wanted = [not rule.reads_base, "velocity" in used, True, *others]
    weights, velocity, gradient, taken, received, second_moment = _vectors(program.model, wanted, zeros, part)
    no_part = None if part is None else slice(0, 0)
    observed, following = _vectors(program.statistics, (True, isinstance(rule, BarrierRule)), zeros, no_part)
    assert gradient is not None
    assert observed is not None
    statistics = (observed, observed if following is None else following)
    count = _step_counts(1, "step_count", rule, solver, zeros)
    return Replica(weights, gradient, velocity, statistics, taken, received, second_moment, count)


@dataclass(frozen=True)
class OuterModel:
    """With two levels, z between the hosts, and the vectors that the exchange between them uses."""

    base: BaseModel
    """z has one buffer, listed twice."""
    previous: Array
    """The value of z before the last exchange; during an exchange, the next z."""
    weights: Array
    """The host's z_h, as the rule between the hosts sees and changes it."""
    copies: tuple[BaseModel, ...] = ()
    """On each GPU except the first, a copy of z for tests; during an exchange, a copy of `weights`."""

    def on_device(self, device: int) -> BaseModel:
        """z in a device's memory."""
        return self.copies[device - 1] if device and self.copies else self.base

    def update_copies(self) -> None:
        """Copy z to the other GPUs."""
        for copy in self.copies:
            assign(copy.buffers[0], self.base.buffers[0])
            assign(copy.statistics[0], self.base.statistics[0])

    def vectors(self) -> dict[str, Array]:
        """The vectors by the names that rules use."""
        of_host = {"weights": self.weights, "base_next": self.previous, "base_previous": self.previous}
        return {**self.base.vectors(0), **of_host}


def outer_vectors(rule: BarrierRule) -> int:
    """Number of vectors of variables that a rule between hosts needs."""
    return 4 + ("base_velocity" in rule.vectors(RESTING, ANY))


def new_outer_model(program: Program, rule: BarrierRule, zeros: Zeros, others: Sequence[Zeros] = ()) -> OuterModel:
    """rule: the rule between the hosts. zeros: allocates memory of the first device. others: allocate memory of the
    other GPUs."""
    moves = outer_vectors(rule) > 4
    base, previous, weights, mean, velocity = _vectors(program.model, (True, True, True, True, moves), zeros)
    statistics, statistics_mean = program.statistics.new_vectors(2, zeros)
    assert base is not None
    assert previous is not None
    assert weights is not None
    made = BaseModel((base, base), velocity, mean, (statistics, statistics), statistics_mean)
    return OuterModel(made, previous, weights, tuple(_new_copy(program, each) for each in others))


def _new_copy(program: Program, zeros: Zeros) -> BaseModel:
    (vector,), (statistics,) = (layout.new_vectors(1, zeros) for layout in (program.model, program.statistics))
    return BaseModel((vector, vector), None, None, (statistics, statistics), None)


def _step_counts(counts: int, name: str, rule: Rule, solver: SolverConf, zeros: Zeros) -> Array | None:
    """This number of counters of steps, if the rule's updates advance a counter of this name; otherwise None."""
    return zeros(COUNT_NBYTES * counts).view(np.float64) if name in rule.counters(solver, ANY) else None


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


def _vectors(
    layout: ModelLayout, wanted: Sequence[bool], zeros: Zeros, part: slice | None = None
) -> list[Array | None]:
    """Vectors in one piece of memory, with None for those that are not needed. part: see `new_vectors`."""
    made = iter(layout.new_vectors(sum(wanted), zeros, part))
    return [next(made) if wish else None for wish in wanted]
