"""A learner on a GPU: a replica and a stream, and the work that is bound to them.

A task is submitted without waiting for anything on the GPU::

    copies    wait until the last task with this input buffer is done ► copy batch and state ► (copied)
    learner   wait copied ► forward, backward, loss and accuracy to the host ► step ► (done)

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
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.interface import Aborted
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.graph import Work
from crossbow.runtime.cuda.record import Slots
from crossbow.runtime.cuda.stream import CudaStream, Event
from crossbow.runtime.learner import Completed, Failed, Report, check_loss
from crossbow.solver import Pace
from crossbow.types import Array, address

T = TypeVar("T")

TURNS = 64
"""Tasks of a learner that may be under way at a time; more wait to be submitted."""


@dataclass
class Input:
    """Where a task's record lies on the GPU while it is computed with."""

    memory: Array
    slots: Slots
    """Where it comes from."""
    results: Array
    """Where loss and accuracy go: the learner's."""
    copied: Event
    read: Event
    """The end of the last task that computed with it. Nobody waits for an event that was never recorded."""

    @functools.cached_property
    def address(self) -> int:
        return address(self.memory)

    @functools.cached_property
    def arrays(self) -> dict[str, Array]:
        """By the names that programs use: the state, and the batch as the only slot, (1, B, …)."""
        *batch, state = self.slots.record.arrays(self.memory)
        images, labels, positions = (array.reshape((1, *array.shape)) for array in batch)
        return {"state": state, "slots": images, "slot_labels": labels, "slot_positions": positions}


@dataclass(frozen=True)
class Task:
    """What a task runs, and whether it leaves a loss and an accuracy."""

    compute: Work
    input: Input
    loss: bool
    accuracy: bool


TaskKey = tuple[str, int, int]
"""What a task is for ("synchronise", "local", "check", "train"), the parity of its tick, and its input buffer."""


