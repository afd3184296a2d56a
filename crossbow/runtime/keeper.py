"""The contents of a training run's checkpoints, and the continuation of a run from one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossbow.clock import now
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import BadExample
from crossbow.runtime.checkpoint import Checkpoint, checkpoint_files, read_checkpoint
from crossbow.runtime.checkpointing import CheckpointWriter, Written
from crossbow.runtime.directory_lock import DirectoryLock
from crossbow.runtime.monitor import Monitor, tell
from crossbow.runtime.results import History
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
    """Signals, in addition to that of Ctrl-C, that end training after a checkpoint."""

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

    def begin(self) -> None:
        """Called when training begins. Raises DataError if the directory has another run's checkpoints."""
        self._take_directory()
        self._writer.begin(self._engine.tasks)

    def _take_directory(self) -> None:
        if not self._owned:
            self._writer.prepare()
            self._owned = True

    def use(self, engine: TrainingEngine) -> None:
        """From now on, write the checkpoints of this engine."""
        self._engine = engine

    def is_due(self) -> bool:
        """Whether to write a checkpoint at this tick boundary."""
        return self._writer.is_due(self._engine.tasks)

    def keep(self, state: RunState) -> None:
        """Write a checkpoint with the state of the training call. No task may be running."""
        self._write(state)
        self._last = self._engine.tasks, len(state.values["history"]["records"])

    def recorded(self, history: History, state: Callable[[], RunState], *, epoch_ended: bool) -> None:
        """Called after every record, before training continues: write a checkpoint if one is due, and the base model if
        it is the best one so far. state: returns the state of the training call."""
        tasks, is_best = self._engine.tasks, history.best is history.records[-1]
        if is_best:
            self._best = self._engine.weights
        epoch = self._engine.order.epochs_in_tasks(tasks)
        if self._writer.is_due_at_epoch(epoch, tasks) if epoch_ended else self._writer.is_due(tasks):
            self.keep(state())
        # After the checkpoint: while the best model is being written, a checkpoint would not be due, or would wait.
        if is_best:
            self._writer.write_best(self._best, tasks)

    def end(self, history: History, state: Callable[[], RunState]) -> None:
        """Write the last checkpoint, unless it is written, and wait for it. Called once, unless training fails."""
        if not self._writer.writes_checkpoints:
            self._writer.write_last(self._engine.weights, self._engine.tasks)
        elif self._last != (self._engine.tasks, len(history.records)):
            self.keep(state())
        self._writer.wait()

    def failed(self, history: History) -> None:
        """Called when training fails after a record because a monitor failed: write the base model, and the best one,
        which `recorded` may not have written, and wait for them. Perhaps the monitor failed because the directory, with
        the files of models, was deleted."""
        tasks = self._engine.tasks
        if history.best is history.records[-1] and history.records[-1].tasks == tasks:
            self._best = self._engine.weights
        self._writer.write_last(self._engine.weights, tasks)
        if self._best:
            self._writer.write_best(self._best, tasks)
        self._writer.wait()

    def take_news(self) -> list[Written]:
        """The files written since the last call."""
        return self._writer.take_news()

    def write_now(self, state: RunState | None) -> None:
        """Write a checkpoint with the state of the current or last training call, and wait for it. Raises DataError if
        it cannot be written."""
        self._take_directory()
        self._write(state)
        self._last = None  # monitors may not have heard of the last record yet
        self._writer.wait()
        for written in self.take_news():
            for monitor in self._monitors:
                tell(monitor, "checkpoint", written)
            if written.error:
                raise DataError(written.error)

    def _write(self, run: RunState | None) -> None:
        """Write a checkpoint in the writer's thread."""
        begin = now()
        snapshot = self._engine.snapshot()
        if self._recorder.on:
            self._recorder.event(SCHEDULER, COPY_FOR_CHECKPOINT, begin)
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
