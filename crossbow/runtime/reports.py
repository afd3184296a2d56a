"""Reports from the learners' threads to the scheduler's thread, which sleeps until there are enough of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from crossbow.data.loader import Loader
from crossbow.runtime.task import Completed, Failed


class Reports:
    """A queue with many writers and one reader. Waking a thread costs more than a small task can afford, so the reader
    sets the number of reports after which it is woken; a failure wakes it at once."""

    def __init__(self, loaders: Sequence[Loader] = ()) -> None:
        """loaders: loaders that the reader may also wait for, which are interrupted by a failure."""
        self._loaders = tuple(loaders)
        self._reports: deque[Completed | Failed] = deque()
        self._wanted = 1
        self._failed = False
        self._enough = threading.Event()

    def put(self, report: Completed | Failed) -> None:
        """Add a report, from any thread."""
        failed = isinstance(report, Failed)
        if failed:
            self._failed = True
        self._reports.append(report)
        if len(self._reports) >= self._wanted or self._failed:
            self._enough.set()
        if failed:
            for loader in self._loaders:  # otherwise a slow loader would delay the reader
                loader.interrupt()

    def put_failure(self, report: Completed | Failed) -> None:
        """Add the report of a task without a result, of which only a failure counts."""
        if isinstance(report, Failed):
            self.put(report)

    def wait(self, count: int) -> None:
        """Return once there are `count` reports, or as soon as there is a failure."""
        # Set before checking, so that reports after the check see the count.
        self._wanted = count
        while len(self._reports) < count and not (self._failed and self._reports):
            self._enough.wait()
            self._enough.clear()

    def take(self) -> Completed | Failed | None:
        """The oldest report, or None."""
        return self._reports.popleft() if self._reports else None

    def clear(self) -> None:
        """Forget all reports. No thread may report at the same time."""
        self._reports.clear()
        self._failed = False