class _Submitted(NamedTuple):
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
        coefficients: DeviceNumbers,
        abort: Array,
        submitting: threading.RLock,
    ) -> None:
        """submitting: held while work is submitted: handles and graphs are neither used twice nor given back then."""
        self.number, self.stream, self.copies = number, stream, copies
        self.ready = Event(stream.device)
        """From then on, what this learner contributes to the present tick does not change until the tick is merged: the
        end of its task before, or of the gradient of the one that synchronises."""
        self.tasks: Mapping[TaskKey, Task] = {}
        self.steps: Mapping[tuple[str, int], Work] = {}
        """By purpose and parity of the tick."""
        self.sends = "weights"
        """What the rule says that a learner sends."""
        self.sent: Event | None = None
        """Where that is made in the task, the event that it is there."""
        self._coefficients, self._abort, self._submitting = coefficients, abort, submitting
        self.results: Array = api().pinned(2 * 8 * TURNS).view(np.float64).reshape(TURNS, 2)
        """Loss and accuracy of the tasks under way, by turn. Kernels write them (`engine.store_results`)."""
        self._done = [Event(stream.device) for _ in range(TURNS)]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for turn in range(TURNS):
            self._free.put(turn)
        self._counts = {"train": 0, "check": 0}
        self._work: Work | None = None
        """The last that was submitted."""
        self._waiting: _Submitted | None = None
        """The task whose step the synchroniser will submit."""
        self._submitted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """What is to be done in order: the reports of tasks once they are done."""
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
            self._work = None
            try:
                with on(self.stream.place):
                    self._copy(submitted, tick)
                    self._compute(submitted, parity=key[1])
            except BaseException as error:
                self._failed(submitted, error)

    def step(self, parity: int, merged: Event) -> None:
        """Submit the step of the task that synchronises, which waits for the merge of its tick."""
        assert self._waiting is not None
        submitted, self._waiting = self._waiting, None
        self._work = None
        try:
            with on(self.stream.place):
                self._coefficients.set(submitted.pace)
                self.stream.wait_for(merged)
                self._run(self.steps["synchronise", parity])
                self._finish(submitted)
        except BaseException as error:
            self._failed(submitted, error)

    def _compute(self, submitted: _Submitted, parity: int) -> None:
        """Submit forward and backward pass, and what comes behind them unless the synchroniser submits it."""
        place, synchronises = submitted.bound.input, submitted.purpose == "synchronise"
        self.stream.wait_for(place.copied)
        self._run(submitted.bound.compute)
        if synchronises:
            if self.sends == "new weights":
                self._coefficients.set(submitted.pace)
                self._run(self.steps["send", parity])
            if self.sent is not None:
                self.sent.record(self.stream)
                self.ready = self.sent
            self._waiting = submitted
            return
        if submitted.purpose != "check":
            self._coefficients.set(submitted.pace)
            self._run(self.steps[submitted.purpose, parity])
        self._finish(submitted)

    def _run(self, work: Work) -> None:
        self._work = work
        work.run()

    def _failed(self, submitted: _Submitted, error: BaseException) -> None:
        """Report what went wrong while submitting, and let no other task begin."""
        self._abort[0] = 1
        if not isinstance(error, Exception):  # Ctrl-C
            raise error
        self._free.put(submitted.turn)
        operator = (self._work.failed if self._work else None) or "task"
        submitted.report(Failed(submitted.number, self.number, operator, error))

    def _next_buffer(self, purpose: str) -> int:
        """The number of the input buffer: one after the other."""
        batches = "check" if purpose == "check" else "train"
        self._counts[batches] += 1
        return (self._counts[batches] - 1) % 2

    def _start_watching(self) -> None:
        if self._watcher is None:
            # It refers to the queue only, so that a learner which nobody holds can be collected.
            arguments = (self._submitted, self.stream.device)
            self._watcher = threading.Thread(target=_watch, args=arguments, name=f"watcher-{self.number}", daemon=True)
            weakref.finalize(self, self._submitted.put, None).atexit = False
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
        self._submitted.put(reached.set)
        if self._watcher is not None and not reached.wait(timeout):
            return False
        return all(stream.wait(max(0.0, deadline - time.monotonic())) for stream in (self.stream, self.copies))

    def end_watching(self, timeout: float | None = None) -> None:
        """End the thread, within `timeout` seconds if it can be."""
        self._submitted.put(None)
        if self._watcher is not None:
            self._watcher.join(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """End the thread, and give back streams and graphs; whether that was possible within `timeout` seconds."""
        self.end_watching(timeout)
        for task in self.tasks.values():
            task.compute.close()
        for step in self.steps.values():
            step.close()
        closed = [stream.close(timeout) for stream in (self.stream, self.copies)]
        return all(closed) and (self._watcher is None or not self._watcher.is_alive())

    def _copy(self, submitted: _Submitted, tick: int) -> None:
        """The slot's record into the input's memory, once that was read."""
        place, slot, runtime = submitted.bound.input, submitted.slot, api().runtime
        place.slots.set_state(slot, submitted.number, submitted.examples, tick, submitted.turn)
        self.copies.wait_for(place.read)
        source, nbytes, stream = place.slots.addresses[slot], place.memory.nbytes, self.copies.place.pointer
        runtime.memcpyAsync(place.address, source, nbytes, runtime.memcpyHostToDevice, stream)
        place.copied.record(self.copies)

    def _finish(self, submitted: _Submitted) -> None:
        """Let the results be reported when all is done."""
        done = self._done[submitted.turn]
        done.record(self.stream)
        # Should it have been recorded again when somebody waits, then for a later task of this stream.
        submitted.bound.input.read = self.ready = done
        self._submitted.put(lambda: submitted.report(self._result(submitted)))

    def _result(self, submitted: _Submitted) -> Completed | Failed:
        """What a task came to, once it is done."""
        bound, operator = submitted.bound, "task"
        try:
            self._done[submitted.turn].wait()
            loss, accuracy = self.results[submitted.turn].tolist()
            submitted.release(submitted.slot)
            if bound.loss:
                check_loss(submitted.purpose, loss, submitted.number, submitted.pace.rate)
            operator = "exchange"
            self._end(submitted.purpose, submitted.pace)
        except Aborted:
            return Failed(submitted.number, self.number, "wait", None)
        except BaseException as error:  # what went wrong on the GPU, or in the numbers
            self._abort[0] = 1
            return Failed(submitted.number, self.number, operator, error)
        finally:
            self._free.put(submitted.turn)
        found = accuracy if bound.accuracy else None
        return Completed(submitted.number, loss if bound.loss else math.nan, found, submitted.examples, self.number)

    def _end(self, purpose: str, pace: Pace) -> None:
        """What is done behind a task, on the learner's thread, before it is reported."""


def _watch(submitted: queue.SimpleQueue[Callable[[], None] | None], device: int) -> None:
    """What the watcher's thread does: tasks as they become done, in order."""
    api().runtime.setDevice(device)
    while (report := submitted.get()) is not None:
        report()
        del report  # or the learner would stay alive while the thread waits for the next
