"""Access to an engine: by one thread at a time, in the process that created it, and only after recovery from
failures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from crossbow.cluster.members import ViewChangedError
from crossbow.data.loader import Loader
from crossbow.runtime.recovery import Recovery
from crossbow.types import CrossbowError

CLOSED = "the context was closed while training"


class Usage:
    """Guards an engine."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._doing = ""
        """Description of the learners' current work."""
        self._settled = True
        """Whether all submitted work is done and the learners agree with the base model's tick."""
        self._lost = False
        """Whether ranks left during the last training, if it is not settled."""
        self._trained = False
        """Whether the last work was training."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the engine without its learners, as for a prediction, after other threads have finished such uses. Raises
        CrossbowError while the learners are busy, after `close`, and in a forked process."""
        self.check_process()  # a fork may have copied the lock while another thread held it
        with self._lock:
            self._check_usable()
            yield

    @contextmanager
    def busy(self, doing: str, loader: Loader) -> Iterator[None]:
        """Run work on the learners. Even after an exception, no task runs afterwards, and the next work can begin,
        unless the learners have stopped."""
        began = False
        try:
            with self.alone():
                self._recovery.check_learners()
                began, self._doing = True, doing
                self._settled, self._lost, self._trained = False, False, doing == "training"
            yield
            self._settled = True
        except BaseException as error:
            if began:
                self._lost = self._trained and isinstance(error, ViewChangedError)
                if not self.is_forked:
                    self._settled = self._recover()
            raise
        finally:
            if began:
                self._doing = ""
                if not self.is_forked:
                    loader.stop()

    def close(self) -> bool:
        """Reject all use from now on, after the threads that use the engine without its learners. Returns False in a
        forked process, where it has no effect."""
        if self.is_forked:
            return False
        with self._lock:
            self._closed = True
        return True

    @property
    def base_changes(self) -> int:
        """Number of times that the base model may have changed."""
        return self._recovery.base_changes

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that owns the engine's threads. It has copies of the engine's memory
        and locks, and would wait forever for a lock that a missing thread holds."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raises CrossbowError in a forked process."""
        if self.is_forked:
            raise CrossbowError(
                f"the context belongs to process {self._process}; a forked process, as this one ({os.getpid()}), does "
                "not have its threads. Make a context in every process, and pass models on with `save` and `load`"
            )

    def check_usable(self) -> None:
        """Raises CrossbowError while the learners are busy, after `close`, and in a forked process."""
        with self.alone():
            pass

    def _check_usable(self) -> None:
        if self._closed:
            raise CrossbowError(CLOSED)
        if self._doing:
            raise CrossbowError(f"this is not possible while {self._doing}. Call it between epochs, in Monitor.record")
        if not self._settled:
            self._settled = self._recover()
        if not self._settled:
            raise CrossbowError(
                "not possible while a learner is still in a task that another's failure or Ctrl-C left, nor after a "
                "failure of ranks with GPUs. Make another context"
            )

    def _recover(self) -> bool:
        return self._recovery.recover(trained=self._trained, lost=self._lost)
