"""Exchange of the results of tasks between ranks: every rank gets all results, so that all count and decide alike."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable

from crossbow.cluster.members import RankFailedError, ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import GROWTH
from crossbow.cluster.transport import RESULTS
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Completed, Failed

SHORTEST_SLEEP, LONGEST_SLEEP = 1e-3, 20e-3
"""Seconds between two checks for results of other ranks. They grow while no results arrive."""
LATE = 0.25
"""Maximum delay with which a result is noticed, as a fraction of the time between two results. A delay is harmless,
because schedulers are several tasks ahead. After a deferral, a scheduler waits, and the first check is soon."""
SECONDS_TO_LOOK = 0.05
"""Seconds between two checks of other ranks while no results are exchanged."""

PARTS_OF_AN_ERA = 1 << 32
"""Upper limit of the number of parts in an era of the ranks."""


class Sharing:
    """Sends the results of this rank's tasks to the other ranks, and reports the results of theirs.

    Ranks train and test in the same order, but not at the same time. So each result has the number of its *part* (a
    stretch of training up to a restart, or a test), and results of a part that this rank has not begun are kept until
    then. All engines of a model share one object, because only one of them works at a time.

    A message costs time that learners need, so an engine that does not need the results of other ranks for a while
    defers the exchange.
    """

    def __init__(self, ranks: Ranks, model: int = 0) -> None:
        """model: the model's number in the program; see `Ranks.next_model`."""
        self._ranks, self._channel = ranks, RESULTS + model
        self._reports: Reports | None = None
        """The reports of the engine that works."""
        self._works = False
        """Whether that engine trains or tests now, and no failure of another rank has been reported to it. An idle
        engine does not wait for other ranks."""
        self._part = 0
        self._own: queue.SimpleQueue[tuple[int, Completed]] = queue.SimpleQueue()
        self._early: list[tuple[int, Completed]] = []
        """Results of later parts, each with the number of its part."""
        self._users: set[Reports] = set()
        """The reports of all engines."""
        self._lock, self._sends = threading.Lock(), threading.Lock()
        self._exchanges = threading.Event()
        self._exchanges.set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crossbow-results", daemon=True)

    def join(self, reports: Reports) -> None:
        """Share the results of an engine."""
        if not self._thread.ident:
            self._thread.start()
        self._users.add(reports)
        reports.share_with(self._put)

    def leave(self, reports: Reports) -> None:
        """Share no more results of an engine, which is closed. The last one ends the thread."""
        self._users.discard(reports)
        if not self._users:
            self.close()

    def _put(self, result: Completed) -> None:
        """Send a result of this rank. Called on the learners' threads."""
        self._own.put((self._part, result))

    def begin(self, reports: Reports, *, works: bool = False) -> None:
        """Begin the next part, which belongs to the engine with these reports. All results of the previous part have
        been reported.
        works: whether the engine trains or tests from now on, until `rest`."""
        with self._lock:
            # After a failure, ranks may have begun different numbers of parts, so the next part gets a new number.
            self._part = max(self._part + 1, self._ranks.era * PARTS_OF_AN_ERA)
            self._reports, self._works = reports, works or self._works
            early, self._early = self._early, []
            for part, result in early:
                self._deliver(part, result)

    def exchange(self) -> None:
        """Send results as they come, and report those of other ranks, from now on."""
        self._exchanges.set()

    def defer(self) -> None:
        """Keep further results until `exchange`. Results that are already available are sent."""
        self._exchanges.clear()
        self._send()

    def rest(self) -> None:
        """Record that the engine neither trains nor tests any more."""
        with self._lock:
            self._works = False

    def check_own(self, check: Callable[[], None] | None) -> None:
        """Call `check`, which raises a failure of this rank, while the scheduler's thread waits for other ranks."""
        self._ranks.check_own(check)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self.exchange()
        self._thread.join()

    def _deliver(self, part: int, result: Completed) -> None:
        if part == self._part and self._reports is not None:
            self._reports.add(result)
        elif part > self._part:
            self._early.append((part, result))

    def _run(self) -> None:
        """Body of the thread."""
        sleep, last = SHORTEST_SLEEP, time.monotonic()
        while not self._closed.is_set():
            if not self._exchanges.is_set():
                self._exchanges.wait(SECONDS_TO_LOOK)
                self._look_for_failure()
                sleep, last = SHORTEST_SLEEP, time.monotonic()
                continue
            busy = self._send() | self._receive()
            self._look_for_failure()
            if busy:
                before, last = last, time.monotonic()
                sleep = max(SHORTEST_SLEEP, (last - before) * LATE)
            sleep = min(LONGEST_SLEEP, sleep * GROWTH)
            time.sleep(sleep)
        self._send()

    def _look_for_failure(self) -> None:
        """Report that a rank has left or failed. Otherwise the scheduler would wait for results that never arrive."""
        if not self._works:
            return
        try:
            self._ranks.check_others()
        except (RankFailedError, ViewChangedError) as error:
            with self._lock:
                if self._works and self._reports is not None:
                    self._works = False
                    self._reports.add(Failed(0, 0, "ranks", error))

    def _send(self) -> bool:
        """Send the results of this rank. Returns whether there were any."""
        results = []
        with self._sends:  # the scheduler's thread may be here, too
            while not self._own.empty():
                results.append(self._own.get())
            if not results:
                return False
            message = json.dumps(results).encode()
            for rank in self._ranks.view.ranks:
                if rank.number != self._ranks.rank:
                    self._ranks.transport.send(message, rank.number, self._channel)
        return True

    def _receive(self) -> bool:
        """Report the results of other ranks. Returns whether there were any."""
        any_came = False
        while (received := self._ranks.transport.receive(self._channel)) is not None:
            with self._lock:
                for part, result in json.loads(received[1]):
                    self._deliver(part, Completed.of_json(result))
            any_came = True
        return any_came
