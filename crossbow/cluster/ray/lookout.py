"""The nodes of a cluster, and whether its head answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from crossbow.cluster.ray.connection import ClusterNode

LOOK = 1.0
"""Seconds between two queries."""
SECONDS_TO_END = 2.0
"""Maximum wait for the end of the thread."""


class Lookout:
    """Queries the nodes on a separate thread, because after the loss of the head, Ray blocks until it ends the process.
    Other threads may call the methods."""

    def __init__(self, look: Callable[[], Sequence[ClusterNode]]) -> None:
        """look: function that returns the nodes."""
        self._look = look
        self._changed = threading.Condition()
        self._nodes: Sequence[ClusterNode] = ()
        self._asked = self._answered = 0
        """Numbers of the newest request, and of the newest request that was answered."""
        self._unanswered: float | None = None
        """Start of the first query that the head has not answered."""
        self._over = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self) -> None:
        """Begin the queries."""
        self._thread.start()

    def end(self) -> None:
        """End the queries."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(SECONDS_TO_END)

    def nodes(self, seconds: float) -> Sequence[ClusterNode] | None:
        """The nodes; None if the head does not answer within these seconds."""
        with self._changed:
            self._asked += 1
            request = self._asked
            self._changed.notify_all()
            answered = self._changed.wait_for(lambda: self._answered >= request, seconds)
            return self._nodes if answered else None

    @property
    def silent(self) -> float:
        """Seconds for which the head has not answered. Seconds in which this process itself was stopped do not count,
        except during a query."""
        since = self._unanswered
        return 0.0 if since is None else time.monotonic() - since

    def _work(self) -> None:
        while not self._over:
            with self._changed:
                request = self._asked
            self._unanswered = self._unanswered or time.monotonic()
            try:
                nodes = self._look()
            except Exception:  # the head may answer the next query
                time.sleep(LOOK)
                continue
            with self._changed:
                self._nodes, self._answered, self._unanswered = nodes, request, None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or self._asked > self._answered, LOOK)
