"""Several engines, of which one trains: each goes on from where the last one was."""

from __future__ import annotations

import gc
from collections.abc import Callable, KeysView

from crossbow.runtime.engine import Engine
from crossbow.types import CrossbowError

CLOSED = "the context was closed while training"

Make = Callable[[int, int], Engine]
"""Gives the engine of a kind, beside others that have so many bytes of memory. Raises GraphError or
ConfigurationError."""


class Engines:
    """Engines by kind: a number of learners, or the number of a rule."""

    def __init__(self, kind: int, first: Engine, make: Make) -> None:
        """first: what trains to begin with, of that kind."""
        self._kind, self._make, self._closed = kind, make, False
        self._engines = {kind: first}

    @property
    def kind(self) -> int:
        """The kind of the engine that trains now."""
        return self._kind

    @property
    def kinds(self) -> KeysView[int]:
        """Those that are there."""
        return self._engines.keys()

    @property
    def now(self) -> Engine:
        """The engine that trains now."""
        return self._engines[self._kind]

    def add(self, kind: int) -> None:
        """Make the engine of a kind. Raises ConfigurationError, also where it has no room beside those that there are;
        CrossbowError after `close`."""
        gc.collect()  # closed engines, whose parts may know each other: their memory is not counted
        self._engines[kind] = self._make(kind, sum(sum(each.memory.values()) for each in self._engines.values()))
        if self._closed:
            self.close()
            raise CrossbowError(CLOSED)

    def drop(self, kind: int) -> None:
        """Close the engine of a kind."""
        self._engines.pop(kind).close()

    def go_on_with(self, kind: int) -> None:
        """Let the engine of a kind train from now on, from the base model of the one that trains now. Where that fails,
        nothing has changed. Raises CrossbowError after `close`."""
        self._engines[kind].continue_from(self.now)
        self._kind = kind
        if self._closed:
            raise CrossbowError(CLOSED)

    def close(self) -> None:
        """Close all of them."""
        self._closed = True
        for engine in list(self._engines.values()):
            engine.close()
