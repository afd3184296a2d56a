"""The memory of GPUs that are none: what was allocated, until when it lives, and who has used it in what order.

Every stream and every thread of the host has a vector clock: of each stream, the last operation that has happened
before whatever it does next. An event carries the clock of the stream that recorded it to those who wait for it. Two
operations of which neither is in the other's clock may happen at once, or in either order; if one of them writes what
the other one uses, that is a race, whatever order they happened to be done in here.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from crossbow.host_memory import aligned_zeros
from crossbow.types import Array, address

POISON = 0xDB
"""What freed memory is filled with."""
MOST_POISONED = 1 << 20
"""Bytes at the beginning of freed memory that are filled. Larger pieces, workspaces, nobody has touched as a whole."""
Clock = dict[int, int]
"""By stream the number of its last operation that is known to have happened."""


class FakeError(AssertionError):
    """A call that CUDA would refuse, or that would do harm."""


class RaceError(FakeError):
    """Two operations use the same memory, in no order that anything holds them to."""


@dataclass(eq=False)
class Allocation:
    """A piece of memory, and the last operations that used its parts."""

    start: int
    end: int
    device: int | None
    """None: of the host, pinned."""
    memory: Array = field(repr=False)
    """Kept as long as the fake, so that nothing else gets these addresses."""
    alive: bool = True
    cleared: tuple[int, int] = (0, 0)
    """Stream and number of the operation that wrote the zeros."""
    uses: dict[int, dict[tuple[int, int, bool], tuple[int, str]]] = field(default_factory=dict, repr=False)
    """By stream, and then by first byte, end and whether it was written: the last such operation's number and name."""
    latest: Clock = field(default_factory=dict, repr=False)
    """By stream the last operation that used any part."""
    written: dict[tuple[int, int], tuple[int, int, str]] = field(default_factory=dict, repr=False)
    """Of pinned memory, by first byte and end: the stream, the number and the name of the last operation that wrote."""
    read: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    """Of pinned memory, likewise: how many operations had been submitted when the host last read."""

    def free(self) -> None:
        self.alive = False
        ctypes.memset(self.start, POISON, min(self.end - self.start, MOST_POISONED))

    def __str__(self) -> str:
        place = "the host's pinned memory" if self.device is None else f"the memory of cuda:{self.device}"
        return f"{self.end - self.start} bytes at {self.start:#x} in {place}"


@dataclass(frozen=True)
class Use:
    """What an operation reads or writes."""

    allocation: Allocation
    start: int
    end: int
    writes: bool
    name: str
    """Of the function, and of its argument."""


class DeviceArray:
    """An array in the GPU's memory: what CuPy's arrays do and Crossbow uses, and nothing that reads in passing."""

    def __init__(self, array: NDArray[Any], used: Callable[[str, NDArray[Any], bool], None]) -> None:
        self._array, self._used = array, used

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self._array.__array_interface__)

    def __array__(self, *arguments: Any, **options: Any) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __iter__(self) -> Any:
        raise TypeError("iterating over an array of a GPU would copy every element")

    def __getitem__(self, index: Any) -> DeviceArray:
        taken = self._array[index]
        if not isinstance(taken, np.ndarray):
            taken = self._array[index : index + 1].reshape(())
        return DeviceArray(taken, self._used)

    def __len__(self) -> int:
        return len(self._array)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "size", "nbytes", "itemsize", "ndim", "strides", "flags"):
            return getattr(self._array, name)
        if name in ("view", "reshape", "transpose", "ravel"):
            return lambda *arguments, **options: DeviceArray(
                getattr(self._array, name)(*arguments, **options), self._used
            )
        raise AttributeError(f"an array of a GPU has no {name!r} here")

    def get(self) -> NDArray[Any]:
        self._used("get", self._array, False)
        return self._array.copy()

    def set(self, values: NDArray[Any]) -> None:
        assert type(values) is np.ndarray
        assert (values.shape, values.dtype) == (self.shape, self.dtype)
        self._used("set", self._array, True)
        self._array[...] = values

    def fill(self, value: float) -> None:
        self._used("fill", self._array, True)
        self._array.fill(value)


class PinnedArray(np.ndarray[Any, np.dtype[Any]]):
    """Pinned memory of the host, which says what the host takes from it by an index."""

    taken: Callable[[NDArray[Any]], None] | None = None

    def __array_finalize__(self, other: Any) -> None:
        self.taken = getattr(other, "taken", None)

    def __getitem__(self, index: Any) -> Any:
        if self.taken is not None:
            whole = self.view(np.ndarray)
            part = whole[index]
            if not isinstance(part, np.ndarray):
                part = whole[(*index, ...) if isinstance(index, tuple) else (index, ...)]
            self.taken(part)
        return super().__getitem__(index)


def extent(array: Any) -> tuple[int, int]:
    """The first byte of an array of either memory, and the one behind its last."""
    first, end = byte_bounds(array._array if isinstance(array, DeviceArray) else array)
    return int(first), int(end) if array.size else int(first)


