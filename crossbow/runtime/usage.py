"""Who may use an engine now: one thread at a time, in the process that made it, and nobody before a failure is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from crossbow.data.loader import Loader
from crossbow.runtime.recovery import Recovery
from crossbow.types import CrossbowError


class Usage:
    """Guards an engine."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._doing = ""
        """What the learners are busy with."""
        self._settled = True
        """Whether everything submitted is done and the learners agree with the base model's tick."""
        self._process = os.getpid()

    @contextmanager
    def busy(self, doing: str, loader: Loader) -> Iterator[None]:
        """Work for the learners. However it ends, nothing runs afterwards, and the next can begin."""
        self.check_usable()
        try:
            self._doing, self._settled = doing, False
            yield
            self._settled = True
        except BaseException:
            if not self.is_forked:
                self._settled = self._recovery.recover()
            raise
        finally:
            self._doing = ""
            if not self.is_forked:
                loader.stop()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that the engine's threads belong to. It has copies of the engine's
        memory and of its locks, and waits for ever where one is held by a thread that it does not have."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise CrossbowError in a forked process."""
        if self.is_forked:
            raise CrossbowError(
                f"the context belongs to process {self._process}; a forked process, as this one ({os.getpid()}), does "
                "not have its threads. Make a context in every process, and pass models on with `save` and `load`"
            )

    def check_usable(self) -> None:
        """Raise CrossbowError while the learners are busy, and in a forked process."""
        self.check_process()
        if self._doing:
            raise CrossbowError(f"this is not possible while {self._doing}. Monitor.record may do it, between epochs")
        if not self._settled:
            self._settled = self._recovery.recover()
        if not self._settled:
            raise CrossbowError("not possible while a learner is still in a task that another's failure or Ctrl-C left")
