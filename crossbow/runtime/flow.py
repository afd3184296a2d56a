"""Limits pending tasks to a few ahead of the learners: enough that no learner waits, few enough that training can stop
soon."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NoReturn

from crossbow.clock import now
from crossbow.cluster.members import RankFailedError, ViewChangedError
from crossbow.data.loader import Loader
from crossbow.runtime.coordination import Coordination
from crossbow.runtime.reports import Reports
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.task import Completed, Failed
from crossbow.timeline.recorder import SCHEDULER, WAIT_FOR_BATCH, WAIT_FOR_RESULTS, Recorder
from crossbow.types import Aborted, CrossbowError, ExampleError, NonFiniteLossError, TaskError

TASKS_AHEAD = 6
"""Maximum number of tasks submitted ahead, per learner. The scheduler fills up to it and sleeps until half are done."""
LEAST_AHEAD = 2
"""Minimum, and initial, number of tasks submitted ahead. The duration of a task is not known initially."""
SECONDS_AHEAD = 0.1
"""Seconds of work submitted ahead if tasks are long. Training waits for this work when it stops."""

Doing = Literal["training", "testing"]
OnResult = Callable[[Completed], None]
Locate = Callable[[int, int, bool], str]
"""Function that returns the place of an example in the data set, given its task, its number in the batch, and whether
it is tested."""


def ignore_result(result: Completed) -> None:
    """Do nothing."""


class Flow:
    """Distributes batches and delivers results, on the scheduler's thread."""

    def __init__(
        self,
        reports: Reports,
        learners: int,
        coordination: Coordination,
        recorder: Recorder,
        sharing: Sharing | None = None,
        own: int | None = None,
        locate: Locate | None = None,
    ) -> None:
        """coordination: decides whether results are delivered in task order, and observes them if they are not.
        sharing: exchanges results with other ranks. own: number of this rank's learners, if it needs the results of
        others only when all are collected, as with two levels. locate: returns the place of an example."""
        self._locate = locate
        self._recorder, self._sharing = recorder, sharing
        if sharing is not None:
            sharing.join(reports)
        self._reports, self._learners, self._coordination = reports, learners, coordination
        self._deferring = sharing if own is not None else None
        """The exchange of results between ranks, if it is deferred until all are collected."""
        self._later = 0
        """Number of tasks of other ranks whose results are awaited only then."""
        self._awaited = learners if own is None else own
        """Number of learners whose results are awaited earlier."""
        self._in_order = coordination.in_order
        self._doing = ""
        """Description of the learners' current work."""
        self._on_result: OnResult = ignore_result
        self._next_result = 0
        self._in_flight = 0
        self._ahead = LEAST_AHEAD
        self._early: dict[int, Completed] = {}
        """Results that wait for those of earlier tasks."""
        self._known: dict[int, Completed] = {}
        """Results of tasks to skip, which were done before a rank was lost, although earlier tasks were not."""
        self._merges: deque[tuple[int, int]] = deque()
        """Numbers of delivered tasks, and the merges that their results report."""
        self._done = 0
        self._closed = False
        self.data_wait_seconds = 0.0
        """Seconds of training during which learners waited for data, as a mean over the learners."""

    @property
    def done(self) -> int:
        """Number of training tasks since the start whose results were delivered."""
        return self._done

    @property
    def known_results(self) -> list[Completed]:
        """The results of tasks to skip."""
        return list(self._known.values())

    def salvage(self) -> list[Completed]:
        """After a failure, the results of training tasks that were not delivered, because earlier ones are missing. No
        task may be running."""
        reports = iter(self._reports.take, None)
        arrived = [each for each in reports if isinstance(each, Completed)]
        return [*self._early.values(), *arrived, *self._known.values()]

    @property
    def in_flight(self) -> int:
        """Number of submitted tasks whose results are not known yet."""
        return self._in_flight

    def take_merges(self, before: int) -> int:
        """Number of merges that results of tasks before this one have reported since the last call. These must have
        been delivered."""
        merges = 0
        while self._merges and self._merges[0][0] < before:
            merges += self._merges.popleft()[1]
        return merges

    def forget_merges(self) -> None:
        """Forget the merges that results have reported."""
        self._merges.clear()

    # Start and end

    @contextmanager
    def handing_on(self, doing: Doing, first: int, on_result: OnResult) -> Iterator[None]:
        """Deliver results within the context. first: number of the first task to submit."""
        self._doing, self._next_result, self._on_result = doing, first, on_result
        if self._sharing is not None:
            self._sharing.begin(self._reports, works=True)
        if self._deferring is not None:
            self._deferring.defer()
        try:
            if self._sharing is not None:
                self._sharing.check_own(self._raise_failure)
            yield
        finally:
            if self._sharing is not None:
                self._sharing.check_own(None)
                self._sharing.exchange()
                self._sharing.rest()
            self._doing, self._on_result = "", ignore_result  # the engine outlives a run, and must not keep it alive

    def restart(self, tasks: int) -> None:
        """Set the number of tasks that are done, with none pending. All ranks restart at the same places."""
        self._next_result = self._done = tasks
        if self._sharing is not None:  # another rank may have continued: its results do not belong to the earlier tasks
            self._sharing.begin(self._reports)

    def restore(self, tasks: int, data_wait_seconds: float, known: Sequence[Completed] = ()) -> None:
        """Continue after this number of tasks, during which learners waited for data for `data_wait_seconds`. known:
        results of later tasks, which need not be done again."""
        self.restart(tasks)
        self.data_wait_seconds = data_wait_seconds
        self._known = {result.task: result for result in known}

    def clear(self) -> None:
        """Forget pending tasks. No thread may report at the same time."""
        self._reports.clear()
        self._early.clear()
        self._in_flight = self._later = 0

    def refuse(self) -> None:
        """Treat tasks that are aborted from now on as caused by closing the engine, and exchange no more results."""
        self._closed = True
        self._locate = None  # it would keep the engine's memory alive
        if self._sharing is not None:
            self._sharing.leave(self._reports)

    def wake(self, number: int) -> None:
        """Make the scheduler's thread abort task `number`."""
        self._reports.put_failure(Failed(number, self._learners, "close", None))

    def continue_from(self, other: Flow) -> None:
        """Continue counting the time that the learners of another flow have waited."""
        self.data_wait_seconds = other.data_wait_seconds

    # Batches

    def next_batch(self, loader: Loader) -> tuple[int, int]:
        """The slot and the number of examples of the loader's next batch. Waits until few enough tasks are pending; the
        batch then counts as pending."""
        if self._in_flight >= self._ahead * self._awaited:
            self._make_room()
        began, begin = time.monotonic(), now()
        try:
            slot, task, examples = loader.next()
        except Aborted:
            while True:  # until the failure that interrupted the loader is found and raised
                self.collect()
        if self._doing == "training":
            # Not all of the scheduler's wait counts: learners may still have tasks.
            self.data_wait_seconds += self._reports.idle_seconds(began, self._in_flight) / self._awaited
        self._in_flight += 1
        if self._recorder.on:
            self._recorder.event(SCHEDULER, WAIT_FOR_BATCH, begin, task=task)
            self._recorder.count(loader.name, loader.filled)
        return slot, examples

    def skip(self, number: int) -> bool:
        """If the result of the next task is known already, deliver it. Returns whether it is."""
        if (result := self._known.pop(number, None)) is None:
            return False
        if self._in_order:
            self._hand_on_in_order(result._replace(merges=0))  # they are counted already
        else:
            self._hand_on(result._replace(seconds=None))
        return True

    def expect(self) -> None:
        """Count a task of another rank's learner as pending."""
        if self._deferring is not None:
            self._later += 1
            return
        if self._in_flight >= self._ahead * self._awaited:
            self._make_room()
        self._in_flight += 1

    def _make_room(self) -> None:
        """Wait until half of the tasks submitted ahead are done, and adapt their number to the duration."""
        began, before, learners, begin = time.monotonic(), self._in_flight, self._awaited, now()
        self._coordination.await_results()
        self.collect(before - self._ahead * learners // 2)
        if self._recorder.on:
            self._recorder.event(SCHEDULER, WAIT_FOR_RESULTS, begin)
        seconds = (time.monotonic() - began) / (before - self._in_flight) * learners
        self._ahead = max(LEAST_AHEAD, min(TASKS_AHEAD, int(SECONDS_AHEAD / max(seconds, 1e-9))))

    # Results

    def collect(self, count: int = 1) -> None:
        """Wait for the given number of results, take all available ones, and deliver those that are next in order.

        Raises TaskError or NonFiniteLossError.
        """
        self._reports.wait(count)
        while (report := self._reports.take()) is not None:
            if isinstance(report, Failed):
                self._fail(report)
            self._in_flight -= 1
            if self._in_order:
                self._hand_on_in_order(report)
            else:
                self._hand_on(report)

    def collect_all(self) -> None:
        """Wait until no task is pending."""
        begin = now()
        self._coordination.await_results()
        self._in_flight, self._later = self._in_flight + self._later, 0
        if self._deferring is not None:
            self._deferring.exchange()
        while self._in_flight:
            self.collect(self._in_flight)
        if self._deferring is not None:
            self._deferring.defer()
        if self._recorder.on:
            self._recorder.event(SCHEDULER, WAIT_FOR_RESULTS, begin)

    def collect_until(self, number: int) -> None:
        """Wait until the results of all tasks before this one are delivered."""
        if self._next_result < number:
            self._coordination.await_results()
        while self._next_result < number:
            self.collect()

    def _raise_failure(self) -> None:
        """Raise the reported failure, if there is one."""
        while self._reports.failed:
            self.collect()

    def _hand_on_in_order(self, report: Completed) -> None:
        """Deliver the result, and results that waited for it."""
        self._early[report.task] = report
        while (following := self._early.pop(self._next_result, None)) is not None:
            self._count()
            if following.merges:
                self._merges.append((following.task, following.merges))
            self._on_result(following)

    def _hand_on(self, report: Completed) -> None:
        """Deliver the result at once, so that a slow learner does not delay others. Results are numbered as they
        arrive, except those of tests, which identify their batch."""
        if self._doing == "training":
            self._coordination.observe(report)
            report = report._replace(task=self._next_result)
        self._count()
        self._on_result(report)

    def _count(self) -> None:
        self._next_result += 1
        if self._doing == "training":
            self._done = self._next_result

    def _fail(self, report: Failed) -> NoReturn:
        """Raise the TaskError of a failed task; for an aborted one, wait for the failure that caused it."""
        while report.error is None:
            if self._closed:
                raise CrossbowError(f"the context was closed while {self._doing}")
            self._reports.wait(1)
            other = self._reports.take()
            if isinstance(other, Failed):
                report = other
            elif other is not None:
                self._early[other.task] = other  # for `salvage`
        if isinstance(report.error, NonFiniteLossError | RankFailedError | ViewChangedError):
            raise report.error
        where = f"on learner {report.learner}" if report.learner < self._learners else "between the devices"
        place, locate = "", self._locate
        if isinstance(report.error, ExampleError) and locate is not None:
            place = f" ({locate(report.task, report.error.example, self._doing == 'testing')})"
        raise task_error(report.error, report.task, report.operator, where, place) from report.error


def task_error(error: BaseException, task: int, operator: str, where: str, more: str = "") -> TaskError:
    """The TaskError for the exception that ended a task. The message contains `where`, as "on learner 1", and ends with
    `more`."""
    message = f"task {task} failed in operator {operator!r} {where}: {type(error).__name__}: {error}{more}"
    return TaskError(message, task=task, operator=operator)
