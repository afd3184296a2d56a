"""The exchange between hosts, with two levels of rules. Every rank is a host.

At the end of a tick of z no task is running, and every host has its own base model z_h. The rule between the hosts
computes z and the new z_h from those of all hosts; then the host's vectors move by the change of z_h::

    copy of z_h → mean over the hosts → z → new z_h → z_h, its previous value and the replicas move by the same vector
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from crossbow.compile import BoundStep
from crossbow.runtime.arithmetic import VectorArithmetic
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.coefficients import BoundUpdate, Formula, Formulas
from crossbow.runtime.flow import task_error
from crossbow.runtime.mean import Mean
from crossbow.runtime.memory import assign
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import BaseModel, OuterModel, Replica
from crossbow.runtime.task import PARITIES
from crossbow.solver import Pace, Update
from crossbow.solver.adaptation import Terms
from crossbow.solver.update import CONSTANT
from crossbow.synch import BarrierRule, HostCollective
from crossbow.synch.rule import MEAN, NOTHING
from crossbow.synch.two_level import RESTING
from crossbow.types import Aborted, Array, CrossbowError

NAME = "average between hosts"
"""Name of the calls, for errors."""


class Moved(NamedTuple):
    """The vectors that an exchange moves in one memory, that of all CPUs or of one GPU. The base models are equal."""

    bases: Sequence[BaseModel]
    replicas: Sequence[Replica]
    weights: Array
    """The new z_h."""
    change: Array
    """The difference from the old z_h."""


class HostExchange:
    """Exchanges of this rank with the others. The calls run on the stream of the first learner or, for vectors of
    another GPU, on that of the GPU's first learner. Between ranks, vectors are sent from the host's memory."""

    def __init__(self, assembly: Assembly, outer: OuterModel, backend: Backend) -> None:
        setting, ranks = assembly.setting, assembly.setting.ranks
        assert setting.between is not None
        self._backend, self._ranks, self._outer = backend, ranks, outer
        arithmetic, keeps = assembly.arithmetic, bool(assembly.arithmetic.ranges.kept)
        merging = Merging(arithmetic, setting.between, ranks.size, adds_parts=ranks.several, chained=setting.chained)
        mean = Mean(merging, ranks, HostCollective(1), assembly.flags, ranks.check_others, backend.through_host)
        self._formulas = host_formulas(setting.between, ranks.size, keeps=keeps)
        self._numbers = backend.call(lambda: arithmetic.array([0.0] * self._formulas.length))
        updates = self._formulas.over(self._numbers)
        self._steps = backend.call(
            lambda: [_Steps(assembly, outer, mean, updates, parity).all() for parity in PARITIES]
        )
        self._moves = [
            backend.call(partial(_moves, arithmetic, there), device)
            for device, there in enumerate(moved_in(assembly, outer, backend))
        ]

    def exchange(self, pace: Pace, tick: int) -> None:
        """Exchange once. tick: the host's next tick. Raises TaskError."""
        assign(self._numbers, self._formulas.at(pace))
        self._backend.synchronise()
        try:
            self._backend.call(lambda: _run(self._steps[tick % 2]))
            for copy in self._outer.copies:
                assign(copy.buffers[0], self._outer.weights)
            self._backend.synchronise()
            for device, moves in enumerate(self._moves):
                self._backend.call(partial(_run, moves[tick % 2]), device)
        except Aborted:
            raise CrossbowError("the context was closed during an exchange between hosts") from None
        except CrossbowError:
            raise
        except Exception as error:
            raise task_error(error, 0, NAME, f"of {self._ranks.size} hosts") from error


def host_formulas(rule: BarrierRule, hosts: int, *, keeps: bool = False) -> Formulas:
    """The updates of an exchange. The host's step is already done, so the rule's local step has no gradient. keeps:
    whether learners have local variables, of which z is the mean over the hosts."""

    def step(pace: Pace, _: None) -> Update:
        return rule.local_step(RESTING, pace, hosts, synchronises=True).expand("gradient", {})

    def formula(at: Callable[[Pace, None], Update], alone: Update = NOTHING) -> Formula[None]:
        return Formula(at, None, alone=Formula(lambda pace, _: alone, None) if keeps else None)

    updates = {
        "merge": formula(lambda pace, _: rule.merge(RESTING, pace, hosts), MEAN),
        "reply": formula(lambda pace, _: rule.reply(RESTING, pace, hosts)),
    }
    if rule.sends == "weights":
        updates["step"] = formula(step)
    return Formulas(updates)


