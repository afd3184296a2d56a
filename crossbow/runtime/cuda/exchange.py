"""Learners without a barrier on a GPU: what they exchange is submitted by their threads, in the order of events.

A learner's thread learns that a task is done, and submits what comes of it to the learner's stream::

    arriving learner   wait exchanged ► merge ► replies ► (exchanged)
    who may go on      wait exchanged ► the next task

So exchanges come one after the other on the GPU, in the order in which they were submitted, the order of the rule's
bookkeeping; and no learner begins before its reply is there. No thread waits for that. Where the rule wants no lock,
Hogwild's, there are no such waits: a learner's merge follows its own task, and runs beside the others' merges.

The numbers of an update are copied before it, in the stream's order, from pinned memory of its own. That is written
again at the earliest when the learner whose merge, message or reply it is has arrived again: it has then done a task
that began after the copy.
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
from crossbow.runtime.cuda.work import PARITIES, BoundWork, StepKey, Work, WorkKey, bound_work, check_work, new_work
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import Finished, Report
from crossbow.solver import Pace
from crossbow.types import Aborted


class CudaCombination(Generic[About]):
    """An update that is bound to vectors of a GPU."""

    def __init__(self, formula: Formula[About], bind: Bind) -> None:
        self._formula, self._numbers = formula, DeviceNumbers(formula.length, stages=1)
        self._steps = bind(formula.over(self._numbers.array))
        self._seen: tuple[Any, About] | None = None

    def run(self, pace: Pace, about: About) -> None:
        """Submit it to the current stream. Its few calls are made one by one: no graph is captured late in training,
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
        """streams: the learners' for computing. submitting: as for `LearnerStreams`. in_turn: whether exchanges come
        one after the other."""
        self._streams, self._abort, self._submitting, self._in_turn = streams, flags.abort, submitting, in_turn
        self._exchanged = Event(streams[0].device)
        """The end of the last exchange."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """The update, bound to vectors. Made with the GPU as the current one."""
        return CudaCombination(formula, bind)

    def exchange(self, learner: int, arrive: Callable[[], list[int]]) -> list[int]:
        """Returns before it is done: the streams of those who may go on wait for it. Raises Aborted, and leaves z as it
        is, where another learner has failed, or the streams were given back."""
        stream = self._streams[learner]
        with self._submitting, on(stream.place):
            if self._abort[0]:
                raise Aborted
            try:
                return self._exchange_in_turn(stream, arrive) if self._in_turn else arrive()
            except BaseException:
                self._abort[0] = 1  # before another one follows
                raise

    def _exchange_in_turn(self, stream: CudaStream, arrive: Callable[[], list[int]]) -> list[int]:
        stream.wait_for(self._exchanged)
        going = arrive()
        self._exchanged.record(stream)
        for each in going:
            self._streams[each].wait_for(self._exchanged)
        return going

    def settle(self, work: Callable[[], None]) -> None:
        """This waits for the GPU: the last exchanges were reported before they were done."""
        with self._submitting:
            if not self._abort[0]:  # or the streams were given back
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
    """A learner whose task ends with its own step. All of them are on the first device."""
    setting, arithmetic = assembly.setting, assembly.arithmetic
    base, replica = assembly.bases[0], assembly.replicas[number]
    with on(streams.compute.place):
        # A task begins when the one before it is done: its numbers have been copied.
        numbers = DeviceNumbers(formulas.length, stages=1)
        weights = base.buffers[0] if replica.weights is None else replica.weights
        vectors = memory.vectors(weights, replica.gradient, replica.statistics)
        step = arithmetic.step((), formulas.over(numbers.array)["step"], replica.vectors(), clipped=setting.clips_own)
        work = new_work(assembly, step)
        tasks: dict[WorkKey, BoundWork] = {}
        steps: dict[StepKey, Work] = {}
        for buffer, bound in enumerate(bound_work(assembly, assembly.training, memory, vectors)):
            tasks.update({("train", parity, buffer): bound for parity in PARITIES})
        steps.update({("train", parity): work for parity in PARITIES})
        tasks.update(check_work(assembly, memory, base, replica))
        return CudaLearner(
            number, streams, memory.turns, tasks, steps, numbers, assembly.flags, report, finished=finished
        )
