"""Training with the ranks of a new view, after others have left or joined.

Every rank keeps its state. Under a rule with a barrier, and between two ticks, this is the base model of the last tick
that it has completed. The newest of these is sent to all ranks, with its position in the data and in the schedule.
Ticks are whole: the tasks of a tick that was not completed are done again.

If a rank is lost while others train without a barrier, not every rank has the whole z: servers have parts of it or,
under gossip, every rank has a share. The new z is made from the parts of the remaining ranks. A lost server's part is
replaced by the newest copy that a learner has read or, if learners do not continue with z, by the mean of their
weights. Merges that no copy includes are counted. Tasks whose results are known are not done again.

So every example of the epoch counts once. Rank 0, which may be a different rank now, provides the state of the training
call. Then each rank builds an engine for the new number of learners, all of which begin at that base model. If the
program has other models, they continue with the same ranks in the same way. If the rule does not support that number of
learners, or a rank has too little memory for it, the rank that has joined last leaves again, and the others continue
without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from crossbow.cluster.members import Changes, ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.compile import ModelLayout
from crossbow.runtime.copies import Copy, is_complete, newest
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.stretch import RunState
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.types import Array, ConfigurationError, CrossbowError

SECONDS_TO_SETTLE = 60.0
"""Maximum wait for this rank's learners to end their tasks."""


class IdleModel(NamedTuple):
    """A model of the program while another one trains."""

    engine: TrainingEngine
    rebuild: Callable[[], TrainingEngine]
    """Builds an engine for the new ranks."""
    goes_on: Callable[[], None]
    """Called when the model continues with that engine."""


@dataclass(frozen=True)
class Regrouped:
    """The result of a regrouping."""

    engine: TrainingEngine
    """The engine for the new ranks."""
    state: RunState
    """Rank 0's state of the training call."""
    stopped: str
    """The reason why the training call has ended on rank 0, or ""."""
    counted: int
    """Number of tasks whose results rank 0 has counted."""
    end: float
    """Number of tasks at the end of the training call."""
    changes: Changes
    """The ranks that have left or joined."""
    lost_merges: int
    """The largest number of merges that a part of z lacks, because a server was lost."""


def regroup(
    ranks: Ranks,
    engine: TrainingEngine,
    rebuild: Callable[[], TrainingEngine],
    idle: Mapping[int, IdleModel],
    state: RunState,
    stopped: str,
    counted: int,
    end: float,
) -> Regrouped:
    """Continue with the ranks of the newest view, which must all call this.

    engine: this rank's engine, which failed because the view has changed; it is closed. rebuild: builds an engine for
    the new ranks. idle: the other models, by their numbers; those that all ranks have continue, too. state, stopped,
    counted, end: values of this rank's training call; see `Regrouped`.
    """
    own, layout = _settled(engine).salvage(), engine.program.model
    engine.close()
    others = _salvaged(idle)
    changes = Changes()
    while True:
        changes = changes.followed_by(ranks.regroup())
        try:
            _check_same_call(ranks)
            snapshot, lost_merges = _newest(ranks, own, layout)
            call = json.loads(ranks.agree_on_bytes(json.dumps([state.values, stopped, counted, end]).encode()))
            losses = np.frombuffer(ranks.agree_on_bytes(state.losses.tobytes()))
            going_on = _go_on(ranks, others)
            following = _rebuilt(rebuild, snapshot)
        except ViewChangedError:
            continue  # with the remaining ranks
        except ConfigurationError as error:  # raised on all ranks
            if ranks.view.ranks[-1] not in changes.joined:
                raise
            _let_last_leave(ranks, error)
            continue
        for model in going_on:
            model.goes_on()
        return Regrouped(following, RunState(call[0], losses), call[1], call[2], call[3], changes, lost_merges)


class _Salvaged:
    """The state of an idle model on this rank, from one view to the next."""

    def __init__(self, model: IdleModel) -> None:
        """Raises CrossbowError if the model cannot be used after a failure."""
        self.model = model
        self._engine = model.engine
        self._snapshot, self._layout = self._engine.salvage(), self._engine.program.model

    def go_on(self, ranks: Ranks) -> None:
        """Continue with a new engine for the new ranks, and their newest base model."""
        self._snapshot, _ = _newest(ranks, self._snapshot, self._layout)
        self._engine.close()
        self._engine = _rebuilt(self.model.rebuild, self._snapshot)


def _salvaged(idle: Mapping[int, IdleModel]) -> dict[int, _Salvaged]:
    """The idle models that can be used."""
    found = {}
    for number, model in idle.items():
        with suppress(CrossbowError):
            found[number] = _Salvaged(model)
    return found


