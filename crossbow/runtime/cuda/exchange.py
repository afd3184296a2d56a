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
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic

import numpy as np

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.runtime.assembly import Assembly
from crossbow.runtime.backend import Bind, Combination
from crossbow.runtime.coefficients import About, Formula, Formulas
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.learner import CudaLearner
from crossbow.runtime.cuda.memory import CudaLearnerMemory
from crossbow.runtime.cuda.stream import CudaStream, Event, LearnerStreams
from crossbow.runtime.cuda.work import (
    PARITIES,
    BoundWork,
    WorkKey,
    bound_work,
    check_work,
    task_ranges,
)
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import Finished, Report
from crossbow.solver import Pace
from crossbow.types import Aborted


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


class CudaMeeting:
    """Learners on streams of one GPU."""

    def __init__(
        self, streams: Sequence[CudaStream], flags: Flags, submitting: threading.RLock, *, in_turn: bool
    ) -> None:
        """streams: the learners' compute streams. submitting: as for `LearnerStreams`. in_turn: whether exchanges run
        one after the other."""
        self._streams, self._abort, self._submitting, self._in_turn = streams, flags.abort, submitting, in_turn
        self._exchanged = Event(streams[0].device)
        """The end of the last exchange."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """Bind an update to vectors. Call it with the GPU as the current one."""
        return CudaCombination(formula, bind)

    def exchange(self, learner: int, arrive: Callable[[], list[int]]) -> list[int]:
        """Submit the work, and return before it is done: the streams of the learners that may continue wait for it.
        Raises Aborted, without changing z, if another learner has failed or the streams were destroyed."""
        stream = self._streams[learner]
        with self._submitting, on(stream.place):
            if self._abort[0]:
                raise Aborted
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

    def settle(self, work: Callable[[], None]) -> None:
        """Do the work and wait for it: the last exchanges were reported before they were done."""
        with self._submitting:
            if not self._abort[0]:  # or the streams were destroyed
                with on(self._streams[0].place):
                    api().runtime.deviceSynchronize()
                self._streams[0].call(work)


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
