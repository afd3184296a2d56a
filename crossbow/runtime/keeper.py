"""The contents of a training run's checkpoints, and the continuation of a run from one."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossbow.clock import now
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import BadExample
from crossbow.runtime.checkpoint import Checkpoint, checkpoint_files, read_checkpoint
from crossbow.runtime.checkpointing import CheckpointWriter
from crossbow.runtime.directory_lock import DirectoryLock
from crossbow.runtime.monitor import Monitor, tell
from crossbow.runtime.results import Record
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.snapshot import Snapshot
from crossbow.runtime.stretch import RunState
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.timeline.recorder import COPY_FOR_CHECKPOINT, SCHEDULER, Recorder
from crossbow.types import Array, DataError


class RunKeeper:
    """Writes the checkpoints and models of a context's training runs."""

    signals: Sequence[signal.Signals] = [
        getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
    ]

    def __init__(
        self,
        engine: TrainingEngine,
        writer: CheckpointWriter,
        about: Mapping[str, Any],
        monitors: Sequence[Monitor],
        recorder: Recorder,
        succeeds: str = "",
        best: Mapping[str, Array] | None = None,
        *,
        begun: bool = True,
    ) -> None:
        """about: description of the run, as JSON values, which every checkpoint contains. succeeds: the mark of a run
        that this process continues in place of a lost rank 0; best: that run's best model so far; begun: whether that
        run has begun to train."""
        self._recorder = recorder
        self._engine, self._writer, self.about, self._monitors = engine, writer, dict(about), monitors
        self._best: Mapping[str, Array] = best or {}
        """The base model with the best test accuracy."""
        self._last: tuple[int, int] | None = None
        """Numbers of tasks and records at the last checkpoint."""
        self._lock = DirectoryLock(writer.settings.path, succeeds)
        self._owned = bool(succeeds) and begun
        """Whether the checkpoints in the directory belong to this context."""
        if self._owned:  # intervals are counted from now on
            writer.begin(engine.tasks)

    @property
    def mark(self) -> str:
        """A text that identifies the run."""
        return self._lock.mark

    def begin(self, run: TrainingRun) -> None:
        if not self._owned:
            self._writer.prepare()
            self._owned = True
        self._writer.begin(self._engine.tasks)

    def use(self, engine: TrainingEngine) -> None:
        self._engine = engine

    def is_due(self, run: TrainingRun) -> bool:
        return self._writer.is_due(self._engine.tasks)

    def keep(self, run: TrainingRun) -> None:
        self._write(run.state(), len(run.history.records))

    def recorded(self, run: TrainingRun, record: Record, *, epoch_ended: bool) -> None:
        tasks, is_best = self._engine.tasks, run.history.best is record
        if is_best:
            self._best = self._engine.weights
        epoch = self._engine.order.epochs_in_tasks(tasks)
        if self._writer.is_due_at_epoch(epoch, tasks) if epoch_ended else self._writer.is_due(tasks):
            self.keep(run)
        # After the checkpoint: while the best model is being written, a checkpoint would not be due, or would wait.
        if is_best:
            self._writer.write_best(self._best, tasks)

    def end(self, run: TrainingRun) -> None:
        if not self._writer.writes_checkpoints:
            self._writer.write_last(self._engine.weights, self._engine.tasks)
        elif self._last != (self._engine.tasks, len(run.history.records)):
            self.keep(run)
        self._writer.wait()
        self.tell(run)

    def failed(self, run: TrainingRun) -> None:
        """Write the base model, and the best one, which `recorded` may not have written. Perhaps the monitor failed
        because the directory, with the files of models, was deleted."""
        tasks, history = self._engine.tasks, run.history
        if history.best is history.records[-1] and history.records[-1].tasks == tasks:
            self._best = self._engine.weights
        self._writer.write_last(self._engine.weights, tasks)
        if self._best:
            self._writer.write_best(self._best, tasks)
        self._writer.wait()

    def tell(self, run: TrainingRun) -> None:
        for written in self._writer.take_news():
            run.tell("checkpoint", written)

    def write_now(self, state: RunState | None) -> None:
        """Write a checkpoint with the state of the current or last training call, and wait for it. Raises DataError if
        it cannot be written."""
        if not self._owned:
            self._writer.prepare()
            self._owned = True
        self._write(state, None)
        self._writer.wait()
        for written in self._writer.take_news():
            for monitor in self._monitors:
                tell(monitor, "checkpoint", written)
            if written.error:
                raise DataError(written.error)

    def _write(self, run: RunState | None, records: int | None) -> None:
        """Write a checkpoint in the writer's thread. records: number of records of the training call."""
        begin = now()
        snapshot = self._engine.snapshot()
        if self._recorder.on:
            self._recorder.event(SCHEDULER, COPY_FOR_CHECKPOINT, begin)
        self._last = None if records is None else (self._engine.tasks, records)
        tensors = {f"variables/{name}": each for name, each in snapshot.variables.items()}
        tensors |= {f"vectors/{name}": each for name, each in snapshot.vectors.items()}
        tensors |= {f"best/{name}": each for name, each in self._best.items()}
        state: dict[str, Any] = {
            "tasks": self._engine.tasks,
            "about": self.about,
            "engine": snapshot.state,
            "bad": {phase.name: _bad(bad) for phase, bad in self._engine.bad_examples.items()},
            "monitors": [[type(monitor).__name__, monitor.state()] for monitor in self._monitors],
            "run": None,
        }
        if run is not None:
            state["run"], tensors["run/losses"] = run
        self._writer.write(tensors, state, snapshot.variables)

    def resume(self, checkpoint: Checkpoint, source: str) -> bool:
        """Continue the engine, the monitors and the files of models from a checkpoint. Returns whether the learners
        were restored, too; otherwise they begin at the base model."""
        state, whole = checkpoint.state, restore(self._engine, checkpoint, source)
        for phase, bad in self._engine.bad_examples.items():
            for index, where, why in state["bad"].get(phase.name, ()):
                bad.add_known(BadExample(index, where, why))
            bad.take_new()  # they were already reported
        self._best = _part(checkpoint, "best/")
        if self._best:
            self._writer.write_best(self._best, self._engine.tasks)
        states = list(state["monitors"])
        for monitor in self._monitors:
            found = next((each for each in states if each[0] == type(monitor).__name__), None)
            if found is not None:
                states.remove(found)
                monitor.resume(found[1])
        self._owned = True
        return whole

    def close(self) -> None:
        """Finish writing, end the thread, and unlock the directory."""
        self._writer.close()
        self._lock.close()


