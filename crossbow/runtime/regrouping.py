"""Training with the ranks of a new view, after others have left or joined.

Every rank keeps what it has. Under a rule with a barrier, and between two ticks, that is the base model of the last
tick that it has completed. The newest of these goes to all ranks, with its place in the data and in the schedule.
Ticks are whole: the tasks of a tick that was not completed are done again.

If a rank is lost while others train without a barrier, z is not whole on every rank: rank 0 has it or, under gossip,
every rank has a part. The parts of the ranks that are left make the new z. If rank 0 is lost, the mean of the other
learners' weights takes its place. Tasks whose results are known are not done again.

So every example of the epoch counts once. Rank 0, which may be another one now, gives the state of the training call.
Then each rank builds an engine for the new number of learners, all of which begin at that base model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from crossbow.cluster.members import Changes, ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.stretch import RunState
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import Array, CrossbowError

SECONDS_TO_SETTLE = 60.0
"""Limit of the wait for this rank's learners to end their tasks."""


@dataclass(frozen=True)
class Regrouped:
    """What follows from a regrouping."""

    engine: TrainingEngine
    """The engine for the new ranks."""
    state: RunState
    """Rank 0's state of the training call."""
    stopped: str
    """Why the training call has ended on rank 0, or ""."""
    counted: int
    """Number of tasks whose results rank 0 has counted."""
    end: float
    """Number of tasks at the end of the training call."""
    changes: Changes
    """The ranks that have left or joined."""


def regroup(
    ranks: Ranks,
    engine: TrainingEngine,
    rebuild: Callable[[], TrainingEngine],
    state: RunState,
    stopped: str,
    counted: int,
    end: float,
) -> Regrouped:
    """Go on with the ranks of the newest view, which must all call this.

    engine: this rank's engine, which failed because the view has changed; it is closed. rebuild: builds one for the new
    ranks. state, stopped, counted, end: of this rank's training call.
    """
    own = _settled(engine).salvage()
    engine.close()
    changes = Changes()
    while True:
        more = ranks.regroup()
        changes = Changes(changes.lost + more.lost, changes.joined + more.joined)
        try:
            _check_same_call(ranks, state)
            newest = _newest(ranks, own)
            call = json.loads(ranks.agree_on_bytes(json.dumps([state.values, stopped, counted, end]).encode()))
            losses = np.frombuffer(ranks.agree_on_bytes(state.losses.tobytes()))
            following = _rebuilt(rebuild, newest)
        except ViewChangedError:
            continue  # with those that are left now
        return Regrouped(following, RunState(call[0], losses), call[1], call[2], call[3], changes)


def _rebuilt(rebuild: Callable[[], TrainingEngine], newest: Snapshot) -> TrainingEngine:
    """An engine for the new ranks that goes on from a snapshot."""
    engine = rebuild()
    try:
        engine.restore(newest, "the newest base model of the ranks")
    except BaseException:
        engine.close()
        raise
    return engine


def _settled(engine: TrainingEngine) -> TrainingEngine:
    """The engine, once its learners have ended their tasks."""
    deadline = time.monotonic() + SECONDS_TO_SETTLE
    while True:
        try:
            engine.check_usable()
            return engine
        except CrossbowError:
            if time.monotonic() >= deadline:
                raise


def _check_same_call(ranks: Ranks, state: RunState) -> None:
    """Raise CrossbowError if the ranks are in different training calls: one may end before another."""
    starts = ranks.gather(state.values["start"])
    if len(set(starts)) > 1:
        raise CrossbowError("a rank has left between two training calls, so that the other ranks cannot go on")


def _newest(ranks: Ranks, own: Snapshot) -> Snapshot:
    """The newest base model of the ranks, on all of them."""
    found = ranks.gather([own.state["tasks"], own.state.get("part")])
    parts = [part for _, part in found]
    present = [part for part in parts if part is not None]
    whole = [tasks if part is None else -1 for tasks, part in found]
    if parts[0] is None or (len(present) < len(parts) and not any(part["mass"] for part in present)):
        return _shared_snapshot(ranks, own, whole.index(max(whole)))
    return _combined(ranks, own, parts)


def _combined(ranks: Ranks, own: Snapshot, parts: Sequence[Any]) -> Snapshot:
    """The base model that the ranks' parts make, with rank 0's state."""
    state, means = json.loads(ranks.agree_on_bytes(json.dumps(own.state).encode())), set(parts[0]["means"])
    present = [part for part in parts if part is not None]
    mass, share = (sum(part[kind] for part in present) for kind in ("mass", "share"))
    if not mass:  # rank 0, which had z, is lost
        means |= {*own.variables}
    sums: dict[str, Array] = {}
    for rank, part in enumerate(parts):
        if part is None:
            continue  # it was not training with the others, or was done
        given = {name: each for name, each in own.variables.items() if part["mass"] or name in means}
        for name, each in load(ranks.agree_on_bytes(save(given), rank)).items():
            sums[name] = sums[name] + each if name in sums else each
    variables = {name: np.asarray(each / (share if name in means else mass)) for name, each in sums.items()}
    tasks: int = parts[0]["tasks"]
    known = {result[0]: result for part in present for result in part["results"] if result[0] >= tasks}
    return Snapshot(variables, {}, {**state, "tasks": tasks, "known": list(known.values())})


def _shared_snapshot(ranks: Ranks, own: Snapshot, newest: int) -> Snapshot:
    """The snapshot of one of the ranks, on all of them, without vectors of its own."""
    if ranks.several:
        state = ranks.agree_on_bytes(json.dumps(own.state).encode(), newest)
        variables = ranks.agree_on_bytes(save(dict(own.variables)), newest)
        return Snapshot(load(variables), {}, json.loads(state))
    return own
