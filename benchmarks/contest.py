"""Contestants that take turns, each in its own processes, which are started once and idle while another runs. With
`apart`, for those that need too much memory together, processes are started for each turn and end after it.

A process is given two times: it runs from the moment it receives them (warm-up), and counts from `begin` to `end`. So
it is warm when it counts, several processes of one contestant count over the same interval, and the threads, allocator
and OpenMP runtime of one contestant do not disturb another.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol

from benchmarks.handover import handover
from benchmarks.machine import busy_seconds, process_seconds

SECONDS_TO_START = 300
"""Time limit for a process to import, compile and run its first step."""
SECONDS_TO_END = 10
QUIET = 0.1
"""Maximum number of processors that other programs keep busy on a quiet machine."""
LISTEN = 0.5
"""Seconds of observation to decide whether the machine is quiet."""
NEAR = 80e-9
"""Maximum time in seconds in which a flag travels between cores that share a cache."""


class Closable(Protocol):
    """An object that runs in one process. `Contest.turns` calls any other method by its name."""

    def close(self) -> None: ...


class Runner(Closable, Protocol):
    """Trains in one process, as `Contest.rounds` measures."""

    def run(self, begin: float, end: float) -> float:
        """Train until `end`. Returns images per second since `begin`; both are times of `time.monotonic`."""


@dataclass(frozen=True)
class Contestant:
    """Something to measure: `processes` equal runners, created in their own processes."""

    name: str
    make: Callable[..., Closable]
    """A module's class or function, because it must be importable in another process."""
    arguments: Mapping[str, Any]
    processes: int = 1


class ContestError(RuntimeError):
    """A contestant failed. The message contains its traceback."""


