"""A learner on a GPU: a replica and a stream, and the work that is bound to them.

A task is submitted without waiting for anything on the GPU::

    copies    wait until the input's buffer was read ► copy batch and state ► (copied)
    learner   wait copied ► forward, backward ► (read) ► step ► copy loss and accuracy ► (done)

There are two input buffers, so that the next batch is copied while this one is computed with. A step that synchronises
is submitted by the synchroniser, behind the merge of its tick (`synchroniser.py`). A thread of the learner's sleeps
until a task is done, and reports it.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.interface import State
from crossbow.runtime.cuda.coefficients import DeviceCoefficients
from crossbow.runtime.cuda.graph import Work
from crossbow.runtime.cuda.stream import CudaStream, Event
from crossbow.runtime.learner import Completed, Failed, Report, check_loss
from crossbow.solver import Pace
from crossbow.types import Array, address

T = TypeVar("T")

TURNS = 64
"""Tasks of a learner that may be under way at a time; more wait to be submitted."""


@dataclass(frozen=True)
class Input:
    """Where a batch lies on the GPU while a task computes with it, and the slots that it comes from."""

    state: Array
    targets: Sequence[Array]
    """Images, labels and positions, each (1, B, …)."""
    sources: Sequence[Array]
    """The same of all slots: (S, B, …), pinned."""
    copied: Event
    read: Event

    @functools.cached_property
    def copies(self) -> tuple[tuple[int, int, int], ...]:
        """Of each: where it goes, where slot 0 lies, and the bytes of a slot."""
        pairs = zip(self.targets, self.sources, strict=True)
        return tuple((address(target), address(source), target.nbytes) for target, source in pairs)

    @functools.cached_property
    def state_address(self) -> int:
        return address(self.state)


@dataclass(frozen=True)
class Task:
    """What a task runs, and where it leaves loss and accuracy (arrays of one element; None where there is none)."""

    compute: Work
    input: Input
    loss: Array | None
    accuracy: Array | None

    @functools.cached_property
    def results(self) -> tuple[tuple[int, int], ...]:
        """Of loss and accuracy, where there is one: its place among a task's results, and its address."""
        found = enumerate((self.loss, self.accuracy))
        return tuple((place, address(array)) for place, array in found if array is not None)


TaskKey = tuple[str, int, int]
"""What a task is for ("synchronise", "local", "check"), the parity of its tick, and its input buffer."""


@dataclass(frozen=True)
class _Submitted:
    """A task on its way, and what is to be done when it is there."""

    turn: int
    number: int
    """The task's."""
    examples: int
    slot: int
    purpose: str
    pace: Pace
    bound: Task
    release: Callable[[int], None]
    report: Report


