"""A learner on a GPU: a replica and a stream, with their work.

A task is submitted without waiting for the GPU::

    copies    wait until the last task with this input buffer is done ► copy batch and state ► (copied)
    learner   wait copied ► forward, backward, loss and accuracy to the host, step ► (done)

There are two input buffers, so that the next batch is copied while the current one is in use. Small batches are copied
by the learner's compute stream, without events. The synchroniser submits a synchronising step, after the merge of its
tick (`synchroniser.py`). Under a rule that merges the weights from before the step, it submits the whole task, in which
a graph then waits for the merge. The only learner of a run also merges: each of its tasks is then a single graph, too.
The learner's thread sleeps until a task is done, and reports it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import on
from crossbow.kernels.cuda.ranges import Ranges
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.memory import Turns
from crossbow.runtime.cuda.stream import Event, LearnerStreams
from crossbow.runtime.cuda.timing import Marks, StreamClock
from crossbow.runtime.cuda.work import BoundWork, Work, WorkKey, run
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import Completed, Failed, Finished, Purpose, Report, Task, check_loss
from crossbow.timeline.recorder import Recorder, TaskEvent, learner_track
from crossbow.types import Aborted, Array


class _Submitted(NamedTuple):
    """A submitted task with its resources."""

    task: Task
    turn: int
    bound: BoundWork
    marks: Marks | None
    """The times of its calls, if they are recorded."""


class CudaLearner:
    """Runs tasks on its stream, in order; implements `Learner`. Its GPU must be the current one at its creation."""

    def __init__(
        self,
        number: int,
        streams: LearnerStreams,
        turns: Turns,
        tasks: Mapping[WorkKey, BoundWork],
        steps: Mapping[int, Work],
        numbers: DeviceNumbers,
        flags: Flags,
        report: Report,
        *,
        recorder: Recorder,
        ranges: Ranges,
        sends: str = "weights",
        waits_inside: bool = False,
        finished: Finished | None = None,
        scaling: Array | None = None,
    ) -> None:
        """steps: for each parity, the work of a synchronising task after the merge; empty if tasks have no such part.
        waits_inside: whether the work of a synchronising task contains the wait for the merge, so that it must be
        submitted after the merge. sends: the vector that a learner sends, by the rule. finished: called after each
        training task under a rule without a barrier."""
        self.scaling = scaling
        self.activity = None
        self._recorder, self._ranges = recorder, ranges
        self._clock: StreamClock | None = None
        """Created when a task is first recorded."""
        self.number, self.stream, self._streams = number, streams.compute, streams
        self.tasks, self.steps, self.finished = tasks, steps, finished
        self.ready = Event(self.stream.device)
        """Event after which the learner's contribution to the current tick does not change until the merge: the end of
        the previous task, or of the gradient of the synchronising one."""
        self._sends, self._waits_inside = sends, waits_inside
        self._sent = None if sends == "weights" else Event(self.stream.device)
        """Event after which the vector to send is complete, if the task computes it."""
        self._turns, self._numbers, self._abort = turns, numbers, flags.abort
        self._submitting, self._report = streams.submitting, report
        self._counts = {"train": 0, "check": 0}
        self._work: Work | None = None
        """The last submitted task."""
        self._waiting: _Submitted | None = None
        """The task that the synchroniser submits, or its step."""
        self._submitted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Functions that the thread calls in order, which report finished tasks."""
        self._watcher: threading.Thread | None = None

    def submit(self, task: Task) -> None:
        """Submit a task, which runs after earlier ones. Returns at once; errors are reported, not raised."""
        with self._submitting, self._ranges(f"learner {self.number}, task {task.number}"):
            if self._abort[0]:
                self._report(Failed(task.number, self.number, "wait", None))
                return
            self._start_watching()
            bound = self.tasks[(*task.key, self._next_buffer(task.purpose))]
            self._work = None
            submitted = _Submitted(task, self._turns.take(), bound, None)
            try:
                with on(self.stream.place):
                    submitted = submitted._replace(marks=self._new_marks())
                    self._compute(submitted)
            except BaseException as error:
                self._failed(submitted, error)

    def go_on(self, parity: int, merged: Event) -> None:
        """Submit the work that waits for the merge of the tick, which has been submitted: the synchronising task, or
        its step."""
        assert self._waiting is not None
        submitted, self._waiting = self._waiting, None
        self._work = None
        try:
            with on(self.stream.place):
                if self._waits_inside:
                    self._run(submitted.bound.compute, submitted.marks)
                else:
                    self.stream.wait_for(merged)
                    if submitted.marks is not None:
                        submitted.marks.mark("wait merged")
                    self._run(self.steps[parity], submitted.marks)
                self._finish(submitted)
        except BaseException as error:
            self._failed(submitted, error)

    def _copy(self, submitted: _Submitted) -> None:
        """Submit the copy of the task's record."""
        task = submitted.task
        submitted.bound.input.copy(self._streams, task.slot, task.number, task.examples, task.tick, submitted.turn)

    def _compute(self, submitted: _Submitted) -> None:
        """Submit the task and its end, unless the synchroniser does. Otherwise submit the part before the merge."""
        task, bound, marks = submitted.task, submitted.bound, submitted.marks
        waits = task.purpose == "synchronise" and (self._waits_inside or len(self.steps) > 0)
        if marks is not None and waits and self._sends == "weights":
            marks.mark("signal ready")  # since the end of the previous task
        self._copy(submitted)
        if marks is not None:
            marks.mark("wait for the batch")
        if task.purpose != "check":
            self._numbers.set(task.coefficients)
        if waits and self._waits_inside:
            self._waiting = submitted
            return
        self._run(bound.compute, marks)
        if not waits:
            self._finish(submitted)
            return
        if marks is not None and self._sends != "weights":
            marks.mark("signal ready")
        if self._sent is not None:
            self._sent.record(self.stream)
            self.ready = self._sent
        self._waiting = submitted

    def _run(self, work: Work, marks: Marks | None) -> None:
        self._work = work
        run(work, marks)

    def _new_marks(self) -> Marks | None:
        """Begin to time a task's calls, if they are recorded."""
        if not self._recorder.on:
            return None
        if self._clock is None:
            self._clock = StreamClock(self.stream)
        return Marks(self.stream)

    def _record(self, task: Task, marks: Marks) -> None:
        """Record a task that is done."""
        assert self._clock is not None
        with on(self.stream.place):
            times = marks.times(self._clock)
        purpose, number, tick, examples = task.purpose, task.number, task.tick, task.examples
        begin, end, track = int(times[0]), int(times[-1]), learner_track(self.number)
        self._recorder.task(TaskEvent(track, purpose, number, tick, examples, begin, times, marks.calls, 0, end))

    def _failed(self, submitted: _Submitted, error: BaseException) -> None:
        """Report an error during submission, and prevent other tasks from beginning."""
        self._abort[0] = 1
        if not isinstance(error, Exception):  # Ctrl-C
            raise error
        self._turns.give_back(submitted.turn)
        operator = (self._work.failed if self._work else None) or "task"
        self._report(Failed(submitted.task.number, self.number, operator, error))

    def _next_buffer(self, purpose: Purpose) -> int:
        """The number of the next input buffer; buffers take turns."""
        batches = "check" if purpose == "check" else "train"
        self._counts[batches] += 1
        return (self._counts[batches] - 1) % 2

    # Reports

    def _start_watching(self) -> None:
        if self._watcher is None:
            # The thread refers only to the queue, so that an unused learner can be garbage-collected.
            arguments = (self._submitted, self.stream.device)
            watcher = threading.Thread(target=_watch, args=arguments, name=f"watcher-{self.number}", daemon=True)
            weakref.finalize(self, self._submitted.put, None).atexit = False
            watcher.start()
            self._watcher = watcher  # another thread may call `stop`, which joins a started thread only

    def _finish(self, submitted: _Submitted) -> None:
        """Report the results when the task is done."""
        done = self._turns.done[submitted.turn]
        done.record(self.stream)
        # If the event is recorded again before the wait, then by a later task of this stream.
        submitted.bound.input.read_until(done)
        self.ready = done
        self._submitted.put(lambda: self._report(self._result(submitted)))

    def _result(self, submitted: _Submitted) -> Completed | Failed:
        """Wait for a task, and return its result."""
        task, bound, operator = submitted.task, submitted.bound, "task"
        try:
            self._turns.done[submitted.turn].wait()
            loss, accuracy, *metrics = (
                value for rows in self._turns.results for value in rows[submitted.turn].tolist()
            )
            bound.release(task.slot)
            if submitted.marks is not None:
                self._record(task, submitted.marks)
            if bound.loss:
                check_loss(task, loss)
            if self.finished is not None and task.purpose == "train":
                operator = "exchange"
                self.finished(self.number, task.pace)
        except Aborted:
            return Failed(task.number, self.number, "wait", None)
        except BaseException as error:  # an error on the GPU, or a number that is not finite
            self._abort[0] = 1
            return Failed(task.number, self.number, operator, error)
        finally:
            self._turns.give_back(submitted.turn)
        return Completed(
            task.number,
            loss if bound.loss else math.nan,
            accuracy if bound.accuracy else None,
            task.examples,
            self.number,
            metrics=tuple(metrics[: bound.metrics]),
        )

    # The end

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted tasks are done and reported. Returns whether they were within `timeout` seconds. A
        task whose step was not submitted is abandoned."""
        deadline = time.monotonic() + timeout
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._turns.give_back(waiting.turn)
        reached = threading.Event()
        self._submitted.put(reached.set)
        if self._watcher is not None and not reached.wait(timeout):
            return False
        return all(stream.wait(max(0.0, deadline - time.monotonic())) for stream in (self.stream, self._streams.copies))

    def stop(self, timeout: float) -> None:
        """End the thread, if possible within `timeout` seconds. Do not hold the lock: under some rules the thread
        submits work, for which it needs the lock."""
        self._submitted.put(None)
        if self._watcher is not None:
            self._watcher.join(timeout)

    def close(self, timeout: float) -> None:
        """Destroy streams and graphs, if possible within `timeout` seconds."""
        with self._submitting:
            for task in self.tasks.values():
                task.compute.close()
            for step in self.steps.values():
                step.close()
            for stream in (self.stream, self._streams.copies):
                stream.close(timeout)


def _watch(submitted: queue.SimpleQueue[Callable[[], None] | None], device: int) -> None:
    """Body of the thread: report tasks in order, as they finish."""
    api().runtime.setDevice(device)
    while (report := submitted.get()) is not None:
        report()
        del report  # otherwise the learner would stay alive while the thread waits for the next task
