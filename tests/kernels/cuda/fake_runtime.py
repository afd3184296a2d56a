"""Streams, events, graphs without a GPU: work waits in queues, and is done as late, in as bad an order, as it may be.

What is submitted to a stream waits there. When the host waits for something, streams that may go on are picked, one
operation at a time, until that has happened: at random, or always the first in some order. Only the order in a stream
and the events that streams wait for hold: where a wait is missing, some order of the operations uses memory too early
or too late, and numbers come out wrong. Before that, races are found when work is submitted (`fake_memory.py`).
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.types import Array
from tests.kernels.cuda.fake_memory import (
    Clock,
    DeviceArray,
    FakeError,
    Memory,
    Order,
    PinnedArray,
    RaceError,
    Use,
    check_alive,
    extent,
    join,
)

NOT_READY = 600
"""cudaErrorNotReady."""
_contexts = threading.local()
"""Threads keep theirs as long as the process lives."""
HELD_BACK_SECONDS = 1e-3
SECONDS_FOR_OTHERS = 30.0
"""How long threads that are ranks wait for each other."""
UNDEFINED = 0xFF
"""What memory of the host holds while a copy to it is on its way: floating-point numbers are NaN."""


@dataclass(frozen=True)
class Operation:
    """Something that a stream does."""

    run: Callable[[], None]
    name: str
    uses: tuple[Use, ...] = ()
    stream: int = 0
    number: int = 0
    """Among the stream's operations."""
    submitted: int = 0
    """Among those of all streams."""

    def __call__(self) -> None:
        for use in self.uses:
            check_alive(use)
        self.run()


@dataclass(frozen=True)
class _Wait:
    event: int
    version: int


@dataclass(frozen=True)
class _Record:
    event: int
    version: int


@dataclass(frozen=True)
class _ExternalWait:
    """In a graph: each launch waits for the last record before it."""

    event: int


Captured = Operation | _ExternalWait
WAIT_EXTERNAL = 1
"""cudaEventWaitExternal."""


