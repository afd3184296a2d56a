"""Ranks that join during training, started by the launcher."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from crossbow.cluster.admission import Journal
from crossbow.cluster.ray.connection import ClusterNode

LOOK = 1.0
"""Seconds between two checks for nodes."""
SECONDS_TO_END = 10.0
"""Maximum wait for the end of the thread."""


class Grower(Protocol):
    """An object that starts processes: the launcher. All methods except `prepare` are called on its own thread."""

    def nodes_to_join(self) -> Sequence[ClusterNode]:
        """The nodes on each of which a rank could join."""

    def ask_for_journal(self) -> Journal | None:
        """Rank 0's journal; None if no rank can join now."""

    def create(self, node: ClusterNode) -> int:
        """Create a process on a node. Returns its number."""

    def prepare(self, process: int, journal: Journal) -> bool:
        """Run the program in a process, and wait until it has reached the training call of the other ranks and these
        have paused. Returns False if it does not become a rank. Called on a separate thread."""

    def admit(self, process: int) -> None:
        """Make a process a rank."""


class Growth:
    """Lets processes join, one after the other."""

    def __init__(self, grower: Grower) -> None:
        self._grower = grower
        self._next_look = 0.0
        self._thread: threading.Thread | None = None
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def later(self, work: Callable[[], None]) -> None:
        """Call this function in the next call of `look`. Any thread may call this."""
        self._work.put(work)

    def look(self, *, begins: bool = True) -> None:
        """Do the work that other threads have left to the launcher's thread, and start the next process if there is a
        node. Returns soon. begins: whether to start another process."""
        while not self._work.empty():
            self._work.get()()
        now = time.monotonic()
        if not begins or now < self._next_look or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_look = now + LOOK
        nodes = self._grower.nodes_to_join()
        journal = self._grower.ask_for_journal() if nodes else None
        if journal is not None:
            process = self._grower.create(nodes[0])
            self._thread = threading.Thread(target=self._prepare, args=(process, journal), daemon=True)
            self._thread.start()

    def _prepare(self, process: int, journal: Journal) -> None:
        if self._grower.prepare(process, journal):
            self.later(lambda: self._grower.admit(process))

    def end(self) -> None:
        """Wait for the end of the thread. All processes have ended."""
        if self._thread is not None:
            self._thread.join(SECONDS_TO_END)
