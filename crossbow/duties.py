"""The duties of rank 0 in a context: monitors and checkpoints. Another rank takes them over if rank 0 leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crossbow.cluster.failure import LOST
from crossbow.cluster.ranks import Ranks
from crossbow.console import say
from crossbow.model_file import read_variables
from crossbow.runtime.checkpointing import CheckpointWriter
from crossbow.runtime.keeper import RunKeeper
from crossbow.runtime.monitor import Monitor, tell
from crossbow.runtime.results import History
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, DataError


class Duties:
    """The monitors and the keeper of a context on this rank. Ranks other than rank 0 have no keeper, and only the
    monitors for all ranks."""

    def __init__(
        self,
        ranks: Ranks,
        monitors: Sequence[Monitor],
        new_writer: Callable[[], CheckpointWriter] | None,
        about: Mapping[str, Any],
        recorder: Recorder,
    ) -> None:
        """monitors: the caller's monitors. new_writer: creates the writer of checkpoints; None if none are written.
        about: description of the run, as JSON values."""
        self.leads = ranks.is_first
        """Whether this process is rank 0, which it may also become during training."""
        self.keeper: RunKeeper | None = None
        """The keeper of this run, if there are checkpoints."""
        self._ranks, self._all_monitors = ranks, tuple(monitors)
        self._new_writer, self._about, self._recorder = new_writer, about, recorder
        self._mark = ""
        """Identifies the run in its directory."""

    @property
    def monitors(self) -> tuple[Monitor, ...]:
        """The monitors that are used on this rank."""
        return tuple(monitor for monitor in self._all_monitors if self.leads or monitor.on_all_ranks)

    def add(self, monitor: Monitor) -> None:
        """Add a monitor of the caller."""
        self._all_monitors = (*self._all_monitors, monitor)

    def begin(self, engine: TrainingEngine) -> None:
        """Begin with an engine. All ranks must call this. Raises DataError if the directory for checkpoints cannot be
        used."""
        if self.leads:
            self.keeper = self._new_keeper(engine)
        self._mark = self._ranks.agree(lambda: "" if self.keeper is None else self.keeper.mark)

    def go_on(self, engine: TrainingEngine, history: History, *, begun: bool) -> None:
        """Continue with another engine, after ranks have left or joined. If this rank has become rank 0, it takes over
        the duties of the previous one; if that fails, its program ends.

        history: history of the current or last training call. begun: whether the run has begun to train.
        """
        if self._ranks.is_first and not self.leads:
            self.leads = True
            try:
                self.keeper = self._new_keeper(engine, self._mark, begun=begun)
                for monitor in self.monitors:
                    tell(monitor, "take_over", history)
            except DataError as error:
                say(f"error: {self._ranks.own} cannot take the place of rank 0: {error}")
                raise SystemExit(LOST) from error
        elif self.keeper is not None:
            self.keeper.use(engine)

    def _new_keeper(self, engine: TrainingEngine, succeeds: str = "", *, begun: bool = True) -> RunKeeper | None:
        """The keeper of this run, if there are checkpoints. succeeds, begun: see `RunKeeper`."""
        if self._new_writer is None:
            return None
        writer = self._new_writer()
        best: Mapping[str, Array] = {}
        if succeeds and begun and writer.settings.best_path.exists():
            with contextlib.suppress(DataError):  # the next record then counts as the first best one
                best = read_variables(writer.settings.best_path)
        return RunKeeper(engine, writer, self._about, self.monitors, self._recorder, succeeds, best, begun=begun)

    def close(self) -> None:
        """Finish writing, and close the monitors."""
        if self.keeper is not None:
            self.keeper.close()
        for monitor in self.monitors:
            tell(monitor, "close")
