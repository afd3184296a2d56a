"""Starts a program's ranks as actors, prints their output, and tells them when one of them is lost."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from crossbow.cluster.admission import Journal
from crossbow.cluster.failure import ASKED_TO_LEAVE, FAILED, LOST, TERMINATED
from crossbow.cluster.fault import faults_of
from crossbow.cluster.members import NotJoined, Rank, View
from crossbow.cluster.program import CANNOT_JOIN, LEFT, SIGNALLED, RankProgram
from crossbow.cluster.ranks import LOSS
from crossbow.cluster.ray.actor import GROUPS, RankProcess
from crossbow.cluster.ray.connection import ClusterNode, Connection
from crossbow.cluster.ray.growth import Growth
from crossbow.cluster.ray.health import HeadProcess, ask_for_processes, settings_of, warning_of
from crossbow.cluster.ray.lookout import Lookout
from crossbow.cluster.ray.roster import Roster
from crossbow.cluster.ray.transport import ViewChange
from crossbow.cluster.signals import handled
from crossbow.console import say
from crossbow.interruption import INTERRUPTED
from crossbow.types import ConfigurationError

REASONS = {LEFT: ASKED_TO_LEAVE, CANNOT_JOIN: "it could not join"}
"""The reason why a rank has left, by the exit status of its program."""
PROCESS_LOST = "its process has ended"
NODE_LOST = "its node has left the cluster"
STOPPED = (LOST, INTERRUPTED, TERMINATED)
"""Exit statuses after a stop at a tick, when rank 0 writes a checkpoint."""
SECONDS_TO_START = 120.0
"""Maximum wait for the actors."""
SECONDS_TO_JOIN = 60.0
"""Maximum wait for nodes that join, while there are too few ranks."""
SECONDS_TO_STOP = 60.0
"""Time for rank 0 to end after a signal, and for the others to end after rank 0."""
SECONDS_FOR_HEAD = 20.0
"""Time within which a head that does not answer may return. Without a head, all of Ray's processes end after 60 s."""
SECONDS_WITHOUT_HEAD = 30.0
"""Time for rank 0 to end after the loss of the head."""
SECONDS_TO_LOOK = 5.0
"""Maximum wait for the head to list the live nodes."""
SECONDS_TO_ANSWER = 2.0
"""Maximum wait for rank 0's journal. It also delays the handling of signals and losses."""
SECONDS_TO_PRINT = 3.0
"""Time for taking the last output of ranks that have ended."""
LOOK = 0.2
"""Seconds between two checks for signals."""
FORWARDED = ("CROSSBOW_", "NUMBA_", "OMP_NUM_THREADS")
"""Prefixes of the environment variables that are passed to ranks."""