class FakeRuntime:
    """The functions of the CUDA runtime that Crossbow calls, as CuPy names them."""

    streamNonBlocking = 1
    eventDefault, eventDisableTiming, eventBlockingSync = 0, 2, 1
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3
    streamCaptureModeRelaxed = 2

    def __init__(self, devices: int = 1, seed: int = 0, races: bool = True, threads_tell: bool = False) -> None:
        self.memory, self.order, self.devices, self.races = Memory(), Order(), devices, races
        self.threads_tell = threads_tell
        """Whether what any thread has waited for is known to all who submit work: where several do, they tell each
        other, under locks that are not seen here."""
        self.choice, self.in_order = random.Random(seed), seed % 2 == 1
        self._rank: dict[int, float] = {}
        self.lock = threading.RLock()
        self.total_memory = 80 << 30
        """Bytes of each device."""
        self._submitted = 0
        self._doing = Operation(lambda: None, "nothing")
        self.counts: dict[str, int] = defaultdict(int)
        """How often each function was called."""
        self._local = threading.local()
        self._queues: dict[int, deque[Operation | _Wait | _Record]] = {}
        self._device_of: dict[int, int] = {}
        self._event_device: dict[int, int] = {}
        self._clocks: dict[int, Clock] = {}
        """What events stand for."""
        self.strict = False
        """Whether streams may use no memory but what was allocated here, and only after it was cleared: from when a
        library's handle is given a stream, as the engine does. Tests of single kernels take arrays of the host."""
        self._captured: dict[int, list[Captured]] = {}
        self._graphs: dict[int, list[Captured]] = {}
        self._executables: dict[int, list[Captured]] = {}
        self._recorded: dict[int, int] = {}
        self._happened: dict[int, int] = {}
        self._happened_at: dict[int, int] = {}
        """Nanoseconds."""
        self._measures: dict[int, bool] = {}
        self._handles = iter(range(1000, 10**9, 8))
        self.unfinished_sums = 0
        """Sums of several threads' GPUs to which some have not come yet."""
        self.aborted_sums = False
        for device in range(devices):
            self.order.names[_default(device)] = f"the default stream of cuda:{device}"

    # Devices

    def getDevice(self) -> int:
        return getattr(self._local, "device", 0)

    def setDevice(self, device: int) -> None:
        if not 0 <= device < self.devices:
            raise FakeError(f"expected a device below {self.devices}. Received: {device}")
        self._local.device, _contexts.there = device, True

    @property
    def has_context(self) -> bool:
        """Whether the thread has set a device. (Other functions would do, too.)"""
        return getattr(_contexts, "there", False)

    def getDeviceCount(self) -> int:
        return self.devices

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        assert 0 <= device < self.devices
        return {"name": b"no GPU", "major": 9}

    def deviceGetPCIBusId(self, device: int) -> str:
        assert 0 <= device < self.devices
        return f"0000:{device:02X}:00.0"

    def deviceSynchronize(self) -> None:
        with self.lock:
            while self._go_on():
                pass
            device = self.getDevice()
            self.order.seen(self.order.stream(_default(device)))
            for stream, of in self._device_of.items():
                if of == device:
                    self.order.seen(self.order.stream(stream))

    # Memory

    def zeros(self, nbytes: int) -> Any:
        """Zeroed by the current device's default stream, for which other streams do not wait by themselves."""
        with self.lock:
            device = self.getDevice()
            memory, allocation = self.memory.new(nbytes, device)
            self.order.submit(_default(device), ())
            allocation.cleared = (_default(device), self.order.stream(_default(device))[_default(device)])
            return DeviceArray(memory, self._used)

    def memGetInfo(self) -> tuple[int, int]:
        """Free and total bytes of the current device."""
        return self.total_memory - self.memory.held(self.getDevice()), self.total_memory

    def pinned(self, nbytes: int) -> Array:
        memory: PinnedArray = self.memory.new(nbytes, None)[0].view(PinnedArray)
        memory.taken = self._read_by_host
        return memory

    def _read_by_host(self, array: NDArray[Any]) -> None:
        """The host reads pinned memory. Whoever wrote there last must be done, and the calling thread know it."""
        start, end = extent(array)
        with self.lock:
            if start == end or (found := self.memory.find(start)) is None:
                return
            for (first, last), (stream, number, name) in found.written.items():
                if self.races and first < end and start < last and self.order.host.get(stream, 0) < number:
                    raise RaceError(
                        f"a race: the host reads {end - start} bytes at {start:#x} of {found}, which {name} on "
                        f"{self.order.names[stream]} wrote, and has not waited for it"
                    )
            found.read[start, end] = self._submitted

    def written_for_host(self, start: int, end: int) -> None:
        """The operation that is being done has written pinned memory. Nobody may have read there since its submission.

        Which part a kernel writes is not known before; so the host may not be told when it reads too early, but now.
        """
        found, doing = self.memory.find(start), self._doing
        assert found is not None
        for (first, last), submitted in found.read.items():
            if self.races and first < end and start < last and submitted >= doing.submitted:
                raise RaceError(
                    f"a race: the host has read {end - start} bytes at {start:#x} of {found} before {doing.name} on "
                    f"{self.order.names[doing.stream]}, which was submitted before that, wrote them"
                )
        found.written[start, end] = (doing.stream, doing.number, doing.name)

    def _used(self, name: str, array: NDArray[Any], writes: bool) -> None:
        """An array of the GPU is read or written from the host, by its device's default stream.

        What is written need not be there when the call returns: the last of it may still lie in the driver's buffer.
        """
        with self.lock:
            uses = self.memory.use(name, *extent(array), writes, device=None, strict=True)
            device = uses[0].allocation.device or 0
            if name == "fill" and device != self.getDevice():
                raise FakeError(f"fill: expected cuda:{device}, the array's device, to be current")
            self._order(_default(device), uses, after_all_seen=True)
            if not writes:
                self.order.seen(self.order.stream(_default(device)))

    def _order(self, stream: int, uses: Sequence[Use], *, after_all_seen: bool = False) -> int:
        """The number of the operation on its stream."""
        try:
            self.order.submit(stream, uses, after_all_seen=after_all_seen, cleared=self.strict and stream > 0)
        except RaceError:
            if self.races:
                raise
        return self.order.stream(stream)[stream]

    # Streams

    def streamCreateWithFlags(self, flags: int) -> int:
        assert flags == self.streamNonBlocking
        with self.lock:
            stream = next(self._handles)
            self._queues[stream], self._device_of[stream] = deque(), self.getDevice()
            self.order.names[stream] = f"stream {stream} of cuda:{self.getDevice()}"
            return stream

    def streamDestroy(self, stream: int) -> None:
        with self.lock:
            assert not self._queues.pop(stream)

    def streamSynchronize(self, stream: int) -> None:
        self._not_in_capture(stream, "streamSynchronize")
        if stream:  # all that the default stream was given is done
            self._until(lambda: not self._queues[stream])
        with self.lock:
            self.order.seen(self.order.stream(stream or _default(self.getDevice())))

    def streamQuery(self, stream: int) -> int:
        with self.lock:
            self._not_in_capture(stream, "streamQuery")
            if self._queues[stream]:
                self._go_on()
            if self._queues[stream]:
                return NOT_READY
            self.order.seen(self.order.stream(stream))
            return 0

    def enqueue(self, stream: int, run: Callable[[], None], name: str, uses: Sequence[Use] = ()) -> None:
        """Submit: at once on the default stream, else behind what was submitted to the stream before."""
        with self.lock:
            self.counts[name] += 1
            self._enqueue(stream, run, name, uses)

    def _enqueue(self, stream: int, run: Callable[[], None], name: str, uses: Sequence[Use]) -> None:
        with self.lock:
            self._submitted += 1
            if stream == 0:
                default = _default(self.getDevice())
                number = self._order(default, uses, after_all_seen=True)
                self._do(Operation(run, name, tuple(uses), default, number, self._submitted))
                return
            self._check_device(stream, name)
            if stream in self._captured:
                self._captured[stream].append(Operation(run, name, tuple(uses)))
            else:
                number = self._order(stream, uses, after_all_seen=self.threads_tell)
                self._queues[stream].append(Operation(run, name, tuple(uses), stream, number, self._submitted))

    def _do(self, operation: Operation) -> None:
        self._doing = operation
        operation()

    def uses(self, stream: int, ranges: Sequence[tuple[str, int, int, bool]]) -> list[Use]:
        """What an operation on a stream uses: (function and argument, first byte, end, whether it is written)."""
        device, strict = self.device_of(stream), self.strict and stream > 0
        return [use for wanted in ranges for use in self.memory.use(*wanted, device=device, strict=strict)]

    def device_of(self, stream: int) -> int:
        return self._device_of[stream] if stream else self.getDevice()

    def _check_device(self, stream: int, name: str) -> None:
        if stream not in self._queues:
            raise FakeError(f"{name}: there is no stream {stream}")
        if self._device_of[stream] != self.getDevice():
            raise FakeError(
                f"{name}: expected device {self._device_of[stream]}, the stream's, to be current. "
                f"Received: {self.getDevice()}"
            )

    def _not_in_capture(self, stream: int, name: str) -> None:
        if stream in self._captured:
            raise FakeError(f"{name} of a stream that is being captured")

    # Events

    def eventCreateWithFlags(self, flags: int) -> int:
        with self.lock:
            event = next(self._handles)
            self._recorded[event] = self._happened[event] = 0
            self._event_device[event] = self.getDevice()
            self._measures[event] = not flags & self.eventDisableTiming
            return event

    def eventDestroy(self, event: int) -> None:
        del self._recorded[event]

    def eventElapsedTime(self, first: int, second: int) -> float:
        """Milliseconds between two events, both of which must have happened, and measure time."""
        with self.lock:
            for event in (first, second):
                if not self._measures[event]:
                    raise FakeError(f"eventElapsedTime: event {event} was created without timing")
                if self._happened[event] < self._recorded[event] or not self._recorded[event]:
                    raise FakeError(f"eventElapsedTime: event {event} has not happened")
            if self._event_device[first] != self._event_device[second]:
                raise FakeError("eventElapsedTime: the events are of different devices")
            return (self._happened_at[second] - self._happened_at[first]) * 1e-6

    def eventRecord(self, event: int, stream: int) -> None:
        with self.lock:
            if stream in self._captured:
                raise FakeError("an event recorded in a capture is not for other streams")
            self._check_device(stream, "eventRecord")
            if self._event_device[event] != self._device_of[stream]:
                raise FakeError(
                    f"eventRecord: the event is of device {self._event_device[event]}, "
                    f"the stream of {self._device_of[stream]}"
                )
            self._recorded[event] += 1
            self._clocks[event] = dict(self.order.stream(stream))
            self._queues[stream].append(_Record(event, self._recorded[event]))

    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:
        with self.lock:
            if flags != (WAIT_EXTERNAL if stream in self._captured else 0):
                raise FakeError(f"streamWaitEvent: flags {flags}: in a capture, and only there, a wait is external")
            if stream in self._captured:
                self._captured[stream].append(_ExternalWait(event))
            else:
                self.wait_for(stream, event)

    def wait_for(self, stream: int, event: int) -> None:
        """Let a stream wait for the last record of an event so far."""
        join(self.order.stream(stream), self._clocks.get(event, {}))
        self._queues[stream].append(_Wait(event, self._recorded[event]))

    def eventSynchronize(self, event: int) -> None:
        """CUDA allows it to threads that have set no device, but would use memory of device 0 for them."""
        if not _contexts.there:
            raise FakeError("eventSynchronize: expected a thread that has set a device")
        with self.lock:
            version, clock = self._recorded[event], self._clocks.get(event, {})
        self._let_others_submit()
        self._until(lambda: self._happened[event] >= version)
        with self.lock:
            self.order.seen(clock)

    # Copies

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        with self.lock:
            host = {1: source, 2: target, 3: None}[kind]
            found = None if host is None else self.memory.find(host)
            if found is not None and found.device is not None:
                raise FakeError(f"memcpyAsync: expected memory of the host. Received: {found}")
            uses: list[Use] = []
            for place, what, writes in ((source, "source", False), (target, "target", True)):
                name, device = f"memcpyAsync ({what})", self.device_of(stream)
                strict = place != host
                uses += self.memory.use(name, place, place + nbytes, writes, device=device, strict=strict)
                if strict and uses[-1].allocation.device is None:
                    raise FakeError(f"{name}: expected the GPU's memory. Received: {uses[-1].allocation}")
            if host is not None and found is None:
                self._copy_pageable(target, source, nbytes, stream, uses)
                return
            before = None
            if stream and not self.streamIsCapturing(stream):
                before = ctypes.string_at(source, nbytes) if kind == self.memcpyHostToDevice else None

            def copy() -> None:
                if before is not None and before != ctypes.string_at(source, nbytes):
                    raise FakeError(
                        f"memcpyAsync (source): {nbytes} bytes at {source:#x} of {found} were written over by the host "
                        "before they were copied"
                    )
                ctypes.memmove(target, source, nbytes)
                if kind == self.memcpyDeviceToHost:
                    self.written_for_host(target, target + nbytes)

            self.enqueue(stream, copy, "memcpyAsync", uses)
            if stream and kind == self.memcpyDeviceToHost and not self.streamIsCapturing(stream):
                ctypes.memset(target, UNDEFINED, nbytes)

    def _copy_pageable(self, target: int, source: int, nbytes: int, stream: int, uses: Sequence[Use]) -> None:
        """CUDA copies pageable memory through a buffer of its own: the caller may use it again at once."""
        if stream in self._captured:
            raise FakeError("a copy of pageable memory in a capture")
        if stream:
            self._check_device(stream, "memcpyAsync")
            self.streamSynchronize(stream)
        self.counts["memcpyAsync"] += 1
        self._order(stream or _default(self.getDevice()), uses, after_all_seen=True)
        for use in uses:
            check_alive(use)
        ctypes.memmove(target, source, nbytes)
        self.order.seen(self.order.stream(stream or _default(self.getDevice())))

    # Graphs

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        with self.lock:
            assert stream != 0
            assert stream not in self._captured
            self._check_device(stream, "streamBeginCapture")
            self._captured[stream] = []

    def streamEndCapture(self, stream: int) -> int:
        with self.lock:
            graph = next(self._handles)
            self._graphs[graph] = self._captured.pop(stream)
            return graph

    def graphInstantiate(self, graph: int) -> int:
        executable = next(self._handles)
        self._executables[executable] = list(self._graphs[graph])
        return executable

    def graphDestroy(self, graph: int) -> None:
        del self._graphs[graph]

    def graphExecDestroy(self, executable: int) -> None:
        del self._executables[executable]

    def graphLaunch(self, executable: int, stream: int) -> None:
        with self.lock:
            self.counts["graphLaunch"] += 1
            part: list[Operation] = []
            for each in self._executables[executable]:
                if isinstance(each, _ExternalWait):
                    self._launch(part, stream)
                    self.wait_for(stream, each.event)
                    part = []
                else:
                    part.append(each)
            self._launch(part, stream)

    def _launch(self, operations: list[Operation], stream: int) -> None:
        """Submit a part of a graph between two waits."""

        def run() -> None:
            for operation in operations:
                operation()

        uses = {
            (use.allocation, use.start, use.end, use.writes): use for operation in operations for use in operation.uses
        }
        for use in uses.values():
            check_alive(use)
        self._enqueue(stream, run, "graphLaunch", list(uses.values()))

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self._captured

    # The order of things

    def _let_others_submit(self) -> None:
        """Work is begun late: as long as another thread gives more, this one, which waits for some, holds back."""
        if threading.current_thread() is threading.main_thread():
            return
        before = -1
        while before != (before := self._submitted):
            time.sleep(HELD_BACK_SECONDS)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_FOR_OTHERS
        while not self._is_reached(condition):
            if time.monotonic() > deadline:
                raise FakeError("a deadlock: streams wait for a sum to which not all ranks come")
            time.sleep(HELD_BACK_SECONDS)

    def _is_reached(self, condition: Callable[[], bool]) -> bool:
        """Go on until the condition holds, or nothing can go on before other threads come to a sum."""
        with self.lock:
            while not condition():
                if not self._go_on():
                    if self.unfinished_sums and not self.aborted_sums:
                        return False
                    raise FakeError("a deadlock: every stream waits for an event that nobody will record")
            return True

    def _go_on(self) -> bool:
        """Do one operation of some stream; whether there was one."""
        able = [stream for stream, queue in self._queues.items() if queue and not self._blocked(queue[0])]
        if not able:
            return False
        operation = self._queues[self._choose(able)].popleft()
        if isinstance(operation, _Record):
            self._happened_at[operation.event] = time.monotonic_ns()
            self._happened[operation.event] = max(self._happened[operation.event], operation.version)
        elif not isinstance(operation, _Wait):
            with np.errstate(all="ignore"):  # a GPU does not warn
                self._do(operation)
        return True

    def _choose(self, able: list[int]) -> int:
        """Any stream; or, with odd seeds, always the one that comes first in an order of its own while it can go on."""
        if not self.in_order:
            return self.choice.choice(able)
        for stream in able:
            self._rank.setdefault(stream, self.choice.random())
        return min(able, key=self._rank.__getitem__)

    def _blocked(self, operation: Operation | _Wait | _Record) -> bool:
        return isinstance(operation, _Wait) and self._happened[operation.event] < operation.version


