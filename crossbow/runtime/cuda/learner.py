"""A learner on a GPU: a replica and a stream, and the work that is bound to them.

A task is submitted without waiting for anything on the GPU::

    copies    wait until the last task with this input buffer is done ► copy batch and state ► (copied)
    learner   wait copied ► forward, backward, loss and accuracy to the host ► step ► (done)

There are two input buffers, so that the next batch is copied while this one is computed with. A step that synchronises
is submitted by the synchroniser, after the merge of its tick (`synchroniser.py`). A thread of the learner's sleeps
until a task is done, and reports it.
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
from crossbow.runtime.cuda.coefficients import DeviceNumbers
from crossbow.runtime.cuda.memory import Turns
from crossbow.runtime.cuda.stream import Event, LearnerStreams
from crossbow.runtime.cuda.work import BoundWork, StepKey, Work, WorkKey
from crossbow.runtime.flags import Flags
from crossbow.runtime.task import Completed, Failed, Finished, Purpose, Report, Task, check_loss
from crossbow.types import Aborted


class _Submitted(NamedTuple):
    """A task on its way, and what is bound to it."""

    task: Task
    turn: int
    bound: BoundWork


class CudaLearner:
    """Runs tasks on its stream, in order; implements `Learner`. Made with its GPU as the current one."""

    def __init__(
        self,
        number: int,
        streams: LearnerStreams,
        turns: Turns,
        tasks: Mapping[WorkKey, BoundWork],
        steps: Mapping[StepKey, Work],
        numbers: DeviceNumbers,
        flags: Flags,
        report: Report,
        *,
        sends: str = "weights",
        finished: Finished | None = None,
    ) -> None:
        """sends: what the rule says that a learner sends. finished: called after each training task, where there is no
        barrier."""
        self.number, self.stream, self.copies = number, streams.compute, streams.copies
        self.tasks, self.steps, self.finished = tasks, steps, finished
        self.ready = Event(self.stream.device)
        """From then on, what this learner contributes to the present tick does not change until the tick is merged: the
        end of its task before, or of the gradient of the one that synchronises."""
        self._sends = sends
        self._sent = None if sends == "weights" else Event(self.stream.device)
        """Where what is sent is made in the task, the event that it is there."""
        self._turns, self._numbers, self._abort = turns, numbers, flags.abort
        self._submitting, self._report = streams.submitting, report
        self._counts = {"train": 0, "check": 0}
        self._work: Work | None = None
        """The last that was submitted."""
        self._waiting: _Submitted | None = None
        """The task whose step the synchroniser will submit."""
        self._submitted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """What is to be done in order: the reports of tasks once they are done."""
        self._watcher: threading.Thread | None = None

    def submit(self, task: Task) -> None:
        """Run a task after those submitted before. Returns at once; what goes wrong is reported, not raised."""
        with self._submitting:
            if self._abort[0]:
                self._report(Failed(task.number, self.number, "wait", None))
                return
            self._start_watching()
            bound = self.tasks[(*task.key, self._next_buffer(task.purpose))]
            submitted = _Submitted(task, self._turns.take(), bound)
            self._work = None
            try:
                with on(self.stream.place):
                    self._copy(submitted)
                    self._compute(submitted)
            except BaseException as error:
                self._failed(submitted, error)

    def step(self, parity: int, merged: Event) -> None:
        """Submit the step of the task that synchronises, which waits for the merge of its tick."""
        assert self._waiting is not None
        submitted, self._waiting = self._waiting, None
        self._work = None
        try:
            with on(self.stream.place):
                self._numbers.set(submitted.task.coefficients)
                self.stream.wait_for(merged)
                self._run(self.steps["synchronise", parity])
                self._finish(submitted)
        except BaseException as error:
            self._failed(submitted, error)

    def _copy(self, submitted: _Submitted) -> None:
        """Submit the copy of the task's record."""
        task = submitted.task
        submitted.bound.input.copy(self.copies, task.slot, task.number, task.examples, task.tick, submitted.turn)

    def _compute(self, submitted: _Submitted) -> None:
        """Submit forward and backward pass, and what follows them unless the synchroniser submits it."""
        task, bound = submitted.task, submitted.bound
        bound.input.wait_for_copy(self.stream)
        self._run(bound.compute)
        if task.purpose == "synchronise":
            if self._sends == "new weights":
                self._numbers.set(task.coefficients)
                self._run(self.steps["send", task.parity])
            if self._sent is not None:
                self._sent.record(self.stream)
                self.ready = self._sent
            self._waiting = submitted
            return
        if task.purpose != "check":
            self._numbers.set(task.coefficients)
            self._run(self.steps[task.key])
        self._finish(submitted)

    def _run(self, work: Work) -> None:
        self._work = work
        work.run()

    def _failed(self, submitted: _Submitted, error: BaseException) -> None:
        """Report what went wrong while submitting, and let no other task begin."""
        self._abort[0] = 1
        if not isinstance(error, Exception):  # Ctrl-C
            raise error
        self._turns.give_back(submitted.turn)
        operator = (self._work.failed if self._work else None) or "task"
        self._report(Failed(submitted.task.number, self.number, operator, error))

    def _next_buffer(self, purpose: Purpose) -> int:
        """The number of the input buffer: one after the other."""
        batches = "check" if purpose == "check" else "train"
        self._counts[batches] += 1
        return (self._counts[batches] - 1) % 2

    # Reports

    def _start_watching(self) -> None:
        if self._watcher is None:
            # It refers to the queue only, so that a learner which nobody holds can be collected.
            arguments = (self._submitted, self.stream.device)
            self._watcher = threading.Thread(target=_watch, args=arguments, name=f"watcher-{self.number}", daemon=True)
            weakref.finalize(self, self._submitted.put, None).atexit = False
            self._watcher.start()

    def _finish(self, submitted: _Submitted) -> None:
        """Let the results be reported when all is done."""
        done = self._turns.done[submitted.turn]
        done.record(self.stream)
        # Should it have been recorded again when it is waited for, then for a later task of this stream.
        submitted.bound.input.read_until(done)
        self.ready = done
        self._submitted.put(lambda: self._report(self._result(submitted)))

    def _result(self, submitted: _Submitted) -> Completed | Failed:
        """What a task came to, once it is done."""
        task, bound, operator = submitted.task, submitted.bound, "task"
        try:
            self._turns.done[submitted.turn].wait()
            loss, accuracy = self._turns.results[submitted.turn].tolist()
            bound.release(task.slot)
            if bound.loss:
                check_loss(task, loss)
            if self.finished is not None and task.purpose == "train":
                operator = "exchange"
                self.finished(self.number, task.pace)
        except Aborted:
            return Failed(task.number, self.number, "wait", None)
        except BaseException as error:  # what went wrong on the GPU, or in the numbers
            self._abort[0] = 1
            return Failed(task.number, self.number, operator, error)
        finally:
            self._turns.give_back(submitted.turn)
        found = accuracy if bound.accuracy else None
        return Completed(task.number, loss if bound.loss else math.nan, found, task.examples, self.number)

    # The end

    def wait(self, timeout: float) -> bool:
        """Wait until everything submitted before is done and reported; whether it was within `timeout` seconds. A task
        whose step has not been submitted is given up."""
        deadline = time.monotonic() + timeout
        if self._waiting is not None:
            self._turns.give_back(self._waiting.turn)
            self._waiting = None
        reached = threading.Event()
        self._submitted.put(reached.set)
        if self._watcher is not None and not reached.wait(timeout):
            return False
        return all(stream.wait(max(0.0, deadline - time.monotonic())) for stream in (self.stream, self.copies))

    def stop(self, timeout: float) -> None:
        """End the thread, within `timeout` seconds if possible. It submits work under some rules, for which closing
        would keep it from the lock."""
        self._submitted.put(None)
        if self._watcher is not None:
            self._watcher.join(timeout)

    def close(self, timeout: float) -> None:
        """Give back streams and graphs, within `timeout` seconds if possible."""
        with self._submitting:
            for task in self.tasks.values():
                task.compute.close()
            for step in self.steps.values():
                step.close()
            for stream in (self.stream, self.copies):
                stream.close(timeout)


def _watch(submitted: queue.SimpleQueue[Callable[[], None] | None], device: int) -> None:
    """What the watcher's thread does: tasks as they become done, in order."""
    api().runtime.setDevice(device)
    while (report := submitted.get()) is not None:
        report()
        del report  # or the learner would stay alive while the thread waits for the next
