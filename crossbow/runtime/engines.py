"""Several engines, one of which trains. Each continues from the previous one."""

from __future__ import annotations

import gc
from collections.abc import Callable, KeysView

from crossbow.runtime.engine import Engine
from crossbow.runtime.usage import CLOSED
from crossbow.types import CrossbowError

Make = Callable[[int, int], Engine]
"""Function that creates the engine of a kind, given the bytes of memory that other engines use. Raises GraphError or
ConfigurationError."""


class Engines:
    """Engines by their kind: a number of learners, or the number of a rule."""

    def __init__(self, kind: int, first: Engine, make: Make) -> None:
        """first: the first engine to train, of the given kind."""
        self._kind, self._make, self._closed = kind, make, False
        self._engines = {kind: first}

    @property
    def kind(self) -> int:
        """The kind of the current engine."""
        return self._kind

    @property
    def kinds(self) -> KeysView[int]:
        """The kinds of existing engines."""
        return self._engines.keys()

    @property
    def now(self) -> Engine:
        """The current engine."""
        return self._engines[self._kind]

    def of(self, kind: int) -> Engine:
        """The existing engine of a kind."""
        return self._engines[kind]

    def add(self, kind: int) -> None:
        """Create the engine of a kind. Raises ConfigurationError, also if there is not enough memory in addition to the
        existing engines; CrossbowError after `close`."""
        gc.collect()  # frees closed engines with reference cycles, whose memory is not counted
        self._engines[kind] = self._make(kind, sum(sum(each.memory.values()) for each in self._engines.values()))
        if self._closed:
            self.close()
            raise CrossbowError(CLOSED)

    def drop(self, kind: int) -> None:
        """Close the engine of a kind."""
        self._engines.pop(kind).close()

    def go_on_with(self, kind: int) -> None:
        """Make the engine of a kind the current one, starting from the current base model. If that fails, nothing
        changes. Raises CrossbowError after `close`."""
        self._engines[kind].continue_from(self.now)
        self._kind = kind
        if self._closed:
            raise CrossbowError(CLOSED)

    def select(self, kind: int) -> None:
        """Make the existing engine of a kind the current one, without changing its state."""
        self._kind = kind

    def close(self) -> None:
        """Close all engines."""
        self._closed = True
        for engine in list(self._engines.values()):
            engine.close()