def _let_last_leave(ranks: Ranks, error: ConfigurationError) -> None:
    """Make the rank that has joined last leave, and the others wait for a view without it."""
    if ranks.rank == ranks.size - 1:
        ranks.give_up_joining(f"with {ranks.size} ranks, training cannot go on: {error}")
    with suppress(ViewChangedError):
        ranks.await_view()


def _go_on(ranks: Ranks, others: Mapping[int, _Salvaged]) -> list[IdleModel]:
    """Continue the idle models that all ranks have. Returns these models."""
    common = sorted(set.intersection(*map(set, ranks.gather(list(others)))))
    for number in common:
        others[number].go_on(ranks)
    return [others[number].model for number in common]


def _rebuilt(rebuild: Callable[[], TrainingEngine], newest: Snapshot) -> TrainingEngine:
    """An engine for the new ranks that continues from a snapshot."""
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


def _check_same_call(ranks: Ranks) -> None:
    """Raise CrossbowError if the ranks are in different training calls. A call may end on one rank before another."""
    if len(set(ranks.gather(ranks.call_number, any_call=True))) > 1:
        raise CrossbowError("a rank has left between two training calls, so that the other ranks cannot go on")


def _newest(ranks: Ranks, own: Snapshot, layout: ModelLayout) -> tuple[Snapshot, int]:
    """Send the newest base model to all ranks. Returns its snapshot, and the number of merges that parts of it lack.
    layout: layout of the snapshot's vectors, which is equal on all ranks that have trained, but may differ on ranks
    that join."""
    found = ranks.gather([own.state["tasks"], own.state.get("part")])
    parts = [part for _, part in found]
    present = [part for part in parts if part is not None]
    whole = [tasks if part is None else -1 for tasks, part in found]
    copies = [[Copy(*each) for each in part["copies"]] for part in present]
    if parts[0] is None or (len(present) < len(parts) and not is_complete(copies)):
        return _shared_snapshot(ranks, own, whole.index(max(whole))), 0
    return _combined(ranks, own, parts, layout)


def _combined(ranks: Ranks, own: Snapshot, parts: Sequence[Any], layout: ModelLayout) -> tuple[Snapshot, int]:
    """Combine the ranks' parts of the base model. Returns a snapshot with rank 0's state, and the number of merges that
    it lacks."""
    state, means = json.loads(ranks.agree_on_bytes(json.dumps(own.state).encode())), parts[0]["means"]
    present = {rank: part for rank, part in enumerate(parts) if part is not None}  # the others had finished
    z, known, lacking = layout.new_vector(), max(part["merges"] for part in present.values()), 0
    for number in range(len(parts[0]["copies"])):
        used = newest({rank: Copy(*part["copies"][number]) for rank, part in present.items()})
        place = slice(*parts[0]["copies"][number][:2])
        for rank in used:
            given = own.vectors["z0"][place].tobytes() if rank == ranks.rank else b""
            part = np.frombuffer(ranks.agree_on_bytes(given, rank), z.dtype)
            if ranks.is_first:
                z[place] = np.add(z[place], part)
        z[place] = np.divide(z[place], sum(copy.mass for copy in used.values()))
        lacking = max(lacking, known - max(copy.merges for copy in used.values()))
    variables = load(ranks.agree_on_bytes(save(layout.export(z)) if ranks.is_first else b""))
    sums: dict[str, Array] = {}
    for rank in present:
        given = save({name: own.variables[name] for name in means}) if rank == ranks.rank else b""
        for name, each in load(ranks.agree_on_bytes(given, rank)).items():
            sums[name] = sums[name] + each if name in sums else each
    share = sum(part["share"] for part in present.values())
    variables |= {name: np.asarray(each / share) for name, each in sums.items()}
    tasks: int = parts[0]["tasks"]
    known_results = {result[0]: result for part in present.values() for result in part["results"] if result[0] >= tasks}
    state |= {"tasks": tasks, "known": list(known_results.values())}
    return Snapshot(variables, {}, state), lacking


def _shared_snapshot(ranks: Ranks, own: Snapshot, newest: int) -> Snapshot:
    """Send the snapshot of one rank, without that rank's own vectors, to all ranks."""
    if ranks.several:
        state = ranks.agree_on_bytes(json.dumps(own.state).encode(), newest)
        variables = ranks.agree_on_bytes(save(dict(own.variables)), newest)
        return Snapshot(load(variables), {}, json.loads(state))
    return own