def restore(engine: TrainingEngine, checkpoint: Checkpoint, source: str) -> bool:
    """Continue an engine from a checkpoint; see `Engine.restore`."""
    vectors = _part(checkpoint, "vectors/")
    return engine.restore(Snapshot(_part(checkpoint, "variables/"), vectors, checkpoint.state["engine"]), source)


def run_state(checkpoint: Checkpoint) -> RunState | None:
    """The state of the training call that a checkpoint belongs to."""
    values = checkpoint.state["run"]
    return None if values is None else RunState(values, checkpoint.tensors["run/losses"])


@dataclass(frozen=True)
class Resumable:
    """The newest checkpoint of a directory that is not damaged."""

    path: Path
    checkpoint: Checkpoint
    damaged: tuple[str, ...]
    """Sentences about newer files that are damaged."""

    def set_damaged_aside(self) -> None:
        """Rename the damaged files, so that they are not taken for the newest checkpoints."""
        for path in checkpoint_files(self.path.parent):
            if path > self.path:
                path.replace(path.with_suffix(".damaged"))


def find_checkpoint(directory: Path) -> Resumable:
    """Read the newest checkpoint in a directory that is not damaged. Raises DataError if there is none."""
    damaged: list[str] = []
    for path in checkpoint_files(directory):
        try:
            return Resumable(path, read_checkpoint(path), tuple(damaged))
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        raise DataError("; ".join(damaged))
    raise DataError(f"{directory}: expected a directory with a checkpoint. Received: one without; begin the run again")


def _part(checkpoint: Checkpoint, prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)}


def _bad(bad: BadExamples) -> list[tuple[int, str, str]]:
    return [(each.index, each.source, each.reason) for each in bad.all()]