def moved_in(assembly: Assembly, outer: OuterModel, backend: Backend) -> list[Moved]:
    """The vectors that move in each memory. The change is stored in the mean's vector, which is not needed any more."""
    bases, replicas, mean = assembly.bases, assembly.replicas, outer.base.mean
    assert mean is not None
    if not outer.copies:
        return [Moved(bases, replicas, outer.weights, mean)]
    found = []
    for gpu, base in enumerate(bases):
        own = [replica for replica, there in zip(replicas, backend.device_of, strict=True) if there == gpu]
        assert base.mean is not None  # as on several devices
        found.append(Moved([base], own, outer.copies[gpu - 1].buffers[0] if gpu else outer.weights, base.mean))
    return found


def _moves(arithmetic: VectorArithmetic, moved: Moved) -> list[list[BoundStep]]:
    """For each parity of the host's next tick, the calls that move its base models and replicas by the change of its
    weights."""
    return [_moves_of(arithmetic, moved, parity) for parity in PARITIES]


def _moves_of(arithmetic: VectorArithmetic, moved: Moved, parity: int) -> list[BoundStep]:
    host, change = moved.bases[0].buffers[parity], moved.change
    steps = _fixed(
        arithmetic,
        {"change": {"weights": 1.0, "host": -1.0}},
        {"change": change, "weights": moved.weights, "host": host},
    )
    for base in moved.bases:
        renewed = {"host": base.buffers[parity], "weights": moved.weights}
        steps += _fixed(arithmetic, {"host": {"weights": 1.0}}, renewed)
    others = [base.buffers[1 - parity] for base in moved.bases]
    others += [replica.weights for replica in moved.replicas if replica.weights is not None]
    for vector in others:
        steps += _fixed(arithmetic, {"moved": {"moved": 1.0, "change": 1.0}}, {"moved": vector, "change": change})
    return steps


def _fixed(arithmetic: VectorArithmetic, steps: Mapping[str, Terms], vectors: Mapping[str, Array]) -> list[BoundStep]:
    return arithmetic.fixed(NAME, Update(tuple(steps.items()), depends_on=CONSTANT), vectors)


class _Steps:
    """Creates the calls of an exchange that compute z and the host's weights, after which the host's ticks continue
    with this parity."""

    def __init__(
        self,
        assembly: Assembly,
        outer: OuterModel,
        mean: Mean,
        updates: Mapping[str, BoundUpdate],
        parity: int,
    ) -> None:
        self._assembly, self._outer, self._mean = assembly, outer, mean
        self._updates, self._parity = updates, parity
        self._arithmetic, self._vectors = assembly.arithmetic, outer.vectors()

    def all(self) -> list[BoundStep]:
        """The calls, in order."""
        steps = self._means()
        if "step" in self._updates:
            steps += self._update("step")
        return [*steps, *self._update("merge"), *self._update("reply"), *self._swap()]

    def _means(self) -> list[BoundStep]:
        """The host's weights, and the means of all hosts' weights and statistics."""
        host, base, mean = self._assembly.bases[0], self._outer.base, self._mean
        assert base.mean is not None
        assert base.statistics_mean is not None
        weights, observed = self._outer.weights, host.statistics[self._parity]
        steps = self._fixed({"weights": {"host": 1.0}}, {"weights": weights, "host": host.buffers[self._parity]})
        for name, sent, whole in (("sent", weights, base.mean), ("observed", observed, base.statistics_mean)):
            if not whole.size:
                continue
            if not mean.merging.chained:
                steps += self._fixed({"whole": {"part": 1 / mean.ranks.size}}, {"whole": whole, "part": sent})
            steps += mean.of(name, {f"{name}0": sent}, [whole])
        if base.statistics_mean.size:
            vectors = {"statistics": base.statistics[0], "mean": base.statistics_mean}
            steps += self._arithmetic.combine_statistics({"mean": 1.0}, vectors)
        return steps

    def _update(self, name: str) -> list[BoundStep]:
        return self._arithmetic.adjust(NAME, self._updates[name], self._vectors, slice(0, self._outer.weights.size))

    def _swap(self) -> list[BoundStep]:
        """Swap the next z and z, which becomes the previous one."""
        moves = {"mean": {"base": 1.0}, "base": {"base_next": 1.0}, "base_next": {"mean": 1.0}}
        return self._fixed(moves, self._vectors)

    def _fixed(self, steps: Mapping[str, Terms], vectors: Mapping[str, Array]) -> list[BoundStep]:
        return _fixed(self._arithmetic, steps, vectors)


def _run(steps: list[BoundStep]) -> None:
    for step in steps:
        step.call()
