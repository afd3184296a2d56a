"""Messages with vectors between ranks, while learners without a barrier train.

A *session* lasts from the first task of a stretch of training until all tasks of all ranks are done and nothing is on
its way. A separate thread receives one message at a time, so that vectors are received in memory that is already
allocated. It also sends messages whose vectors a GPU is still copying to the host, once these are complete, so that no
learner's thread waits for a copy.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from crossbow.cluster.members import RankFailedError, ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.sums import SECONDS_TO_WAIT, SHORTEST_SLEEP, Waiting
from crossbow.cluster.transport import Channel, Pending
from crossbow.kernels.cpu.threads import one_thread
from crossbow.runtime.backend import Arriving, Leaving
from crossbow.runtime.flags import Flags
from crossbow.types import Aborted, CrossbowError

LONGEST_SLEEP = 1e-3
"""Seconds between two checks for messages, for which learners wait."""


class Kind(enum.IntEnum):
    """Meaning of a message."""

    VECTOR = 1
    """A learner's vector, or the reply to it."""
    TURN = 2
    """Rank 0 has merged the learner's contribution, which the other servers merge next."""
    REST = 3
    """The learner has no task."""
    DONE = 4
    """No learner of the sender sends another message in this session."""
    END = 5
    """The sender sends no other message in this session."""


class Note(NamedTuple):
    """Description of a message."""

    kind: Kind
    learner: int = -1
    """The learner that sends or receives, numbered over all ranks."""
    numbers: tuple[float, ...] = ()
    """A pace, a mass and a pace, or counts."""
    vector: bool = False
    """Whether a vector follows."""


class Messages:
    """The messages of this rank. Any thread may send."""

    def __init__(self, ranks: Ranks, partners: Collection[int], flags: Flags, *, rare: bool = False) -> None:
        """partners: the ranks that it exchanges messages with. rare: whether long times without a message are
        normal."""
        self._ranks, self._partners, self._flags, self._rare = ranks, frozenset(partners), flags, rare
        self._lock = threading.Lock()
        self._copying: deque[tuple[int, Note, Leaving | None]] = deque()
        """Messages to other ranks, in order, that wait until a GPU has copied the vector of the first one."""
        self._more = threading.Event()
        """Set when such a message is added."""
        self._going: list[Pending] = []
        """Vectors on their way to other ranks."""
        self._thread: threading.Thread | None = None
        self._ended: set[int] = set()
        self._error: BaseException | None = None
        self._given_up = self._ending = False
        self._into: Callable[[int, Note], Arriving]
        self._receive: Callable[[int, Note], None]
        self._fail: Callable[[BaseException], None]

    def connect(
        self,
        into: Callable[[int, Note], Arriving],
        receive: Callable[[int, Note], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """into: returns where a message's vector is stored. receive: called when a message and its vector have arrived.
        fail: called once if the session fails. All of them are called on the session's thread."""
        self._into, self._receive, self._fail = into, receive, fail

    def begin(self) -> None:
        """Begin a session, if none has begun."""
        if self._thread is None:
            self._ended.clear()
            self._copying.clear()  # messages may be left after a failure
            self._ending = False
            self._thread = threading.Thread(target=self._run, name="crossbow-messages", daemon=True)
            self._thread.start()

    def send(self, rank: int, note: Note, vector: Leaving | None = None) -> None:
        """Send a message after the earlier ones. The vector must not change before its receiver has answered, or
        `flush` has returned."""
        with self._lock:
            if self._copying or (vector is not None and vector.wait is not None):
                self._copying.append((rank, note, vector))
                self._more.set()
            else:
                self._send(rank, note, vector)

    def _send(self, rank: int, note: Note, vector: Leaving | None) -> None:
        transport = self._ranks.transport
        transport.send(json.dumps(note._replace(vector=vector is not None)).encode(), rank, Channel.NOTE)
        if vector is not None:
            self._going.append(transport.send_array(vector.array, rank, Channel.VECTOR))

    def _send_copied(self) -> None:
        """Send the messages that wait for copies. Only one thread calls this at a time: the session's thread, or the
        one that ends the session."""
        while self._copying:
            vector = self._copying[0][2]
            if vector is not None and vector.wait is not None:
                vector.wait()  # without the lock, so that learners do not wait
            with self._lock:
                self._send(*self._copying.popleft())

    def end(self) -> None:
        """Wait until all partners have ended the session. Raises CrossbowError if it has failed, and ViewChangedError
        if a rank has left."""
        if self._thread is not None:
            self._ending = True
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, RankFailedError | ViewChangedError):
                raise error
            raise CrossbowError(f"the exchange between ranks failed: {error}") from error
        if self._ended != self._partners:
            raise CrossbowError("the context was closed during an exchange between ranks")

    def flush(self) -> None:
        """Wait until all vectors are sent."""
        Waiting(self._aborted).until(self._all_gone, f"the other ranks of {self._ranks.size} to receive vectors")

    def give_up(self) -> None:
        """End the session after a failure, without the other ranks."""
        self._given_up = True
        if self._thread is not None:
            self._thread.join()
        self._thread, self._error, self._given_up = None, None, False

    def _aborted(self) -> bool:
        return self._given_up or bool(self._flags.abort[0])

    def _all_gone(self) -> bool:
        self._send_copied()
        with self._lock:
            self._going = [each for each in self._going if not each.done()]
            return not self._going

    def _run(self) -> None:
        """Body of the thread. It sleeps between two checks for messages, longer the longer no message arrives."""
        sleep, heard = SHORTEST_SLEEP, time.monotonic()
        try:
            with one_thread():
                while self._ended != self._partners and not self._aborted():
                    if self._take():
                        sleep, heard = SHORTEST_SLEEP, time.monotonic()
                        self._send_copied()
                        continue
                    if self._rare and not self._ending:
                        heard = time.monotonic()
                    self._ranks.check_others()
                    self._check(heard)
                    self._all_gone()
                    self._more.wait(sleep)
                    self._more.clear()
                    sleep = min(LONGEST_SLEEP, sleep * 1.2)
        except Aborted:
            pass  # the cause is reported elsewhere
        except BaseException as error:
            if not self._given_up:
                self._error = error
                self._fail(error)

    def _check(self, heard: float) -> None:
        """Raise CrossbowError if the last message came too long ago."""
        if time.monotonic() - heard > SECONDS_TO_WAIT:
            missing = (self._ranks.view.ranks[rank] for rank in sorted(self._partners - self._ended))
            raise CrossbowError(f"waited {SECONDS_TO_WAIT:g} s for a message of {', '.join(map(str, missing))}")

    def _take(self) -> bool:
        """Receive a message, if there is one."""
        received = self._ranks.transport.receive(Channel.NOTE)
        if received is None:
            return False
        rank, text = received
        kind, learner, numbers, follows = json.loads(text)
        note = Note(Kind(kind), learner, tuple(numbers), follows)
        if note.vector:
            arriving = self._into(rank, note)
            coming = self._ranks.transport.receive_array(arriving.array, rank, Channel.VECTOR)

            def arrived() -> bool:
                self._all_gone()  # both ranks may need each other's progress
                return coming.done()

            Waiting(self._aborted).until(arrived, f"a vector of {self._ranks.view.ranks[rank]}")
            arriving.store()
        self._receive(rank, note)
        if note.kind == Kind.END:
            self._ended.add(rank)
        return True
