"""What learners without a barrier do with each other on a GPU: submitted by their threads, in the order of events.

A learner's thread learns that a task is done, and submits what comes of it to the learner's stream::

    arriving learner   wait exchanged ► merge ► replies ► (exchanged)
    who may go on      wait exchanged ► the next task

So exchanges come one after the other on the GPU, in the order in which they were submitted, which is that of the rule's
bookkeeping; and nobody begins before its reply is there. No thread waits for that. Where the rule wants no lock,
Hogwild's, there are no such waits: a learner's merge is behind its own task, and beside those of the others.

The numbers of an update are copied before it, in the stream's order, from pinned memory of its own. That is written
again at the earliest when the learner whose merge, message or reply it is has arrived again: it has then done a task
that began behind the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.interface import Aborted
from crossbow.runtime.coefficients import PacedUpdate
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.stream import CudaStream, Event
from crossbow.runtime.exchange import Bind, Site
from crossbow.solver import Pace
from crossbow.types import Array


@dataclass(frozen=True)
class DeviceCombination:
    """An update that is bound to vectors of a GPU."""

    numbers: DeviceNumbers
    steps: Sequence[BoundStep]

    def run(self, pace: Pace) -> None:
        """Submit it to the current stream. Its few calls are made one by one: no graph is captured late in training,
        when two learners meet for the first time."""
        self.numbers.send(pace)
        for step in self.steps:
            step.call()


class CudaSite(Site):
    """Learners on streams of one GPU."""

    def __init__(
        self, streams: Sequence[CudaStream], abort: Array, submitting: threading.RLock, *, in_turn: bool
    ) -> None:
        """streams: the learners'; abort: of `Flags`; submitting: as for `CudaLearner`; in_turn: whether exchanges come
        one after the other."""
        self._streams, self._abort, self._submitting, self._in_turn = streams, abort, submitting, in_turn
        self._exchanged = Event(streams[0].device)
        """The end of the last exchange."""

    def combination(self, paced: PacedUpdate, bind: Bind) -> DeviceCombination:
        numbers = DeviceNumbers(paced, (paced,), stages=1)
        return DeviceCombination(numbers, bind(numbers.updates[0]))

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
