"""Reports from the learners' threads to the scheduler's thread, which sleeps until there are enough of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from crossbow.data.loader import Loader
from crossbow.runtime.task import Completed, Failed


class Reports:
    """A queue with many writers and one reader. Waking a thread costs more than a small task can afford, so the reader
    sets the number of reports after which it is woken; a failure wakes it at once."""

    def __init__(self, loaders: Sequence[Loader] = (), learners: int = 1) -> None:
        """loaders: loaders for which the reader may also wait; a failure interrupts them. learners: number of
        writers."""
        self._share: Callable[[Completed], None] | None = None
        self._loaders = tuple(loaders)
        self._reports: deque[Completed | Failed] = deque()
        self._wanted = 1
        self._failed = False
        self._enough = threading.Event()
        self._learners = learners
        self._times: deque[float] = deque(maxlen=learners)
        """The times of the last reports."""

    def share_with(self, share: Callable[[Completed], None]) -> None:
        """Call `share` with each result of this rank, to send it to others."""
        self._share = share

    def put(self, report: Completed | Failed) -> None:
        """Add a report of a learner of this rank, from any thread."""
        if self._share is not None and isinstance(report, Completed):
            self._share(report)
        self.add(report)

    def add(self, report: Completed | Failed) -> None:
        """Add a report of a learner of any rank, from any thread."""
        failed = isinstance(report, Failed)
        if failed:
            self._failed = True
        self._times.append(time.monotonic())
        self._reports.append(report)
        if len(self._reports) >= self._wanted or self._failed:
            self._enough.set()
        if failed:
            for loader in self._loaders:  # otherwise a slow loader would delay the reader
                loader.interrupt()

    def put_failure(self, report: Completed | Failed) -> None:
        """Add the report of a task without a result. Only a failure counts."""
        if isinstance(report, Failed):
            self.put(report)

    def wait(self, count: int) -> None:
        """Return once there are `count` reports, or as soon as there is a failure."""
        # Set before checking, so that reports after the check see the count.
        self._wanted = count
        while len(self._reports) < count and not (self._failed and self._reports):
            self._enough.wait()
            self._enough.clear()

    @property
    def failed(self) -> bool:
        """Whether a failure has been reported since the reports were cleared."""
        return self._failed

    def take(self) -> Completed | Failed | None:
        """The oldest report, or None."""
        return self._reports.popleft() if self._reports else None

    def idle_seconds(self, since: float, pending: int) -> float:
        """Seconds that the learners were idle since the time `since`, added up over all learners. No task may have been
        submitted in the meantime. pending: number of submitted tasks whose reports were not taken."""
        running = pending - len(self._reports)
        if running >= self._learners:
            return 0.0
        seconds, end = 0.0, time.monotonic()
        for began in reversed((since, *tuple(self._times))):
            began = max(began, since)
            seconds += (self._learners - running) * max(0.0, end - began)
            end, running = began, running + 1  # before its report, one more task was running
            if running >= self._learners:
                break
        return seconds

    def clear(self) -> None:
        """Forget all reports. No thread may report at the same time."""
        self._reports.clear()
        self._failed = False
