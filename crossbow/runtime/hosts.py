"""The exchange between hosts, with two levels of rules. Every rank is a host.

At the end of a tick of z no task is running, and every host has its own base model z_h. The rule between the hosts
computes z and the new z_h from those of all hosts; then the host's vectors move by the change of z_h::

    copy of z_h → mean over the hosts → z → new z_h → z_h, its previous value and the replicas move by the same vector
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from crossbow.compile import BoundStep
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.coefficients import Formula, Formulas
from crossbow.runtime.flow import task_error
from crossbow.runtime.mean import Mean
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import OuterModel
from crossbow.solver import Pace, Update
from crossbow.solver.adaptation import Terms
from crossbow.solver.update import CONSTANT
from crossbow.synch import BarrierRule, HostCollective
from crossbow.synch.rule import MEAN, NOTHING
from crossbow.synch.two_level import RESTING
from crossbow.types import Aborted, Array, CrossbowError

NAME = "average between hosts"
"""Name of the calls, for errors."""


class HostExchange:
    """Exchanges of this rank with the others. The calls run on the first learner's stream."""

    def __init__(self, assembly: Assembly, outer: OuterModel, backend: Backend) -> None:
        setting = assembly.setting
        assert setting.between is not None
        self._backend, self._ranks = backend, setting.ranks
        keeps = bool(assembly.arithmetic.ranges.kept)
        self._formulas = host_formulas(setting.between, setting.ranks.size, keeps=keeps)
        self._numbers = np.zeros(self._formulas.length)
        self._steps = backend.call(
            lambda: [_Steps(assembly, outer, self._formulas, self._numbers, parity).all() for parity in (0, 1)]
        )

    def exchange(self, pace: Pace, tick: int) -> None:
        """Exchange once. tick: the host's next tick. Raises TaskError."""
        self._numbers[:] = self._formulas.at(pace)
        try:
            self._backend.call(lambda: _run(self._steps[tick % 2]))
        except Aborted:
            raise CrossbowError("the context was closed during an exchange between hosts") from None
        except CrossbowError:
            raise
        except Exception as error:
            raise task_error(error, 0, NAME, f"of {self._ranks.size} hosts") from error


def host_formulas(rule: BarrierRule, hosts: int, *, keeps: bool = False) -> Formulas:
    """The updates of an exchange. A host has made its step, so that of the rule has no gradient. keeps: whether
    learners have local variables, of which z is the mean over the hosts."""

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


class _Steps:
    """Creates the calls of an exchange after which the host's ticks continue with this parity."""

    def __init__(self, assembly: Assembly, outer: OuterModel, formulas: Formulas, numbers: Array, parity: int) -> None:
        self._assembly, self._outer, self._parity = assembly, outer, parity
        self._arithmetic, self._vectors = assembly.arithmetic, outer.vectors()
        self._updates = formulas.over(numbers)

    def all(self) -> list[BoundStep]:
        """The calls, in order."""
        steps = self._mean()
        if "step" in self._updates:
            steps += self._update("step")
        return [*steps, *self._update("merge"), *self._update("reply"), *self._swap(), *self._move()]

    def _mean(self) -> list[BoundStep]:
        """The host's weights, and the means of all hosts' weights and statistics."""
        setting, host, base = self._assembly.setting, self._assembly.bases[0], self._outer.base
        assert setting.between is not None
        assert base.mean is not None
        assert base.statistics_mean is not None
        hosts = setting.ranks.size
        merging = Merging(self._arithmetic, setting.between, hosts, 1, ranks=hosts, chained=setting.chained)
        mean = Mean(merging, setting.ranks, HostCollective(1), self._assembly.flags)
        weights, observed = self._outer.weights, host.statistics[self._parity]
        steps = self._fixed({"weights": {"host": 1.0}}, {"weights": weights, "host": host.buffers[self._parity]})
        for name, sent, whole in (("sent", weights, base.mean), ("observed", observed, base.statistics_mean)):
            if not whole.size:
                continue
            if not merging.chained:
                steps += self._fixed({"whole": {"part": 1 / hosts}}, {"whole": whole, "part": sent})
            steps += mean.of(name, {f"{name}0": sent}, [whole])
        if base.statistics_mean.size:
            vectors = {"statistics": base.statistics[0], "mean": base.statistics_mean}
            steps += self._arithmetic.combine_statistics({"mean": 1.0}, vectors)
        return steps

    def _update(self, name: str) -> list[BoundStep]:
        return self._arithmetic.adjust(NAME, self._updates[name], self._vectors, slice(0, self._outer.weights.size))

    def _swap(self) -> list[BoundStep]:
        """The next z takes the place of z, which becomes the previous one."""
        moves = {"mean": {"base": 1.0}, "base": {"base_next": 1.0}, "base_next": {"mean": 1.0}}
        return self._fixed(moves, self._vectors)

    def _move(self) -> list[BoundStep]:
        """Move the host's base models and replicas by the change of its weights."""
        mean, here, assembly = self._vectors["mean"], self._parity, self._assembly
        host = assembly.bases[0].buffers[here]
        steps = self._fixed(
            {"mean": {"weights": 1.0, "host": -1.0}}, {"mean": mean, "weights": self._outer.weights, "host": host}
        )
        for base in assembly.bases:
            steps += self._fixed(
                {"host": {"weights": 1.0}}, {"host": base.buffers[here], "weights": self._outer.weights}
            )
        moved = [base.buffers[1 - here] for base in assembly.bases]
        moved += [replica.weights for replica in assembly.replicas if replica.weights is not None]
        for vector in moved:
            steps += self._fixed({"moved": {"moved": 1.0, "mean": 1.0}}, {"moved": vector, "mean": mean})
        return steps

    def _fixed(self, steps: Mapping[str, Terms], vectors: Mapping[str, Array]) -> list[BoundStep]:
        update = Update(tuple(steps.items()), depends_on=CONSTANT)
        return self._arithmetic.fixed(NAME, update, vectors)


def _run(steps: list[BoundStep]) -> None:
    for step in steps:
        step.call()
