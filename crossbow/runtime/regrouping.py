"""Training with the ranks of a new view, after others have left or joined.

Every rank keeps what it has: the base model of the last tick that it has completed. The newest of these goes to all
ranks, with its place in the data and in the schedule; rank 0 gives the state of the training call. Then each rank
builds an engine for the new number of learners, all of which begin at that base model. Ticks are whole: the tasks of a
tick that was not completed are done again, so that every example of the epoch counts once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load, save

from crossbow.cluster.members import Changes, ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.stretch import RunState
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import CrossbowError

SECONDS_TO_SETTLE = 60.0
"""Limit of the wait for this rank's learners to end their tasks."""


@dataclass(frozen=True)
class Regrouped:
    """What follows from a regrouping."""

    engine: TrainingEngine
    """The engine for the new ranks."""
    state: RunState
    """Rank 0's state of the training call."""
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
    counted: int,
    end: float,
) -> Regrouped:
    """Go on with the ranks of the newest view, which must all call this.

    engine: this rank's engine, which failed because the view has changed; it is closed. rebuild: builds one for the new
    ranks. state, counted, end: of this rank's training call.
    """
    own = _settled(engine).snapshot()
    engine.close()
    changes = Changes()
    while True:
        more = ranks.regroup()
        changes = Changes(changes.lost + more.lost, changes.joined + more.joined)
        try:
            _check_same_call(ranks, state)
            tasks = ranks.gather(own.state["tasks"])
            newest = _shared_snapshot(ranks, own, tasks.index(max(tasks)))
            values = json.loads(ranks.agree_on_bytes(json.dumps([state.values, counted, end]).encode()))
            losses = np.frombuffer(ranks.agree_on_bytes(state.losses.tobytes()))
            following = rebuild()
        except ViewChangedError:
            continue  # with those that are left now
        following.restore(newest, "the newest base model of the ranks")
        return Regrouped(following, RunState(values[0], losses), values[1], values[2], changes)


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


def _shared_snapshot(ranks: Ranks, own: Snapshot, newest: int) -> Snapshot:
    """The snapshot of one of the ranks, on all of them, without vectors of its own."""
    if ranks.several:
        state = ranks.agree_on_bytes(json.dumps(own.state).encode(), newest)
        variables = ranks.agree_on_bytes(save(dict(own.variables)), newest)
        return Snapshot(load(variables), {}, json.loads(state))
    return own
