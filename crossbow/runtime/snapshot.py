"""Snapshots: everything that determines how training continues, between two ticks.

A snapshot is exact: an engine with the same rule, learners and layout of vectors continues as if nothing had happened.
Any other engine of the same network continues from the base model, at the same place in the data and the schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from crossbow.compile import Program
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Backend
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.flow import Flow
from crossbow.runtime.memory import assign, on_host
from crossbow.runtime.position import Place
from crossbow.runtime.recovery import Recovery
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.scheduler import Scheduler
from crossbow.runtime.task import Completed
from crossbow.synch import BarrierRule, TwoLevel
from crossbow.types import Array


@dataclass(frozen=True)
class Snapshot:
    """The state of an engine."""

    variables: Mapping[str, Array]
    """The base model's variables and statistics by name, in logical shape."""
    vectors: Mapping[str, Array]
    """All vectors by name, as kernels store them: "z0", "learner1.velocity"."""
    state: dict[str, Any]
    """Counters and the rule's own state, as JSON values."""


class Snapshots:
    """Takes and restores snapshots of one engine, while no task is running."""

    def __init__(
        self,
        assembly: Assembly,
        backend: Backend,
        coordination: Coordination,
        flow: Flow,
        scheduler: Scheduler,
        recovery: Recovery,
    ) -> None:
        self._assembly, self._backend, self._coordination = assembly, backend, coordination
        self._flow, self._position, self._scheduler, self._recovery = flow, scheduler.position, scheduler, recovery

    def take(self) -> Snapshot:
        """A copy of the state. With several ranks, it contains the base model, but no rank's own vectors."""
        state = {
            "form": self._form(),
            "position": self._position.state(),
            "tasks": self._position.tasks,
            "merges": self._scheduler.merges,
            "restarts": self._scheduler.restarts,
            "data_wait": self._flow.data_wait_seconds,
            "known": self._flow.known_results,
            "coordination": self._coordination.state(),
        }
        own = {} if self._assembly.setting.ranks.several else self._vectors()
        vectors = {name: np.array(on_host(each)) for name, each in own.items()}
        return Snapshot(self._recovery.export(), vectors, state)

    def salvage(self) -> Snapshot:
        """A snapshot for ranks that continue after others have left or joined. If training without a barrier was ended
        by a loss, the vector z0 contains this rank's copies of z, which `state["part"]` describes."""
        snapshot, part = self.take(), self._recovery.part
        if part is None:
            return snapshot
        program, places = self._assembly.program, self._assembly.arithmetic.ranges.kept
        kept = [segment.name for segment in program.model if segment.place in places]
        means = [*kept, *(segment.name for segment in program.statistics)]
        state = {**snapshot.state, "part": {**asdict(part), "means": means}}
        return replace(snapshot, vectors={"z0": np.array(on_host(self._assembly.base.buffers[0]))}, state=state)

    def restore(self, snapshot: Snapshot, source: str) -> bool:
        """Continue from a snapshot of the same network and batch size. Returns whether it was restored completely;
        otherwise all learners begin at the base model. source: origin of the snapshot, for errors. Raises DataError,
        and changes nothing, if the network differs."""
        if snapshot.state["form"] == self._form() and not self._assembly.setting.ranks.several:
            self._restore_whole(snapshot)
            return True
        self._restore_base(snapshot, source)
        return False

    def _restore_whole(self, snapshot: Snapshot) -> None:
        state = snapshot.state
        bases = [_base_vectors(base) for base in self._assembly.bases]  # the same on every device
        for name, vector in self._vectors().items():
            for target in [base[name] for base in bases] if name in bases[0] else [vector]:
                assign(target, snapshot.vectors[name])
        self._backend.synchronise()
        self._position.restore(state["position"])
        self._scheduler.restore(state["restarts"])
        self._flow.restore(self._position.tasks, state["data_wait"], _known(state))
        self._coordination.restart(self._position.tick)
        self._coordination.restore(state["coordination"])

    def _restore_base(self, snapshot: Snapshot, source: str) -> None:
        state, position = snapshot.state, self._position
        base = self._recovery.read(snapshot.variables, source)
        tick, same_rule = state["position"]["tick"], _kind(state["form"]) == _kind(self._form())
        place = Place(tick, tick - state["position"]["first_tick"] if same_rule else 0, state["tasks"])
        position.continue_from(place, state["merges"], self._coordination.merges(tick))
        self._scheduler.restore(state["restarts"])
        self._recovery.set_base(base)
        self._recovery.restart()
        self._coordination.begin(position.tick)
        self._flow.restore(position.tasks, state["data_wait"], _known(state))

    def _vectors(self) -> dict[str, Array]:
        """The vectors to save, not copied. Under a rule with a barrier, no gradient outlives its tick."""
        kept = _base_vectors(self._assembly.bases[0])
        if (outer := self._assembly.outer) is not None:
            kept |= {f"outer.{name}": vector for name, vector in _base_vectors(outer.base).items()}
            kept["outer.previous"] = outer.previous
        for number, replica in enumerate(self._assembly.replicas):
            own = _replica_vectors(replica)
            if self._assembly.setting.barrier:
                del own["gradient"]
            if (scaling := self._coordination.learners[number].scaling) is not None:
                own["scaling"] = scaling
            kept |= {f"learner{number}.{name}": vector for name, vector in own.items()}
        return kept

    def _form(self) -> dict[str, Any]:
        """The properties that must be equal for vectors and counters to fit: the rule, the learners, and the layout of
        vectors."""
        setting, program = self._assembly.setting, self._assembly.program
        given, method = setting.given_rule, setting.solver.method
        return {
            # Vectors of the same names are sums with one method, and means with another.
            **({"method": method.removesuffix("w")} if method != "sgd" else {}),
            **({"ranks": setting.ranks.size} if setting.ranks.several else {}),
            "rule": type(given).__name__ if isinstance(given, BarrierRule) else repr(given),
            "learners": setting.learners,
            "tasks_per_tick": setting.clock.tasks_per_tick,
            "vectors": {name: [vector.size, str(vector.dtype)] for name, vector in self._vectors().items()},
            "layout": layout_digest(program),
        }


def _kind(form: Mapping[str, Any]) -> str:
    """The rule or, if its parameters may depend on the number of learners, its class."""
    name: str = form["rule"]
    return name if name.startswith(TwoLevel.__name__) else name.partition("(")[0]


def _known(state: Mapping[str, Any]) -> list[Completed]:
    return [Completed.of_json(result) for result in state.get("known", ())]


def _base_vectors(base: BaseModel) -> dict[str, Array]:
    named = {"z0": base.buffers[0], "statistics0": base.statistics[0]}
    if base.buffers[1] is not base.buffers[0]:
        named |= {"z1": base.buffers[1], "statistics1": base.statistics[1]}
    state = {"z_velocity": base.velocity, "z_second_moment": base.second_moment, "z_step_count": base.step_count}
    return named | {name: vector for name, vector in state.items() if vector is not None}


def _replica_vectors(replica: Replica) -> dict[str, Array]:
    named = {**replica.vectors(), "statistics0": replica.statistics[0]}
    if replica.statistics[1] is not replica.statistics[0]:
        named["statistics1"] = replica.statistics[1]
    return named


def layout_digest(program: Program) -> str:
    """A digest of the layout of the variables and statistics: the offset of each, and the order of its elements."""
    segments = [
        (each.name, each.spec.shape, each.offset, repr(each.storage)) for layout in program.layouts for each in layout
    ]
    return hashlib.sha256(repr(segments).encode()).hexdigest()
