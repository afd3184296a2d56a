"""A rank's process on Ray: an actor, which runs the program on one thread and accepts messages on another."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from crossbow.cluster.admission import Admission, Joining, Journal
from crossbow.cluster.failure import TERMINATED
from crossbow.cluster.fault import VARIABLE
from crossbow.cluster.launch import RankLaunch, variables_of
from crossbow.cluster.members import GivenUp
from crossbow.cluster.output import mark_errors
from crossbow.cluster.process import connected
from crossbow.cluster.program import RankProgram, run_program
from crossbow.cluster.ranks import Ranks
from crossbow.cluster.ray.mailbox import Envelope, Mailbox
from crossbow.cluster.ray.outbox import Outbox, OutboxStream
from crossbow.cluster.ray.transport import RayTransport, ViewChange

GROUPS = {"messages": 1, "control": 1, "output": 1, "joins": 1}
"""Threads that serve calls while the program runs."""
SECONDS_OF_SILENCE = 5.0
"""Time after which `take_output` returns even without output."""
SECONDS_TO_END = 10.0
"""Time for the launcher, if it still runs, to take the last output of a rank that the others have given up."""


class RankProcess:
    """The actor. This class does not import Ray, which calls its methods."""

    def __init__(self, process: int, environment: Mapping[str, str], path: Sequence[str], directory: str) -> None:
        """process: number of the process among all that were started. environment: further variables. path: directories
        of modules. directory: the working directory of the program, if this host has it."""
        if "OMP_NUM_THREADS" not in environment:
            os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1
        os.environ.pop(VARIABLE, None)  # Ray's processes may have it from an earlier start
        os.environ.update(environment)
        sys.path[:0] = [each for each in path if each not in sys.path]
        with contextlib.suppress(OSError):
            os.chdir(directory)
        self._process, self._mailbox, self._outbox = process, Mailbox(), Outbox()
        self._deliveries: list[Any] = []
        self._transport: RayTransport | None = None
        self._ranks: Ranks | None = None
        self._admission: Admission | None = None
        self._joining: Joining | None = None
        if threading.current_thread() is threading.main_thread():  # handles signals; other threads run the program
            signal.signal(signal.SIGTERM, self._be_asked_to_leave)

    def ready(self) -> int:
        """The id of this process."""
        return os.getpid()

    def connect(self, change: ViewChange, peers: Sequence[Any], launch: RankLaunch, *, grows: bool = False) -> None:
        """Become one of the ranks. peers: the actors of all processes. launch: the rank and size of this process.
        grows: whether others may join."""
        self._admission = Admission() if grows else None
        self._become(change, peers, launch, alone=len(change.view) == 1 and not grows)

    def join(self, change: ViewChange, peers: Sequence[Any], launch: RankLaunch, journal: Journal) -> None:
        """Become a rank that will join the others. change: a view of the ranks of the journal, and of this one."""
        self._admission, self._joining = Admission(), Joining(journal)
        self._become(change, peers, launch)

    def _become(self, change: ViewChange, peers: Sequence[Any], launch: RankLaunch, *, alone: bool = False) -> None:
        self._know(peers)
        self._transport = RayTransport(self._process, change, self._mailbox, self._post)
        transport = None if alone else self._transport
        self._ranks = Ranks(
            change.view, self._transport.rank, transport, admission=self._admission, joining=self._joining
        )
        connected(self._ranks)
        os.environ.update(variables_of(launch))

    def run(self, program: RankProgram) -> int:
        """Run a program, whose output the launcher takes. Returns its exit status."""
        out, err = OutboxStream(self._outbox, error=False), OutboxStream(self._outbox, error=True)
        sys.stdout, sys.stderr = out, err
        try:
            ranks = self._ranks
            assert ranks is not None
            status = run_program(program, lambda: mark_errors(ranks.own))  # its number may change
            if status == 0 and ranks.several and self._joining is None:
                ranks.tell_end()
            return status
        finally:
            out.flush()
            err.flush()
            self._outbox.close()
            if self._joining is not None:
                self._joining.end()
            if self._transport is not None and self._transport.given_up:
                self._end_soon(GivenUp.status)

    def deliver(self, letter: tuple[int, int, int, bool, Any]) -> None:
        """Accept a letter of another rank."""
        if self._transport is None:
            self._mailbox.deliver(Envelope(*letter))
        else:
            self._transport.take_in(Envelope(*letter))

    def _know(self, peers: Sequence[Any]) -> None:
        """Send letters to these actors, in the order of processes, from now on."""
        self._deliveries = [peer.deliver.options(concurrency_group="messages") for peer in peers]

    def change_view(self, change: ViewChange, peers: Sequence[Any]) -> None:
        """Record that ranks have joined or left. peers: the actors of all processes."""
        assert self._transport is not None
        self._know(peers)
        self._transport.change(change)

    # Joins

    def journal(self) -> Journal | None:
        """On rank 0: the journal for a rank that joins; None if no rank can join now."""
        return None if self._admission is None else self._admission.journal()

    def request_pause(self, known: int, *, trains: bool) -> Journal | str | None:
        """On rank 0: wait until all ranks have paused for another view; see `Admission.request`."""
        assert self._admission is not None
        return self._admission.request(known, trains=trains)

    def await_arrival(self) -> tuple[int, bool] | None:
        """On a rank that joins: wait until it has reached the end of its journal; see `Joining.await_arrival`."""
        assert self._joining is not None
        return self._joining.await_arrival()

    def go_on(self, journal: Journal | str) -> None:
        """On a rank that joins: continue with a longer journal, or end for this reason."""
        assert self._joining is not None
        self._joining.go_on(journal)

    def request_stop(self, signal: int) -> None:
        """Make rank 0, which this rank is or becomes, end training; see `Ranks.stop`."""
        assert self._ranks is not None
        self._ranks.stop(signal)

    def take_output(self) -> tuple[list[tuple[bool, str]], bool]:
        """The output that the program has written; see `Outbox.take`."""
        return self._outbox.take(SECONDS_OF_SILENCE)

    def _be_asked_to_leave(self, *_: object) -> None:
        """The handler of SIGTERM. A second signal ends the process at once."""
        if self._ranks is None or self._ranks.asked_to_leave:
            os._exit(TERMINATED)
        self._ranks.leave()

    @staticmethod
    def _end_soon(status: int) -> None:
        """End the process soon, because the launcher may be unable to reach it."""
        timer = threading.Timer(SECONDS_TO_END, os._exit, (status,))
        timer.daemon = True
        timer.start()

    def _post(self, process: int, letter: Envelope) -> None:
        self._deliveries[process].remote(tuple(letter))