def _default(device: int) -> int:
    """The number of a device's default stream, among all streams."""
    return -1 - device


@dataclass
class _Sum:
    """An all-reduce of GPUs, to which their threads come one after another."""

    events: list[int]
    """Which a GPU's stream records as it comes; nobody goes on before all have come."""
    parts: dict[int, tuple[int, int, int, int]]
    """By the communicator's number: source, target, number of elements and kind."""
    done: bool = False

    def add_up(self) -> None:
        """In the order of the communicators; done by the stream that goes on first."""
        if self.done:
            return
        self.done = True
        arrays = [_array(self.parts[number][0], *self.parts[number][2:]) for number in sorted(self.parts)]
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        for _, target, count, kind in self.parts.values():
            _array(target, count, kind)[:] = total


_KINDS: dict[int, Any] = {7: ctypes.c_float, 8: ctypes.c_double}


def _array(place: int, count: int, kind: int) -> NDArray[Any]:
    found: NDArray[Any] = np.ctypeslib.as_array((_KINDS[kind] * count).from_address(place))
    return found


class FakeNccl:
    """Sums between devices, of one thread or of several, which are ranks."""

    NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = 7, 8, 0

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self._local = threading.local()
        self._identities = 0
        self.faults: list[str] = []
        self.members: dict[bytes, list[Any]] = defaultdict(list)
        """Communicators by the identity of their group."""
        self._sums: dict[tuple[bytes, int], _Sum] = {}
        fake = self

        class Communicator:
            def __init__(self, count: int, identity: bytes, number: int) -> None:
                assert 0 <= number < count
                assert fake._group is not None, "outside a group, one thread would wait for itself"
                self.count, self.identity, self.number = count, identity, number
                self.device, self.sums, self.ended = runtime.getDevice(), 0, ""
                with runtime.lock:
                    assert all(other.number != number for other in fake.members[identity])
                    fake.members[identity].append(self)
                fake._group.append((self,))

            def allReduce(self, source: int, target: int, count: int, kind: int, operation: int, stream: int) -> None:
                assert operation == fake.NCCL_SUM
                assert fake._group is not None, "outside a group, one thread would wait for itself"
                assert not self.ended
                assert runtime.device_of(stream) == self.device
                fake._group.append((self, source, target, count, kind, stream))

            def destroy(self) -> None:
                self._end("destroyed")

            def abort(self) -> None:
                self._end("aborted")
                runtime.aborted_sums = True

            def _end(self, how: str) -> None:
                assert not self.ended
                self.ended = how
                if {other.ended for other in fake.members[self.identity]} - {how, ""}:
                    fake.faults.append("some communicators of a group were destroyed, and others aborted")

        self.NcclCommunicator = Communicator

    @property
    def _group(self) -> list[tuple[Any, ...]] | None:
        """The calls of this thread's group."""
        return getattr(self._local, "group", None)

    def get_unique_id(self) -> bytes:
        with self.runtime.lock:
            self._identities += 1
            return self._identities.to_bytes(128, "little")

    def groupStart(self) -> None:
        assert self._group is None
        self._local.group = []

    def groupEnd(self) -> None:
        group, self._local.group = self._group or [], None
        for communicator in (call[0] for call in group if len(call) == 1):
            self._await_others(communicator)
        with self.runtime.lock:
            self._submit([call for call in group if len(call) > 1])

    def _await_others(self, communicator: Any) -> None:
        """A communicator is there when all of its group are."""
        deadline = time.monotonic() + SECONDS_FOR_OTHERS
        while len(self.members[communicator.identity]) < communicator.count:
            assert time.monotonic() < deadline, "not all ranks make their communicators"
            time.sleep(HELD_BACK_SECONDS)

    def _submit(self, group: Sequence[tuple[Any, ...]]) -> None:
        runtime = self.runtime
        everything: Clock = {}
        for *_, stream in group:
            join(everything, runtime.order.stream(stream))
        uses: list[Use] = []
        for _, source, target, count, kind, stream in group:
            join(runtime.order.stream(stream), everything)
            nbytes = count * ctypes.sizeof(_KINDS[kind])
            parts = (("allReduce (send)", source, False), ("allReduce (receive)", target, True))
            own = runtime.uses(stream, [(name, at, at + nbytes, writes) for name, at, writes in parts])
            runtime._order(stream, own)
            uses += own
        for communicator, source, target, count, kind, stream in group:
            found = self._sum(communicator)
            found.parts[communicator.number] = source, target, count, kind
            runtime._queues[stream].append(_Record(found.events[communicator.number], 1))
            runtime._queues[stream].extend(_Wait(event, 1) for event in found.events)
            runtime._queues[stream].append(Operation(found.add_up, "allReduce", tuple(uses)))
            if len(found.parts) == communicator.count:
                assert len({part[2:] for part in found.parts.values()}) == 1, "ranks add up different vectors"
                runtime.unfinished_sums -= 1

    def _sum(self, communicator: Any) -> _Sum:
        """The sum to which a communicator comes: each comes to all of its group, in the same order."""
        key = communicator.identity, communicator.sums
        communicator.sums += 1
        if key not in self._sums:
            events = [self.runtime.eventCreateWithFlags(0) for _ in range(communicator.count)]
            for event in events:
                self.runtime._recorded[event] = 1
            self._sums[key] = _Sum(events, {})
            self.runtime.unfinished_sums += 1
        return self._sums[key]