class Memory:
    """What was allocated, and where."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []
        self._lock = threading.Lock()

    def new(self, nbytes: int, device: int | None) -> tuple[NDArray[Any], Allocation]:
        """Zeroed memory, which lives as long as any view of what is returned."""
        memory = aligned_zeros(max(nbytes, 1), 256)
        allocation = Allocation(address(memory), address(memory) + max(nbytes, 1), device, memory)
        with self._lock:
            place = bisect.bisect(self._starts, allocation.start)
            self._starts.insert(place, allocation.start)
            self._allocations.insert(place, allocation)
        owner = (ctypes.c_ubyte * max(nbytes, 1)).from_address(allocation.start)
        weakref.finalize(owner, allocation.free).atexit = False
        return np.frombuffer(owner, np.uint8)[:nbytes], allocation

    def held(self, device: int) -> int:
        """Bytes of what is alive on a device."""
        with self._lock:
            return sum(made.end - made.start for made in self._allocations if made.alive and made.device == device)

    def find(self, start: int) -> Allocation | None:
        """The allocation, alive or not, that an address is of."""
        with self._lock:
            place = bisect.bisect(self._starts, start) - 1
            found = self._allocations[place] if place >= 0 else None
        return found if found is not None and start < found.end else None

    def use(self, name: str, start: int, end: int, writes: bool, *, device: int | None, strict: bool) -> list[Use]:
        """What is used, checked: a range of live memory that the device can reach.

        Without `strict` it may be an array that is no GPU's, as tests of single kernels give them. device: None where
        several are asked.
        """
        found = self.find(start)
        if found is None:
            if strict:
                raise FakeError(
                    f"{name}: expected the GPU's memory. Received: {start:#x}, which nobody allocated there"
                )
            return []
        if end > found.end:
            raise FakeError(f"{name}: {end - start} bytes at {start:#x} are not within {found}")
        if None not in (device, found.device) and device != found.device:
            raise FakeError(f"{name}: expected memory of cuda:{device}. Received: {found}")
        use = Use(found, start, end, writes, name)
        check_alive(use)
        return [use]


def check_alive(use: Use) -> None:
    if not use.allocation.alive:
        raise FakeError(f"{use.name}: its memory was freed: {use.allocation}")


class Order:
    """What happens before what."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """Of streams, in messages."""
        self._streams: dict[int, Clock] = {}
        self._threads = threading.local()
        self._seen: Clock = {}
        """What any thread of the host has seen to have happened."""

    def stream(self, stream: int) -> Clock:
        return self._streams.setdefault(stream, {})

    @property
    def host(self) -> Clock:
        """Of the calling thread. What it is told by another one is not known here."""
        if not hasattr(self._threads, "clock"):
            self._threads.clock = {}
        clock: Clock = self._threads.clock
        return clock

    def seen(self, clock: Clock) -> None:
        """The calling thread has waited for all this."""
        join(self.host, clock)
        join(self._seen, clock)

    def submit(self, stream: int, uses: Sequence[Use], *, after_all_seen: bool = False, cleared: bool = True) -> None:
        """An operation goes to a stream. Raises RaceError where it may meet another one.

        after_all_seen: what any thread has waited for is before it, as threads that copy by themselves tell each other;
        cleared: whether somebody must have waited for the clearing of the memory.
        """
        clock = self.stream(stream)
        join(clock, self._seen if after_all_seen else self.host)
        number = clock[stream] = clock.get(stream, 0) + 1
        for use in uses:
            self._check(stream, use, clock, cleared)
            own = use.allocation.uses.setdefault(stream, {})
            own[use.start, use.end, use.writes] = (number, use.name)
            use.allocation.latest[stream] = number

    def _check(self, stream: int, use: Use, clock: Clock, cleared: bool) -> None:
        clearing, number = use.allocation.cleared
        if cleared and clearing not in (0, stream) and clock.get(clearing, 0) < number:
            raise self._race(stream, use, clearing, "zeros")
        for other, latest in use.allocation.latest.items():
            if other == stream or (known := clock.get(other, 0)) >= latest:
                continue
            for (start, end, written), (number, name) in use.allocation.uses[other].items():
                if number > known and (written or use.writes) and start < use.end and use.start < end:
                    raise self._race(stream, use, other, name)

    def _race(self, stream: int, use: Use, other: int, name: str) -> RaceError:
        here, there = (self.names.get(number, f"stream {number}") for number in (stream, other))
        what = "writes" if use.writes else "reads"
        return RaceError(
            f"a race: {use.name} on {here} {what} memory that {name} on {there} uses, and neither waits for the other: "
            f"{use.end - use.start} bytes at {use.start:#x} of {use.allocation}"
        )


def join(clock: Clock, other: Clock) -> None:
    """Let the first clock know what the other does."""
    for stream, number in other.items():
        if number > clock.get(stream, 0):
            clock[stream] = number
