"""Runners that share a process and a GPU: all of Crossbow's in one, all of PyTorch's in another.

A process for each would spend most of a short benchmark in importing and in starting CUDA. Runners that are not asked
to run have nothing under way; their memory stays.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from benchmarks.contest import Contestant, Team
from crossbow.types import CrossbowError

T = TypeVar("T")

SECONDS_TO_ANSWER = 120.0
"""How long a process may take to import, or to make a runner."""


@dataclass(frozen=True)
class HostTime:
    """Microseconds of the host's time, medians over tasks."""

    task: float
    """To submit a task, all in all."""
    launch: float | None = None
    """Of these, inside the launches of its work (without graphs: inside all its calls)."""
    tick: float | None = None
    """To submit the end of a tick, the learners' steps left out; a mean."""


class GpuRunner(Protocol):
    """Trains on a GPU."""

    def warm_up(self) -> float:
        """Run until everything is compiled and captured; seconds of the shortest stretch that can be run."""

    def run(self, begin: float, end: float) -> float:
        """Train until `end`; images per second since `begin`, both on the clock of `time.monotonic`."""

    def observe(self, end: float) -> HostTime:
        """Train until then, with a clock on the host's calls."""

    def close(self) -> None: ...


class Kind(Protocol):
    """A class of runners."""

    def __call__(self, *positions: Any, **arguments: Any) -> GpuRunner: ...

    def about(self, device: int) -> dict[str, str]:
        """GPU and versions. Raises an exception whose text says what is missing."""

    def free_memory(self, device: int) -> int | None:
        """Bytes of the GPU that nobody has, when all that can be given back is; None where nobody can say."""


@dataclass(frozen=True)
class Refused:
    """What did not work, and why."""

    reason: str
    trace: str = ""


@dataclass(frozen=True)
class Ready:
    """A runner that is warm."""

    shortest: float
    """Seconds that it runs at least."""
    memory: int | None
    """Bytes of the GPU."""


class Host:
    """Makes runners of one kind, and runs one of them at a time. What goes wrong with one is an answer, and the others
    stay."""

    def __init__(self, kind: Kind, device: int = 0) -> None:
        self._kind, self._device = kind, device
        self._runners: dict[str, GpuRunner] = {}

    def about(self) -> dict[str, str] | Refused:
        """GPU and versions, or why there are none."""
        return _answer(lambda: self._kind.about(self._device))

    def add(self, name: str, arguments: Mapping[str, Any]) -> Ready | Refused:
        """Make a runner and warm it up."""

        def make() -> Ready:
            before = self._kind.free_memory(self._device)
            runner = self._runners[name] = self._kind(device=self._device, **arguments)
            shortest, after = runner.warm_up(), self._kind.free_memory(self._device)
            return Ready(shortest, None if before is None or after is None else max(before - after, 0))

        made = _answer(make)
        if isinstance(made, Refused) and name in self._runners:
            self.remove(name)
        return made

    def run(self, name: str, warm_up: float, seconds: float) -> float | Refused:
        """Images per second, after `warm_up` seconds of running."""
        begin = time.monotonic() + warm_up
        return _answer(lambda: self._runners[name].run(begin, begin + seconds))

    def observe(self, name: str, seconds: float) -> HostTime | Refused:
        """Run for so long, with a clock on the host's calls."""
        return _answer(lambda: self._runners[name].observe(time.monotonic() + seconds))

    def convolutions(self) -> list[dict[str, Any]] | Refused:
        """The algorithms of convolutions, where the kind of runner knows them."""
        return _answer(self._kind.convolutions)  # type: ignore[attr-defined]

    def remove(self, name: str) -> Refused | None:
        """Close a runner and give back its memory."""

        def remove() -> None:
            runner = self._runners.pop(name, None)
            if runner is not None:
                runner.close()

        answer = _answer(remove)
        gc.collect()
        return answer

    def clear(self) -> Refused | None:
        """Close all runners."""
        answers = [self.remove(name) for name in list(self._runners)]
        _answer(lambda: self._kind.free_memory(self._device))
        return next((answer for answer in answers if answer is not None), None)

    def close(self) -> None:
        self.clear()


def _answer(work: Callable[[], T]) -> T | Refused:
    try:
        return work()
    except Exception as error:
        text = str(error).strip().split("\n", 1)[0]
        if not text or not isinstance(error, CrossbowError):
            text = f"{type(error).__name__}: {text}".rstrip(": ")
        return Refused(text, traceback.format_exc())


class Place(Protocol):
    """Where a host is."""

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        """Call a method of the host. Raises ContestError where no answer comes within `timeout` seconds."""

    def close(self) -> None: ...


class ProcessPlace:
    """A host in a process of its own."""

    def __init__(self, name: str, kind: Kind, device: int) -> None:
        self._team = Team(Contestant(name, Host, {"kind": kind, "device": device}))

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        (connection,) = self._team._connections
        connection.send((method, arguments))
        return self._team._receive(connection, timeout)

    def wait_until_ready(self) -> None:
        """Return when the process has begun to answer."""
        self._team.wait_until_ready()

    def close(self) -> None:
        self._team.close()


def start_process(name: str, kind: Kind, device: int) -> Place:
    """A host in a process of its own, which answers."""
    place = ProcessPlace(name, kind, device)
    try:
        place.wait_until_ready()
    except BaseException:
        place.close()
        raise
    return place
