"""Learners without a barrier on a GPU: their threads submit exchanges, which events order.

When a task is done, the learner's thread submits its exchange to the learner's stream::

    arriving learner   wait exchanged ► merge ► replies ► (exchanged)
    free learner       wait exchanged ► the next task

So exchanges run one after the other on the GPU, in the order of submission, which is the order of the rule's
bookkeeping, and no learner begins before its reply is complete. No thread waits for this. A rule without a lock, such
as Hogwild, has no such waits: a learner's merge follows its own task, and runs concurrently with other merges.

An update's coefficients are copied before it, in stream order, from separate pinned memory. This memory is overwritten
only after the learner of the merge, message or reply has arrived again, and so has finished a task that began after the
copy.

Across ranks, all exchanges run on a separate stream, one after the other, even under a rule without a lock. Vectors
pass through pinned memory of the host::

    stream of exchanges    copy to the host ► (copied)      copy to the GPU ► merge, replies ► (exchanged)
    thread of messages     wait copied, send                wait exchanged, receive
    free learner           wait exchanged ► the next task

Only the thread of messages waits for work that was submitted before. It does not hold the lock under which work is
submitted. The work of a message is done before the thread receives the next one, so that neither a vector nor the
coefficients of its update are overwritten before they are copied. (No learner's arrival precedes this work.)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current, on
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Arriving, Bind, Combination, Leaving
from crossbow.runtime.coefficients import About, Formula, Formulas
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import CudaLearnerMemory
from crossbow.runtime.cuda.stream import CudaStream, Event, LearnerStreams
from crossbow.runtime.cuda.work import (
    BoundWork,
    WorkKey,
    bound_work,
    check_work,
    task_ranges,
)
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import PARITIES, Finished, Report
from crossbow.solver import Pace
from crossbow.types import Aborted, Array, address


class CudaCombination(Generic[About]):
    """An update, bound to vectors in a GPU's memory."""

    def __init__(self, formula: Formula[About], bind: Bind) -> None:
        self._formula, self._numbers = formula, DeviceNumbers(formula.length, stages=1)
        self._steps = bind(formula.over(self._numbers.array))
        self._seen: tuple[Any, About] | None = None

    def run(self, pace: Pace, about: About) -> None:
        """Submit the update to the current stream, as single calls. A graph would have to be captured late in training,
        when two learners meet for the first time."""
        seen = self._formula.key(pace), about
        if seen != self._seen:
            self._numbers.send(np.array(self._formula.evaluate(pace, about), np.float64))
            self._seen = seen
        for step in self._steps:
            step.call()


class Passage:
    """Pinned memory through which a vector passes to other ranks. Its GPU must be the current one at its creation."""

    def __init__(self, vector: Array) -> None:
        self.array: Array = api().pinned(vector.nbytes).view(vector.dtype)
        self.copied = Event(current().device)
        """The end of the last copy."""

    def copy(self, vector: Array, stream: CudaStream) -> None:
        """Submit a copy of the vector."""
        runtime, nbytes = api().runtime, vector.nbytes
        kind, pointer = runtime.memcpyDeviceToHost, stream.place.pointer
        runtime.memcpyAsync(address(self.array), address(vector), nbytes, kind, pointer)
        self.copied.record(stream)


@dataclass(frozen=True)
class AcrossRanks:
    """Resources of exchanges with other ranks."""

    stream: CudaStream
    """Stream of all exchanges."""
    inbox: Array
    """Pinned bytes, in which vectors are received one after the other."""
    passages: dict[tuple[int, int], Passage] = field(default_factory=dict)
    """Passages by a vector's address and the number of the learner that sends or receives it."""


