"""Restarts of the learners, after a failure and when the learning rate steps down, and the choice of the base model
from which they restart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.compile import load_vectors
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.copies import Copy
from crossbow.runtime.flow import Flow
from crossbow.runtime.memory import assign, on_host
from crossbow.runtime.position import Position
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.task import Completed
from crossbow.types import Array, CrossbowError, NonFiniteLossError

DRAIN_SECONDS = 0.5
"""Maximum wait for the other learners' current tasks."""


@dataclass(frozen=True)
class PartOfModel:
    """The part of the model and of the results that a rank has, when another one is lost while they train without a
    barrier."""

    tasks: int
    """Number of tasks, from the first one on, whose results were delivered."""
    results: tuple[Completed, ...]
    """Results of later tasks."""
    copies: tuple[Copy, ...]
    merges: int
    share: float
    """See `Copies`."""


class Recovery:
    """Restores learners and base models, while no task is running."""

    def __init__(
        self, assembly: Assembly, backend: Backend, coordination: Coordination, flow: Flow, position: Position
    ) -> None:
        self._program, self._flags = assembly.program, assembly.flags
        self._bases, self._replicas = assembly.bases, assembly.replicas
        self._mirrors, self._part = assembly.mirrors, assembly.part
        self._backend, self._coordination, self._flow, self._position = backend, coordination, flow, position
        self._base, self._outer = assembly.base, assembly.outer
        self._ranks, self._shares = assembly.setting.ranks, assembly.setting.shared is not None
        may_lose = backend.runs_ahead or self._shares or assembly.outer is not None
        self._keeps = may_lose or not assembly.setting.barrier
        self._stopped = False
        """Whether training has failed in memory that ranks share."""
        self._kept: tuple[int, Sequence[Array]] | None = None
        """The tick, z and its statistics at the beginning of the last training call, if a failure may lose them."""
        self.part: PartOfModel | None = None
        """This rank's part, if the last training without a barrier was ended by the loss of another rank."""
        self.base_changes = 0
        """Number of times that training began, or that z was assigned or restored. z may have changed each time."""

    @property
    def base(self) -> tuple[Array, Array]:
        """The current z and its statistics."""
        base, tick = self._base, self._position.tick
        return base.current(tick), base.statistics[tick % 2]

    def export(self) -> dict[str, Array]:
        """A copy of the base model's variables and statistics, by name, in logical shape."""
        z, statistics = map(on_host, self.base)
        return {**self._program.model.export(z), **self._program.statistics.export(statistics)}

    def read(self, variables: Mapping[str, Array], source: str) -> list[Array]:
        """z and its statistics with these values, for `set_base`. Raises DataError if they do not fit."""
        values = [on_host(vector).copy() for vector in self.base]
        load_vectors(dict(variables), list(zip(self._program.layouts, values, strict=True)), source)
        return values

    def keep(self) -> None:
        """At the beginning of training, copy z if a failure may lose it. The cost is small compared with the work
        between two calls of `run`."""
        self.base_changes += 1
        self.part = None
        if self._keeps:
            self._kept = self._position.tick, [on_host(vector).copy() for vector in self.base]

    def is_finite(self, tick: int) -> bool:
        """Whether z of this tick, the current or the previous one, and its statistics are finite."""
        base = self._base
        vectors = [on_host(vector) for vector in (base.current(tick), base.statistics[tick % 2])]
        return all(np.isfinite(v.min(initial=0)) and np.isfinite(v.max(initial=0)) for v in vectors)

    def check_base(self, learning_rate: float) -> None:
        """Raise NonFiniteLossError if z is not finite. The loss alone may not show it: ReLU may turn NaN into 0."""
        if not self.is_finite(self._position.tick):
            raise NonFiniteLossError(
                f"the base model has values that are not finite after task {self._position.tasks - 1} (learning rate "
                f"{learning_rate:g}). Lower the learning rate, or look for bad values in the data"
            )

    def recover(self, *, trained: bool = True, lost: bool = False) -> bool:
        """After a failure, wait for running tasks, then restart the learners from the last complete base model. If
        ranks share memory, a failure of training stops the learners. Returns False if a task takes too long, or if the
        learners of GPUs cannot continue. trained: whether training failed. lost: whether it failed because ranks
        left."""
        self.base_changes += 1
        goes_on = self._coordination.abandon()
        self._flags.raise_abort()
        if not goes_on:
            return False
        deadline = time.monotonic() + DRAIN_SECONDS
        for member in self._coordination.members():
            if not member.wait(max(0.0, deadline - time.monotonic())):
                return False
        self._backend.synchronise()  # with GPUs, exchanges between ranks may still be running
        kept = self._coordination.keep_part() if lost else None
        if kept is not None:
            self.part = PartOfModel(self._flow.done, tuple(self._flow.salvage()), *kept)
        done = self._flow.done - self._position.tasks_before
        self._flow.clear()
        tick = self._coordination.whole_ticks(done) if self._outer is None else self._position.tick_of_z
        if trained and self._shares:
            self._stop_sharing(tick)
        elif tick and not self.is_finite(tick) and self.is_finite(tick - 1):
            tick -= 1  # z includes non-finite gradients, but the previous z is intact
        self._position.go_to(tick)
        if self._kept is not None and not self.is_finite(tick):
            kept_tick, values = self._kept
            self._position.go_to(kept_tick)
            self._assign(values)
        if self._stopped:
            self._flow.restart(self._position.tasks)
        else:
            self._restart()
        return True

    def _stop_sharing(self, tick: int) -> None:
        """Copy the base model of this tick to memory of this rank alone. Learners of other ranks may continue for a
        while: they still read the replicas and flags of this rank, and write the base model of another tick. In the end
        all ranks fail, and do not train again."""
        z, statistics = (np.array(each) for each in (self._base.current(tick), self._base.statistics[tick % 2]))
        self._base = BaseModel((z, z), None, None, (statistics, statistics), None)
        self._shares, self._stopped = False, True

    def check_learners(self) -> None:
        """Raise CrossbowError if the learners have stopped."""
        if self._stopped:
            raise CrossbowError("the learners cannot go on after a failure of ranks that share memory")

    def set_base(self, values: Sequence[Array]) -> None:
        """Assign z and its statistics, on all ranks together. A `restart` must follow."""
        self.base_changes += 1
        self._meet()
        self._assign(values)

    def _assign(self, values: Sequence[Array]) -> None:
        for vector, value in zip(self.base, values, strict=True):
            assign(vector, value)

    def _meet(self) -> None:
        """Wait for the other ranks if they share memory: they may still read vectors that will be changed, or have
        flags of later ticks."""
        if self._shares:
            self._ranks.gather(None)

    def restart(self) -> None:
        """Restart all learners (with two levels, all hosts) from z. Called on all ranks together."""
        self.check_learners()
        self._restart()
        self._meet()

    def _restart(self) -> None:
        if self._outer is not None:
            own, tick = self._bases[0], self._position.tick
            assign(own.current(tick), self._outer.base.buffers[0])
            assign(own.statistics[tick % 2], self._outer.base.statistics[0])
            assign(self._outer.previous, self._outer.base.buffers[0])
            if self._outer.base.velocity is not None:
                assign(self._outer.base.velocity, 0)
        self.restart_learners()

    def restart_learners(self) -> None:
        """w_i ← z (with two levels, z_h) with its statistics, and zero velocity and second moment, for every
        learner."""
        own, tick = self._bases[0], self._position.tick
        z, observed = own.current(tick), own.statistics[tick % 2]
        for base in self._bases:
            for buffer in base.buffers:
                if buffer is not z:
                    assign(buffer, z)
            for statistics in base.statistics:
                if statistics is not observed:
                    assign(statistics, observed)
            for state in (base.velocity, base.second_moment, base.step_count):
                if state is not None:
                    assign(state, 0)
        for replica in self._replicas:
            _restart_replica(replica, z, observed)
        for mirror in self._mirrors:
            _restart_replica(mirror, z[self._part], observed[:0])
        self._backend.synchronise()
        self._flow.restart(self._position.tasks)
        self._coordination.restart(self._position.tick)


def _restart_replica(replica: Replica, z: Array, observed: Array) -> None:
    for statistics in replica.statistics:
        assign(statistics, observed)
    if replica.weights is not None:
        assign(replica.weights, z)
    for state in (replica.velocity, replica.second_moment, replica.step_count):
        if state is not None:
            assign(state, 0)
    if replica.taken is not None:
        assign(replica.taken, z)
    if replica.received is not None:
        assign(replica.received, 0)  # its mass is 0, but a non-finite number would stay non-finite
