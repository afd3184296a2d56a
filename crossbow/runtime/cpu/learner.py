"""A learner on a CPU: a stream, and the task lists that run on it."""

from __future__ import annotations

import functools
import math
import struct
import time
from collections.abc import Mapping

from crossbow.clock import now
from crossbow.runtime.activity import Activity
from crossbow.runtime.cpu.coefficients import HostNumbers
from crossbow.runtime.cpu.stream import CpuStream
from crossbow.runtime.cpu.timing import TimedTask
from crossbow.runtime.cpu.work import BoundTask
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import Completed, Failed, Finished, Report, Task, TaskKey, check_loss
from crossbow.timeline.recorder import Recorder, TaskEvent, learner_track
from crossbow.types import Aborted, Array

_FIELDS = struct.Struct("=4q")
"""TASK, SLOT, EXAMPLES and TICK, in the order of the state."""


class CpuLearner:
    """Runs tasks on its stream, in order.

    A task that fails sets `abort`, and then no other task begins. The replica has missed a step, so the learner must
    not contribute to another tick until it restarts.
    """

    def __init__(
        self,
        number: int,
        stream: CpuStream,
        tasks: Mapping[TaskKey, BoundTask],
        numbers: HostNumbers,
        state: Array,
        flags: Flags,
        report: Report,
        finished: Finished | None = None,
        *,
        recorder: Recorder,
        track: str = "",
    ) -> None:
        """finished: called after each training task under a rule without a barrier. track: name of its track in
        timelines, if it is not a learner's track."""
        self.number, self.stream = number, stream
        self.tasks, self.state, self.finished = tasks, state, finished
        self._numbers, self._abort, self._report = numbers, flags.abort, report
        self._recorder, self._track = recorder, track or learner_track(number)
        self._timed: dict[TaskKey, TimedTask] = {}
        """The tasks that were recorded, with lists that time their calls."""
        self.activity = Activity(state)
        self._fields = state.data.cast("B")  # a memoryview: assignments take a third of the time of an array's

    @property
    def scaling(self) -> None:
        """None: CPUs do not compute with float16."""
        return None

    def submit(self, task: Task) -> None:
        """Submit a task, which runs after earlier ones. Returns at once; errors are reported, not raised."""
        self.stream.submit(functools.partial(self._run, task))

    def _run(self, task: Task) -> None:
        """Run a task. Called on the stream's thread."""
        number = task.number
        if self._abort[0]:
            self._report(Failed(number, self.number, "wait", None))
            return
        activity, timed, exchanging = self.activity, None, 0
        activity.begin()
        operator, began, begin = "task", time.perf_counter(), 0
        try:
            if self._recorder.on:
                begin, timed = now(), self._timed_task(task.key)
            bound = self.tasks[task.key] if timed is None else timed.task
            _FIELDS.pack_into(self._fields, 0, number, task.slot, task.examples, task.tick)
            self._numbers.set(task.coefficients)
            try:
                bound.calls.run()
            except BaseException:
                operator = bound.calls.failed or operator
                raise
            seconds, exchanged = time.perf_counter() - began, 0.0
            loss = math.nan
            accuracy = None if bound.accuracy is None else float(bound.accuracy[0])
            metrics = tuple(float(metric[0]) for metric in bound.metrics)
            if bound.release is not None:
                bound.release(task.slot)
            if bound.loss is not None:
                loss = float(bound.loss[0])
                check_loss(task, loss)
            if task.purpose == "train":
                assert self.finished is not None
                operator = "exchange"
                if self._abort[0]:
                    raise Aborted  # another learner has failed: z must not change
                activity.exchange()
                if timed is not None:
                    exchanging = now()
                self.finished(self.number, task.pace)
                exchanged = time.perf_counter() - began - seconds
            if task.purpose != "check":
                activity.add(seconds, exchanged, task.examples)
        except Aborted:
            self._report(Failed(number, self.number, "wait", None))
        except BaseException as error:
            self._abort[0] = 1
            self._report(Failed(number, self.number, operator, error))
        else:
            if timed is not None:  # before the report, because the recording may be used after it
                self._record(task, timed, begin, exchanging)
            self._report(Completed(number, loss, accuracy, task.examples, self.number, seconds, metrics=metrics))
        finally:
            activity.end()

    def _timed_task(self, key: TaskKey) -> TimedTask:
        timed = self._timed.get(key)
        if timed is None:
            timed = self._timed[key] = TimedTask(self.tasks[key])
        return timed

    def _record(self, task: Task, timed: TimedTask, begin: int, exchange: int) -> None:
        """Record a completed task."""
        purpose, number, tick, examples = task.purpose, task.number, task.tick, task.examples
        times, calls = timed.times(), timed.calls
        self._recorder.task(
            TaskEvent(self._track, purpose, number, tick, examples, begin, times, calls, exchange, now())
        )

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted tasks are done. Returns whether they were within `timeout` seconds."""
        return self.stream.wait(timeout)

    def stop(self, timeout: float) -> None:
        """End the thread after its current task, if possible within `timeout` seconds."""
        self.stream.close(timeout)

    def close(self, timeout: float) -> None:
        """Do nothing: there is no memory to free."""