class Team:
    """The running processes of a contestant."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(contestant.processes):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, contestant.make, contestant.arguments), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def wait_until_ready(self) -> None:
        for connection in self._connections:
            self._receive(connection, SECONDS_TO_START)

    @property
    def numbers(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self._processes if process.pid is not None]

    def measure(self, warm_up: float, seconds: float) -> float:
        """Images per second of all processes together, after `warm_up` seconds of running."""
        begin = time.monotonic() + warm_up
        rates: list[float] = self.ask("run", begin, begin + seconds)
        return sum(rates)

    def ask(self, method: str, *arguments: Any, timeout: float | None = None) -> list[Any]:
        """Call a method of every runner at the same time. Returns the answers. Raises ContestError if one does not come
        within `timeout` seconds."""
        try:
            for connection in self._connections:
                connection.send((method, arguments))
        except BrokenPipeError:
            raise self._end() from None
        return [self._receive(connection, timeout) for connection in self._connections]

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it may have ended
                connection.send(None)
        for process in self._processes:
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.terminate()
                process.join()

    def _end(self) -> ContestError:
        """The error for a process that has ended without an answer."""
        end = "its process ended without an answer"
        for process in self._processes:
            process.join(SECONDS_TO_END)
            if process.exitcode == -signal.SIGKILL:
                end = "its process was killed. There may be too little memory"
        return ContestError(f"{self.contestant.name}: {end}")

    def _receive(self, connection: Connection, timeout: float | None = None) -> Any:
        name = self.contestant.name
        try:
            if not connection.poll(timeout):
                raise ContestError(f"{name}: expected an answer within {timeout:.0f} s")
            failed, answer = connection.recv()
        except EOFError:
            raise self._end() from None
        if failed:
            raise ContestError(f"{name} failed:\n{answer}")
        return answer


@dataclass(frozen=True)
class _Round:
    results: Mapping[str, Any]
    others: float
    handover: float | None

    @property
    def disturbance(self) -> tuple[bool, float]:
        """Sort key of disturbances: cores that are far apart are the worst."""
        return (self.handover is not None and self.handover > NEAR, self.others)

    @property
    def disturbed(self) -> bool:
        return self.disturbance > (False, QUIET)


class Contest:
    """The teams of all contestants; a context manager."""

    def __init__(self, contestants: Sequence[Contestant], patience: float = 0.0, *, apart: bool = False) -> None:
        """patience: maximum total time in seconds to wait until the machine is quiet and its cores are close together,
        and to repeat turns that other programs or a move of the cores disturbed. apart: whether the processes of a
        contestant run only during its turns, so that the contestants do not need memory at the same time."""
        self.patience = patience
        self.apart = apart
        self.contestants = {contestant.name: contestant for contestant in contestants}
        self.teams: dict[str, Team] = {}
        """The running teams by name."""
        self.others: float | None = None
        """Processors that other programs kept busy during the rounds that count; None if unknown."""
        self.handovers: list[float] = []
        """Time in seconds in which a flag travels from one core to another, at the end of each of these rounds."""
        if apart:
            return
        try:
            for contestant in contestants:
                self.teams[contestant.name] = Team(contestant)
            for team in self.teams.values():
                team.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[Team]:
        """The team of a contestant. If it does not run yet, it is started, and ended with the `with` block."""
        if name in self.teams:
            yield self.teams[name]
            return
        team = self.teams[name] = Team(self.contestants[name])
        try:
            team.wait_until_ready()
            yield team
        finally:
            del self.teams[name]
            team.close()

    def rounds(self, number: int, warm_up: float, seconds: float) -> dict[str, list[float]]:
        """Images per second of every contestant in every round.

        Rounds are measured as by `turns`.
        """

        def fill_caches(team: Team) -> None:  # the very first run also initialises lazily
            team.measure(warm_up, seconds / 2)

        if not self.apart:
            for team in self.teams.values():
                fill_caches(team)
        return self._rounds(number, lambda team: team.measure(warm_up, seconds), fill_caches if self.apart else None)

    def turns(self, number: int, method: str, *arguments: Any) -> dict[str, list[Any]]:
        """The answers of every contestant's first process to a method, in every round.

        The order of the contestants rotates, so that none is always first. When patience is exhausted, the least
        disturbed rounds count.
        """
        return self._rounds(number, lambda team: team.ask(method, *arguments)[0])

    def _rounds(
        self, number: int, turn: Callable[[Team], Any], prepare: Callable[[Team], None] | None = None
    ) -> dict[str, list[Any]]:
        kept: list[_Round] = []
        disturbed: list[_Round] = []
        while len(kept) < number:
            self._wait_for_quiet()
            if self.patience <= 0 and disturbed:
                disturbed.sort(key=lambda done: done.disturbance, reverse=True)
                kept.append(disturbed.pop())
                continue
            done = self._round(len(kept) + len(disturbed), turn, prepare)
            again = done.disturbed and self.patience > 0
            (disturbed if again else kept).append(done)
        self.handovers = [done.handover for done in kept if done.handover is not None]
        if busy_seconds() is not None:
            self.others = sum(done.others for done in kept) / number
        return {name: [done.results[name] for done in kept] for name in self.contestants}

    def ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a contestant with one process, undisturbed if patience allows. Returns the answer."""
        answers: list[Any] = []
        with self.running(name) as team:
            while True:
                self._wait_for_quiet()
                others = self._processors_of_others(lambda: answers.extend(team.ask(method, *arguments)))
                if self.patience <= 0 or not _Round({}, others, handover()).disturbed:
                    return answers[-1]

    def _wait_for_quiet(self) -> None:
        while self.patience > 0:
            others = self._processors_of_others(time.sleep, LISTEN)
            if others <= QUIET and (handover() or 0.0) <= NEAR:
                return

    def _round(self, number: int, turn: Callable[[Team], Any], prepare: Callable[[Team], None] | None) -> _Round:
        names, results, others = list(self.contestants), {}, []
        start = number % len(names)

        def measure(name: str, team: Team) -> None:
            results[name] = turn(team)

        for name in (*names[start:], *names[:start]):
            with self.running(name) as team:
                if prepare is not None:
                    prepare(team)
                others.append(self._processors_of_others(measure, name, team))
        return _Round(results, statistics.mean(others), handover())

    def _processors_of_others(self, action: Callable[..., None], *arguments: Any) -> float:
        """Number of processors that other programs keep busy during the action; 0 if unknown."""
        before, began = self._seconds_of_others(), time.monotonic()
        action(*arguments)
        elapsed = time.monotonic() - began
        self.patience -= elapsed
        return max(0.0, self._seconds_of_others() - before) / elapsed

    def _seconds_of_others(self) -> float:
        busy = busy_seconds()
        if busy is None:
            return 0.0
        ours = [os.getpid(), *(number for team in self.teams.values() for number in team.numbers)]
        return busy - sum(map(process_seconds, ours))

    def close(self) -> None:
        for team in self.teams.values():
            team.close()

    def __enter__(self) -> Contest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(connection: Connection, make: Callable[..., Closable], arguments: Mapping[str, Any]) -> None:
    """Body of a process: create a runner, and answer requests until told to end."""
    runner: Closable | None = None
    try:
        runner = make(**arguments)
        connection.send((False, None))
        while (request := connection.recv()) is not None:
            method, given = request
            connection.send((False, getattr(runner, method)(*given)))
    except (EOFError, KeyboardInterrupt):
        pass  # the parent has ended, or all processes were interrupted
    except BaseException:
        connection.send((True, traceback.format_exc()))
    finally:
        if runner is not None:
            runner.close()
        connection.close()