class CudaMeeting:
    """Learners on streams of one GPU."""

    def __init__(
        self,
        streams: Sequence[CudaStream],
        flags: Flags,
        submitting: threading.RLock,
        *,
        in_turn: bool,
        across_ranks: AcrossRanks | None = None,
    ) -> None:
        """streams: the learners' compute streams. submitting: as for `LearnerStreams`. in_turn: whether exchanges run
        one after the other, as they must with other ranks."""
        self._streams, self._abort, self._submitting, self._in_turn = streams, flags.abort, submitting, in_turn
        self._across_ranks = across_ranks
        self._exchanged = Event(streams[0].device)
        """The end of the last exchange, or of the last copy from another rank."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """Bind an update to vectors. The GPU must be the current one."""
        return CudaCombination(formula, bind)

    def exchange(self, learner: int | None, arrive: Callable[[], list[int]]) -> list[int]:
        """Submit the work, and return before it is done: the streams of the learners that may continue wait for it.
        Raises Aborted, without changing z, if another learner has failed or the streams were destroyed."""
        stream = self._between.stream if learner is None or self._across_ranks else self._streams[learner]
        with self._submitting, on(stream.place):
            self._check_running()
            try:
                return self._exchange_in_turn(stream, arrive) if self._in_turn else arrive()
            except BaseException:
                self._abort[0] = 1  # before the next exchange
                raise

    def _exchange_in_turn(self, stream: CudaStream, arrive: Callable[[], list[int]]) -> list[int]:
        stream.wait_for(self._exchanged)
        going = arrive()
        self._exchanged.record(stream)
        for each in going:
            self._streams[each].wait_for(self._exchanged)
        return going

    def _check_running(self) -> None:
        """Raise Aborted if a learner has failed or the streams were destroyed."""
        if self._abort[0]:
            raise Aborted

    def settle(self, work: Callable[[], None]) -> None:
        """Run the work and wait for it, after the last exchanges, which were reported before they were done."""
        with self._submitting:
            if self._streams[0].place.pointer:  # otherwise they were destroyed
                with on(self._streams[0].place):
                    api().runtime.deviceSynchronize()
                self._streams[0].call(work)

    # Across ranks

    def leaving(self, vector: Array, learner: int, *, changes: bool = False) -> Leaving:
        """Submit a copy of the vector to the host. Raises Aborted as `exchange` does."""
        if not vector.size:
            return Leaving(np.empty(0, vector.dtype))
        between, key = self._between, (address(vector), learner)
        with self._submitting, on(between.stream.place):
            self._check_running()
            if changes:
                passage = Passage(vector)
            else:
                if key not in between.passages:
                    between.passages[key] = Passage(vector)
                passage = between.passages[key]
            passage.copy(vector, between.stream)
        return Leaving(passage.array, functools.partial(self._wait, passage.copied))

    def arriving(self, vector: Array) -> Arriving:
        """Return a part of the inbox, as soon as the GPU has done the work of the last message."""
        self._wait(self._exchanged)
        array = self._between.inbox[: vector.nbytes].view(vector.dtype)
        return Arriving(array, functools.partial(self._store, array, vector))

    def _store(self, array: Array, vector: Array) -> None:
        """Submit a copy of the received vector to the GPU. Raises Aborted as `exchange` does."""
        stream, runtime = self._between.stream, api().runtime
        with self._submitting, on(stream.place):
            self._check_running()
            if vector.size:
                kind, pointer = runtime.memcpyHostToDevice, stream.place.pointer
                runtime.memcpyAsync(address(vector), address(array), vector.nbytes, kind, pointer)
                self._exchanged.record(stream)

    @property
    def _between(self) -> AcrossRanks:
        assert self._across_ranks is not None
        return self._across_ranks

    def _wait(self, event: Event) -> None:
        with on(self._between.stream.place):  # otherwise the thread of messages has no device
            event.wait()


def exchanging_learner(
    assembly: Assembly,
    formulas: Formulas,
    number: int,
    streams: LearnerStreams,
    memory: CudaLearnerMemory,
    report: Report,
    finished: Finished,
) -> CudaLearner:
    """Return a learner whose task ends with its own step. All learners are on the first device."""
    setting, arithmetic = assembly.setting, assembly.arithmetic
    base, replica = assembly.bases[0], assembly.replicas[number]
    with on(streams.compute.place):
        # A task begins when the previous one is done, so its coefficients have been copied.
        numbers = DeviceNumbers(formulas.length, stages=1)
        weights = base.buffers[0] if replica.weights is None else replica.weights
        vectors = memory.vectors(weights, replica.gradient, replica.statistics)
        step = arithmetic.step((), formulas.over(numbers.array)["step"], replica.vectors(), clipped=setting.clips_own)
        tasks: dict[WorkKey, BoundWork] = {}
        for buffer, bound in enumerate(bound_work(assembly, assembly.training, memory, vectors, step)):
            tasks.update({("train", parity, buffer): bound for parity in PARITIES})
        tasks.update(check_work(assembly, memory, base, replica))
        return CudaLearner(
            number,
            streams,
            memory.turns,
            tasks,
            {},
            numbers,
            assembly.flags,
            report,
            finished=finished,
            scaling=memory.scaling,
            recorder=assembly.setting.recorder,
            ranges=task_ranges(assembly),
        )