class CudaLearner:
    """Runs tasks on its stream, in order; as `crossbow.runtime.learner.Learner`."""

    def __init__(
        self,
        number: int,
        stream: CudaStream,
        copies: CudaStream,
        dtype: np.dtype[np.generic],
        coefficients: DeviceCoefficients,
        abort: Array,
        submitting: threading.RLock,
    ) -> None:
        """submitting: held while work is submitted: handles and graphs are neither used twice nor given back then."""
        self.number, self.stream, self.copies = number, stream, copies
        self.ready = Event(stream.device)
        """What this learner contributes to the present tick will not change until the tick is merged."""
        self.tasks: Mapping[TaskKey, Task] = {}
        self.steps: Mapping[tuple[str, int], Work] = {}
        """By purpose and parity of the tick."""
        self.sends = "weights"
        """What the rule says that a learner sends, and so when that is ready."""
        self._coefficients, self._abort, self._submitting = coefficients, abort, submitting
        self._states: Array = api().pinned(8 * TURNS * State.SIZE).view(np.int64).reshape(TURNS, State.SIZE)
        self._results: Array = api().pinned(2 * dtype.itemsize * TURNS).view(dtype).reshape(TURNS, 2)
        # Addresses are asked for once: that takes longer than a copy takes to be submitted.
        self._state_addresses = [address(row) for row in self._states]
        self._result_addresses = [address(row) for row in self._results]
        self._done = [Event(stream.device) for _ in range(TURNS)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for turn in range(TURNS):
            self._free.put(turn)
        self._counts = {"train": 0, "check": 0}
        self._work: Work | None = None
        """The last that was submitted."""
        self._waiting: _Submitted | None = None
        """The task whose step the synchroniser will submit."""
        self._submitted: queue.SimpleQueue[_Submitted | threading.Event | None] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None

    def submit(
        self,
        key: tuple[str, int],
        *,
        task: int,
        tick: int,
        slot: int,
        examples: int,
        pace: Pace,
        release: Callable[[int], None],
        report: Report,
    ) -> None:
        """Run a task after those submitted before. `release` gets the slot when it has been read; `report` the result.

        Returns at once; what goes wrong is reported, not raised.
        """
        with self._submitting:
            if self._abort[0]:
                report(Failed(task, self.number, "wait", None))
                return
            self._start_watching()
            turn, bound = self._free.get(), self.tasks[(*key, self._next_buffer(key[0]))]
            submitted = _Submitted(turn, task, examples, slot, key[0], pace, bound, release, report)
            with self._reporting(submitted):
                self._copy(submitted, (task, 0, examples, tick))
                self._compute(submitted, parity=key[1])

    def step(self, parity: int, merged: Event) -> None:
        """Submit the step of the task that synchronises, which waits for the merge of its tick."""
        assert self._waiting is not None
        submitted, self._waiting = self._waiting, None
        with self._reporting(submitted):
            self._coefficients.set(submitted.pace, self.stream)
            self.stream.wait_for(merged)
            self._run(self.steps["synchronise", parity])
            self._finish(submitted)

    def _compute(self, submitted: _Submitted, parity: int) -> None:
        """Submit forward and backward pass, and what comes behind them unless the synchroniser submits it."""
        place, synchronises = submitted.bound.input, submitted.purpose == "synchronise"
        self.stream.wait_for(place.copied)
        if synchronises and self.sends == "weights":
            self.ready.record(self.stream)
        self._run(submitted.bound.compute)
        place.read.record(self.stream)
        if synchronises:
            if self.sends == "new weights":
                self._coefficients.set(submitted.pace, self.stream)
                self._run(self.steps["send", parity])
            if self.sends != "weights":
                self.ready.record(self.stream)
            self._waiting = submitted
            return
        if submitted.purpose == "local":
            self._coefficients.set(submitted.pace, self.stream)
            self._run(self.steps["local", parity])
        self._finish(submitted)

    def _run(self, work: Work) -> None:
        self._work = work
        work.run()

    @contextmanager
    def _reporting(self, submitted: _Submitted) -> Iterator[None]:
        """Submit to the learner's stream. What goes wrong is reported, and lets no other task begin."""
        self._work = None
        try:
            with on(self.stream.place):
                yield
        except Exception as error:
            self._abort[0] = 1
            self._free.put(submitted.turn)
            operator = (self._work.failed if self._work else None) or "task"
            submitted.report(Failed(submitted.number, self.number, operator, error))
        except BaseException:  # Ctrl-C
            self._abort[0] = 1
            raise

    def _next_buffer(self, purpose: str) -> int:
        """The number of the input buffer: one after the other."""
        batches = "check" if purpose == "check" else "train"
        self._counts[batches] += 1
        return (self._counts[batches] - 1) % 2

    def _start_watching(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name=f"watcher-{self.number}", daemon=True)
            self._watcher.start()

    # As a stream: what the engine waits for, after a failure and in the end.

    def call(self, work: Callable[[], T]) -> T:
        """Do `work` on the learner's stream, and wait until it is done."""
        return self.stream.call(work)

    def wait(self, timeout: float) -> bool:
        """Wait until everything submitted before is done and reported; whether it was within `timeout` seconds. A task
        whose step has not been submitted is given up."""
        deadline = time.monotonic() + timeout
        if self._waiting is not None:
            self._free.put(self._waiting.turn)
            self._waiting = None
        reached = threading.Event()
        self._submitted.put(reached)
        if self._watcher is not None and not reached.wait(timeout):
            return False
        return all(stream.wait(max(0.0, deadline - time.monotonic())) for stream in (self.stream, self.copies))

    def close(self, timeout: float | None = None) -> bool:
        """End the thread, and give back streams and graphs; whether that was possible within `timeout` seconds."""
        self._submitted.put(None)
        if self._watcher is not None:
            self._watcher.join(timeout)
        for task in self.tasks.values():
            task.compute.close()
        for step in self.steps.values():
            step.close()
        closed = [stream.close(timeout) for stream in (self.stream, self.copies)]
        return all(closed) and (self._watcher is None or not self._watcher.is_alive())

    def _copy(self, submitted: _Submitted, state: Sequence[int]) -> None:
        """Batch and state into the input's buffer, once that was read."""
        place, runtime, stream = submitted.bound.input, api().runtime, self.copies.place.pointer
        copy, to_device = runtime.memcpyAsync, runtime.memcpyHostToDevice
        self._states[submitted.turn, : len(state)] = state
        self.copies.wait_for(place.read)
        copy(place.state_address, self._state_addresses[submitted.turn], place.state.nbytes, to_device, stream)
        for target, source, nbytes in place.copies:
            copy(target, source + submitted.slot * nbytes, nbytes, to_device, stream)
        place.copied.record(self.copies)

    def _finish(self, submitted: _Submitted) -> None:
        """Let the results come to the host, and be reported then."""
        runtime, stream, nbytes = api().runtime, self.stream.place.pointer, self._results.itemsize
        for place, source in submitted.bound.results:
            target = self._result_addresses[submitted.turn] + place * nbytes
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToHost, stream)
        self._done[submitted.turn].record(self.stream)
        self._submitted.put(submitted)

    def _watch(self) -> None:
        """The thread: tasks as they become done, in order."""
        api().runtime.setDevice(self.stream.device)
        while (submitted := self._submitted.get()) is not None:
            if isinstance(submitted, threading.Event):
                submitted.set()
            else:
                submitted.report(self._result(submitted))

    def _result(self, submitted: _Submitted) -> Completed | Failed:
        """What a task came to, once it is done."""
        bound = submitted.bound
        try:
            self._done[submitted.turn].wait()
            loss, accuracy = (float(value) for value in self._results[submitted.turn])
            submitted.release(submitted.slot)
            if bound.loss is not None:
                check_loss(submitted.purpose, loss, submitted.number, submitted.pace.rate)
        except BaseException as error:  # what went wrong on the GPU, or in the numbers
            self._abort[0] = 1
            return Failed(submitted.number, self.number, "task", error)
        finally:
            self._free.put(submitted.turn)
        found = accuracy if bound.accuracy is not None else None
        return Completed(submitted.number, loss if bound.loss is not None else math.nan, found, submitted.examples)
