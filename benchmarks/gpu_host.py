"""Runners that share a process and a GPU: all of Crossbow's in one process, all of PyTorch's in another.

With a process for each, a short benchmark would spend most of its time in imports and in starting CUDA. A runner that
is not running has no pending work, but keeps its memory.
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
"""Time limit for a process to import, or to create a runner."""


@dataclass(frozen=True)
class HostTime:
    """Microseconds of the host's time, medians over tasks."""

    task: float
    """Total time to submit a task."""
    launch: float | None = None
    """Part of it in the launches of its work (without graphs: in all its calls)."""
    tick: float | None = None
    """Mean time to submit the end of a tick, without the learners' steps."""


class GpuRunner(Protocol):
    """Trains on a GPU."""

    def warm_up(self) -> float:
        """Run until everything is compiled and captured. Returns the duration of the shortest possible run in
        seconds."""

    def run(self, begin: float, end: float) -> float:
        """Train until `end`. Returns images per second since `begin`; both are times of `time.monotonic`."""

    def observe(self, end: float) -> HostTime:
        """Train until `end`, and time the host's calls."""

    def close(self) -> None: ...


class Kind(Protocol):
    """A class of runners."""

    def __call__(self, *positions: Any, **arguments: Any) -> GpuRunner: ...

    def about(self, device: int) -> dict[str, str]:
        """GPU and versions. Raises an exception whose message says what is missing."""

    def free_memory(self, device: int) -> int | None:
        """Free bytes of the GPU after cached memory is released; None if unknown."""


@dataclass(frozen=True)
class Refused:
    """A failure, with its reason."""

    reason: str
    trace: str = ""


@dataclass(frozen=True)
class Ready:
    """A runner that is warmed up."""

    shortest: float
    """Minimum duration of a run in seconds."""
    memory: int | None
    """Bytes of GPU memory."""


class Host:
    """Creates runners of one kind, and runs one of them at a time. Failures are returned as answers, and other runners
    are not affected."""

    def __init__(self, kind: Kind, device: int = 0) -> None:
        self._kind, self._device = kind, device
        self._runners: dict[str, GpuRunner] = {}

    def about(self) -> dict[str, str] | Refused:
        """GPU and versions, or the reason why there are none."""
        return _answer(lambda: self._kind.about(self._device))

    def add(self, name: str, arguments: Mapping[str, Any]) -> Ready | Refused:
        """Create a runner and warm it up."""

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
        """Run for the given time, and time the host's calls."""
        return _answer(lambda: self._runners[name].observe(time.monotonic() + seconds))

    def convolutions(self) -> list[dict[str, Any]] | Refused:
        """Algorithms of convolutions, if the kind of runner knows them."""
        return _answer(self._kind.convolutions)  # type: ignore[attr-defined]

    def remove(self, name: str) -> Refused | None:
        """Close a runner and release its memory."""

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


class HostConnection(Protocol):
    """Connection to a host."""

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        """Call a method of the host. Raises ContestError if there is no answer within `timeout` seconds."""

    def close(self) -> None: ...


class HostProcess:
    """A host in a separate process."""

    def __init__(self, name: str, kind: Kind, device: int) -> None:
        self._team = Team(Contestant(name, Host, {"kind": kind, "device": device}))

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        (answer,) = self._team.ask(method, *arguments, timeout=timeout)
        return answer

    def wait_until_ready(self) -> None:
        """Wait until the process answers."""
        self._team.wait_until_ready()

    def close(self) -> None:
        self._team.close()


def start_process(name: str, kind: Kind, device: int) -> HostConnection:
    """A host in a separate process."""
    place = HostProcess(name, kind, device)
    try:
        place.wait_until_ready()
    except BaseException:
        place.close()
        raise
    return place