@dataclass
class Launcher:
    """A program on some nodes of a cluster."""

    connection: Connection
    program: RankProgram
    nodes: Sequence[ClusterNode]
    """The node of each rank; one may occur several times."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Resources that each rank requests."""
    least: int = 1
    """Minimum number of ranks. With fewer, training pauses, and ends if others do not join."""
    most: int | None = None
    """Maximum number of ranks; up to it, nodes that join the cluster get ranks."""
    per_host: int | None = None
    """Number of ranks per node; None: its slots."""

    def __post_init__(self) -> None:
        self._ray = self.connection.ray
        self._roster = Roster([node.host for node in self.nodes], self.least)
        self._actors: list[Any] = []
        self._calls: dict[Any, Callable[[Any], None]] = {}
        """Calls that have not returned, each with the function that handles its reference."""
        self._statuses: dict[int, int] = {}
        """Exit status of each process that has ended."""
        self._printing: set[int] = set()
        """Processes whose output may continue."""
        self._faults_to_join = sum(fault.kind == "join" for fault in faults_of(os.environ))
        self._grows = not self.connection.local or self._faults_to_join > 0
        """Whether ranks may join."""
        self._growth = Growth(self)
        self._lookout = Lookout(lambda: self.connection.nodes(self.resources))
        self.head_lost = False
        """Whether the head of the cluster no longer answers."""
        self._nodes = list(self.nodes)
        """The node of each process."""
        self._joining: dict[int, str] = {}
        """Processes that are not ranks yet, each with the reason of its end; empty while it runs."""
        self._signals: list[int] = []
        self._stops = 0
        """The signal for which training ends, or `LOSS`."""
        self._waits_until = math.inf
        """Time until which training waits for nodes that join."""
        self._deadline: float | None = None
        """Time at which all ranks are killed."""

    @property
    def signalled(self) -> bool:
        """Whether a signal has requested the end."""
        return bool(self._signals)

    def run(self) -> int:
        """Run the program, and return its exit status."""
        with handled(lambda number, frame: self._signals.append(number)):
            try:
                self._start()
                self._lookout.begin()
                while not self._has_ended():
                    self._wait(LOOK)
                    self._pass_signals_on()
                    self._check_head()
                    if self._grows:
                        self._growth.look(begins=self._deadline is None)
                        self._check_wait()
                self._print_last()
            finally:
                for actor in self._actors:
                    self._ray.kill(actor)
                self._growth.end()
                self._lookout.end()
        return self._status()

    def _status(self) -> int:
        """The exit status: `LOST` after a loss that left too few ranks; the first status that is not 0; the status of a
        signal, if ranks did not end after it; 1, with a message, if ranks did not end after rank 0; or 0."""
        failed = [status for status in self._statuses.values() if status]
        if self._stops == LOSS and (failed or self._first not in self._statuses):
            return LOST
        if not failed and self._signals and self._running():
            return 128 + self._signals[0]
        if not failed and not self._stops and self._running():
            names = ", ".join(map(self._roster.name, self._running()))
            say(f"expected all ranks to end within {SECONDS_TO_STOP:g} s after rank 0. They were killed: {names}")
            return FAILED
        return failed[0] if failed else 0

    def _running(self) -> list[int]:
        """The ranks' processes whose programs have not ended."""
        return [process for process in self._roster.alive if process not in self._statuses]

    @property
    def _first(self) -> int:
        """The process that is rank 0."""
        return self._roster.alive[0]

    # Start

    def _start(self) -> None:
        for process, node in enumerate(self.nodes):
            self._new_actor(process, node)
        self._await([actor.ready.remote() for actor in self._actors])
        change, launches = self._roster.change, self._roster.launches()
        self._await(
            [
                actor.connect.remote(change, self._actors, launch, grows=self._grows)
                for actor, launch in zip(self._actors, launches, strict=True)
            ]
        )
        for process in self._roster.alive:
            self._begin(process)
        self._limit_pause()
        if not self.connection.local and not self.connection.hosts:
            self._check_health()

    def _check_health(self) -> None:
        """Warn, as soon as its settings are known, if the head of a cluster that was started elsewhere notices losses
        too late."""

        def warn(call: Any) -> None:
            try:
                settings = settings_of([HeadProcess(*each) for each in self._ray.get(call)], head)
            except (self._ray.exceptions.RayError, ValueError):  # the arguments may belong to another program
                return
            if settings is not None and (text := warning_of(settings)):
                say(text)

        if (asked := ask_for_processes(self._ray)) is not None:
            head, call = asked
            self._calls[call] = warn

    def _new_actor(self, process: int, node: ClusterNode) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        path = [each or os.getcwd() for each in sys.path]
        remote = self._ray.remote(**self._options(node))(RankProcess)
        self._actors.append(remote.remote(process, environment, path, os.getcwd()))

    def _begin(self, process: int) -> None:
        """Run the program in a process."""
        self._calls[self._actors[process].run.remote(self.program)] = self._on_end(process)
        self._printing.add(process)
        self._ask_for_output(process)

    def _options(self, node: ClusterNode) -> dict[str, Any]:
        """Options of the actor on a node."""
        strategies = self._ray.util.scheduling_strategies
        more = {name: value for name, value in self.resources.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": self.resources.get("CPU", 0),
            "num_gpus": self.resources.get("GPU", 0),
            "resources": more,
            "max_restarts": 0,
            "concurrency_groups": GROUPS,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node.id, soft=False),
        }

    def _await(self, calls: Sequence[Any]) -> None:
        """Wait for one call of each actor. Raises ConfigurationError with the actors that did not answer."""
        _, missing = self._ray.wait(list(calls), num_returns=len(calls), timeout=SECONDS_TO_START)
        names = [self._roster.name(calls.index(call)) for call in missing]
        if names:
            raise ConfigurationError(
                f"expected all {len(calls)} ranks to begin within {SECONDS_TO_START:g} s. Missing: {', '.join(names)}"
            )
        for process, call in enumerate(calls):
            try:
                self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                raise ConfigurationError(
                    f"expected {self._roster.name(process)} to begin. Received: {_first_line(error)}"
                ) from error

    # Events

    def _wait(self, seconds: float) -> None:
        """Handle the calls that return within these seconds."""
        if not self._calls:
            time.sleep(seconds)
            return
        ready, _ = self._ray.wait(list(self._calls), timeout=seconds)
        for call in ready:
            self._calls.pop(call)(call)

    def _on_end(self, process: int) -> Callable[[Any], None]:
        def end(call: Any) -> None:
            try:
                status = self._ray.get(call)
            except self._ray.exceptions.RayActorError:
                self._lose(process, NODE_LOST if self._node_has_left(process) else PROCESS_LOST)
                return
            if process in self._joining:
                ended = NotJoined.status if status == CANNOT_JOIN else status
                self._fail_to_join(process, f"its program has ended, with exit status {ended}")
                return
            if process not in self._roster.alive:  # the other ranks have given it up
                return
            if status in REASONS:
                self._lose(process, REASONS[status])
                return
            if status == SIGNALLED:
                status = TERMINATED if self._signals else self._end_without(process)
            self._statuses[process] = status
            if status and (process == self._first or status not in STOPPED):
                self._end_within(0)
            elif status or process == self._first:
                self._end_within(SECONDS_TO_STOP)

        return end

    def _end_without(self, process: int) -> int:
        """Report that training has ended with a checkpoint, because a rank that the others need was asked to leave.
        Returns the exit status."""
        if LOST not in self._statuses.values():
            say("a rank was asked to leave without which the others cannot go on. Training has ended with a checkpoint")
        return LOST

    def _lose(self, process: int, reason: str) -> None:
        """Continue without a process, or end if that is impossible."""
        if process in self._joining:
            self._fail_to_join(process, reason)
        if process not in self._roster.alive:
            return
        roster, name, first = self._roster, self._roster.name(process), process == self._first
        change = roster.lose(process, reason)
        lost = f"{name} {'left' if reason in REASONS.values() else 'was lost'}: {reason}"
        if self._deadline is not None and self._statuses:
            if not any(self._statuses.values()):  # otherwise it is a consequence of another rank's end
                say(f"{lost}. Other ranks have ended")
            return
        late = first and bool(self._statuses)  # others have ended, and cannot take its place
        if late or not change.view.ranks:
            say(f"{lost}. Training ends: {'the other ranks have ended' if late else 'there are no others'}")
            self._statuses[process] = LOST
            self._end_within(0)
        self._announce(change)
        if self._stops and change.view.ranks:
            self._ask_to_stop()  # once more: it may be another rank 0
        elif self._deadline is None and not change.view.enough:
            self._wait_for_ranks(lost)

    def _wait_for_ranks(self, lost: str) -> None:
        """Wait for nodes that join, because a loss has left too few ranks, or end if none can join."""
        needed = f"expected at least {self.least} ranks"
        if self._can_grow():
            self._waits_until = min(self._waits_until, time.monotonic() + SECONDS_TO_JOIN)
            say(f"{lost}. Training waits up to {SECONDS_TO_JOIN:g} s for nodes that join: {needed}")
        else:
            say(f"{lost}. Training ends: {needed}, and no others can join")
            self._stop(LOSS)

    def _can_grow(self) -> bool:
        """Whether ranks can join now. True if rank 0, which decides this, does not answer or has just been lost,
        too."""
        if self.connection.local and not (self._faults_to_join or self._prepares()):
            return False
        try:
            return self._journal() is not None
        except (self._ray.exceptions.RayActorError, TimeoutError):
            return True

    def _prepares(self) -> bool:
        """Whether a rank prepares to join."""
        return not all(self._joining.values())

    def _limit_pause(self) -> None:
        """Limit the pause at the start: a restarted program may have too few ranks, and pauses until others join."""
        if not self._roster.change.view.enough:
            self._waits_until = time.monotonic() + SECONDS_TO_JOIN

    def _check_wait(self) -> None:
        """End training if too few ranks have joined. A rank that prepares to join has the time that ranks have at the
        start."""
        limit = self._waits_until + (SECONDS_TO_START if self._prepares() else 0)
        if self._deadline is None and time.monotonic() >= limit:
            say(f"expected at least {self.least} ranks within {SECONDS_TO_JOIN:g} s. Training ends")
            self._stop(LOSS)

    def _announce(self, change: ViewChange) -> None:
        """Tell all ranks of a view."""
        for process in change.processes:
            control = self._actors[process].change_view.options(concurrency_group="control")
            control.remote(change, self._actors)

    def _node_has_left(self, process: int) -> bool:
        """Whether the node of a process has left, according to the head. False while the head does not answer."""
        nodes = self._lookout.nodes(SECONDS_TO_LOOK)
        return nodes is not None and self._nodes[process].id not in {node.id for node in nodes}

    # Joins

    def nodes_to_join(self) -> list[ClusterNode]:
        """The nodes on which a rank could join, one on each: those on which fewer ranks than allowed were started, or
        the first node if a fault requests a join."""
        if self._faults_to_join:
            return [self._nodes[0]]
        if self.connection.local or (self.most is not None and len(self._roster.alive) >= self.most):
            return []
        used = [node.id for node in self._nodes]
        nodes = self._lookout.nodes(LOOK) or ()
        return [node for node in nodes if used.count(node.id) < (self.per_host or node.slots)]

    def ask_for_journal(self) -> Journal | None:
        """Rank 0's journal; None if no rank can join now, or rank 0 does not answer."""
        try:
            return self._journal()
        except (self._ray.exceptions.RayActorError, TimeoutError):
            return None

    def _journal(self) -> Journal | None:
        call = self._actors[self._first].journal.options(concurrency_group="control").remote()
        return cast("Journal | None", self._ray.get(call, timeout=SECONDS_TO_ANSWER))

    def create(self, node: ClusterNode) -> int:
        """Create a process on a node. Returns its number."""
        self._faults_to_join = max(0, self._faults_to_join - 1)
        process = self._roster.add(node.host)
        self._nodes.append(node)
        self._joining[process] = ""
        self._new_actor(process, node)
        return process

    def prepare(self, process: int, journal: Journal) -> bool:
        """Run the program in a process, and wait until the others have paused for it; see `Grower`."""
        actor, number = self._actors[process], len(journal.ranks)
        ranks = (*journal.ranks, Rank(number, self._roster.host(process)))
        change = ViewChange(View(0, ranks), (*range(number), process))
        launch = self._roster.launch_of(process, number)
        joins = {"concurrency_group": "joins"}
        try:
            self._ray.get(actor.join.remote(change, self._actors, launch, journal), timeout=SECONDS_TO_START)
            self._growth.later(lambda: self._begin(process))
            while (arrived := self._ray.get(actor.await_arrival.options(**joins).remote())) is not None:
                answer = self._ask_for_pause(*arrived)
                if answer is None:
                    return True
                self._ray.get(actor.go_on.options(**joins).remote(answer))
            return False
        except self._ray.exceptions.RayError as error:
            late = isinstance(error, TimeoutError)
            reason = f"it has not begun within {SECONDS_TO_START:g} s" if late else _first_line(error)
            self._growth.later(lambda: self._fail_to_join(process, reason))
            return False

    def _ask_for_pause(self, known: int, trains: bool) -> Journal | str | None:
        """The answer of rank 0 to a rank that joins; see `Admission.request`. If rank 0 is lost, its successor
        answers."""
        while True:
            first = self._first
            ask = self._actors[first].request_pause.options(concurrency_group="joins")
            try:
                return cast("Journal | str | None", self._ray.get(ask.remote(known, trains=trains)))
            except self._ray.exceptions.RayActorError:
                deadline = time.monotonic() + SECONDS_TO_START
                while self._roster.alive[:1] == (first,) and time.monotonic() < deadline:
                    time.sleep(LOOK)  # the launcher's thread has not noticed it yet
                if self._roster.alive[:1] in ((), (first,)):
                    raise

    def admit(self, process: int) -> None:
        """Make a process, for which the others have paused, a rank. If it has ended, they continue without it."""
        reason = self._joining.pop(process)
        change = self._roster.join(process)
        if change.view.enough:
            self._waits_until = math.inf
        self._announce(change)
        if reason:
            self._lose(process, reason)

    def _check_head(self) -> None:
        """End training, while rank 0 can still be reached, if the head of the cluster is lost."""
        if not self.head_lost and self._lookout.silent >= SECONDS_FOR_HEAD:
            self.head_lost = True
            say(f"the head of the Ray cluster has not answered for {SECONDS_FOR_HEAD:g} s. Training ends")
            if self._deadline is None:
                self._stop(LOSS)
            self._end_within(SECONDS_WITHOUT_HEAD)

    def _fail_to_join(self, process: int, reason: str) -> None:
        if not self._joining.get(process, reason) and self._deadline is None:
            self._joining[process] = reason
            say(f"a rank on {self._roster.host(process)} did not join: {reason}")

    def _ask_for_output(self, process: int) -> None:
        call = self._actors[process].take_output.options(concurrency_group="output").remote()
        self._calls[call] = lambda call: self._print(process, call)

    def _print(self, process: int, call: Any) -> None:
        """Print the output of a process."""
        try:
            texts, more = self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            self._printing.discard(process)
            return
        late = self._has_ended() and process not in self._statuses
        late |= process in self._joining and self._deadline is not None  # it only reports that it cannot join any more
        for error, text in [] if late else texts:
            print(text, end="", file=sys.stderr if error else sys.stdout, flush=True)
        if more:
            self._ask_for_output(process)
        else:
            self._printing.discard(process)

    # End

    def _has_ended(self) -> bool:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return True
        return not self._running()

    def _end_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _print_last(self) -> None:
        """Print the last output of the processes that have ended. The output of others is dropped: their errors are
        consequences."""
        deadline = time.monotonic() + SECONDS_TO_PRINT
        while self._printing & set(self._statuses) and time.monotonic() < deadline:
            self._wait(LOOK)

    def _pass_signals_on(self) -> None:
        """Ask rank 0 to end training after the first signal, and kill all ranks after the second one."""
        if not self._signals:
            return
        if len(self._signals) > 1:
            self._end_within(0)
        elif self._deadline is None:
            self._stop(self._signals[0])

    def _stop(self, signal: int) -> None:
        """End training because of a signal or `LOSS`."""
        self._stops = signal
        self._ask_to_stop()
        self._end_within(SECONDS_TO_STOP)

    def _ask_to_stop(self) -> None:
        self._actors[self._first].request_stop.options(concurrency_group="control").remote(self._stops)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
