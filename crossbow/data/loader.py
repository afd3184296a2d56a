"""The loader: threads that fill batches ahead of the learners, in memory that is allocated once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType

import numpy as np

from crossbow.clock import now
from crossbow.cluster.placement import Placement
from crossbow.conf import is_integer
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import BadExample, Examples, Indices, Selection
from crossbow.data.order import Order
from crossbow.data.ring import Batch, BatchRing
from crossbow.host_memory import aligned_zeros
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, DataError, Shape, Tensor

Source = Callable[[Selection, Array, Array], None]
"""Function that writes the selected examples to a slot's images (B, …) and labels (B, …). Several threads may call it
at the same time, each with its own slot."""

SECONDS_TO_STOP = 0.5


def batch_tensors(examples: Examples, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Types and shapes of the contents of a slot: images, labels and positions."""
    images = Tensor((batch_size, *examples.image_shape), examples.image_dtype)
    labels = Tensor((batch_size, *examples.label_shape), examples.labels.dtype)
    return images, labels, Tensor((batch_size, 2), np.dtype(np.int64))


class Loader:
    """Loads batches of `examples` in `order`, ahead of time; task n uses slot n mod `slots`. It has `threads` threads,
    each of which fills one batch at a time.

    `images` is (S, B, C, H, W) or (S, B, features) and `labels` is (S, B, …), with S slots, the order's batch size B
    and the data set's types; kernels may be bound to them. The same applies to `positions` (S, B, 2), int64: the epoch
    and the index of each example, which determine random transforms. `source`, if given, writes the batches instead of
    `examples`, for generated examples and for failures in tests.

    One thread (the scheduler's) calls `next` and receives the batches in task order; any thread that has read a batch
    calls `release`. There must be at least as many slots as batches held at the same time. If the source fails, `next`
    raises the error of the first failing task as soon as it occurs. The contents of the batches depend only on the
    order, never on timing or on the number of threads.

    With `bad`, examples that raise BadExample are added to it, and the order leaves them out.

    >>> from crossbow.data.examples import ArrayExamples
    >>> from crossbow.data.order import CheckOrder
    >>> examples = ArrayExamples(np.arange(3, dtype=np.float32)[:, None], np.arange(3, dtype=np.int32))
    >>> with Loader(examples, CheckOrder(3, batch_size=2), slots=2) as loader:
    ...     loader.start()
    ...     for slot, task, count in loader.batches(2):
    ...         print(task, loader.labels[slot, :count])
    ...         loader.release(slot)
    0 [0 1]
    1 [2]
    """

    def __init__(
        self,
        examples: Examples,
        order: Order,
        slots: int,
        *,
        source: Source | None = None,
        name: str = "loader",
        memory: Sequence[Array] | None = None,
        in_turn: bool = True,
        threads: int = 1,
        bad: BadExamples | None = None,
        placement: Placement | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """memory: arrays for images, labels and positions of the slots; by default they are allocated. in_turn: if
        False, task n uses any free slot, so that a slot in use delays no other task. placement: the learners whose
        batches are loaded, by default all; task n is the n-th task that is loaded. recorder: records the times at which
        batches are filled."""
        for what, number in (("slots", slots), ("threads", threads)):
            if not is_integer(number) or number < 1:
                raise DataError(f"{what}: expected an integer ≥ 1. Received: {number!r}")
        self.order = order
        self.slots = slots
        self.name = f"crossbow-{name}"
        if memory is None:
            parts = batch_tensors(examples, order.batch_size)
            memory = [_zeros((slots, *part.shape), part.dtype) for part in parts]
        self.images, self.labels, positions = memory
        self.positions = positions.view(np.int64)
        self._in_turn = in_turn
        self._examples = examples
        self._source = examples.write if source is None else source
        self._bad = bad
        self._placement = None if placement is None or placement.whole else placement
        self._first = 0
        """Number of the first task of all learners, if only some of the batches are loaded."""
        self._skipped: list[int] = []
        self._recorder = recorder or Recorder()
        self._number_of_threads = threads
        self._ring: BatchRing | None = None
        self._threads: list[threading.Thread] = []
        self._ordering = threading.Lock()
        """Held by the thread that uses the order."""

    def start(self, first_task: int = 0, tasks: int | None = None, skipped: Collection[int] = ()) -> None:
        """Start to fill the batches of `tasks` tasks (None: all tasks of the order) from `first_task` on.

        skipped: tasks to leave out. If only some of the batches are loaded, the other tasks rotate over all learners.

        It also restarts a loader after a stop, a failure or Ctrl-C. No thread may still read a slot.
        """
        if not is_integer(first_task) or first_task < 0:
            raise DataError(f"first_task: expected an integer ≥ 0. Received: {first_task!r}")
        available = None if self.order.tasks is None else self.order.tasks - first_task
        if tasks is None:
            tasks = available
        if tasks is not None and (tasks < 0 or (available is not None and tasks > available)):
            most = "" if available is None else f", at most the {available} from task {first_task} on"
            raise DataError(f"tasks: expected an integer ≥ 0{most}. Received: {tasks}")
        self.stop()
        for thread in self._threads:
            # A source that `stop` could not wait for still writes to a slot, and two threads must not do so.
            thread.join()
        self.order.begin(first_task)
        self._skipped = sorted(task for task in skipped if first_task <= task)
        if tasks is not None:
            tasks -= sum(task < first_task + tasks for task in self._skipped)
        if (placement := self._placement) is not None:
            self._first, first_task = first_task, 0
            tasks = None if tasks is None else placement.own_of(tasks)
        ring = self._ring = BatchRing(self.slots, first_task, tasks, in_turn=self._in_turn)
        several = self._number_of_threads > 1
        self._threads = [
            threading.Thread(
                target=self._fill, args=(ring,), name=f"{self.name}-{number}" if several else self.name, daemon=True
            )
            for number in range(self._number_of_threads)
        ]
        for number, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError as error:  # Python raises this if the system cannot start another thread
                self._threads = self._threads[:number]
                self.stop()
                raise DataError(
                    f"{self.name}: expected a system that starts {self._number_of_threads} threads. "
                    f"Received: {error}, after {number}"
                ) from error

    def next(self) -> Batch:
        """The next task's (slot, task, number of real examples). Blocks until it is filled.

        Raises the source's error; Aborted if another thread stops the loader; IndexError after the last task.
        """
        if self._ring is None:
            raise RuntimeError("the loader was not started")
        return self._ring.next()

    @property
    def filled(self) -> int:
        """Number of slots with a batch that has not been taken yet."""
        return 0 if self._ring is None else self._ring.filled

    def batches(self, total: int) -> Iterator[Batch]:
        """The next `total` batches. Each must be released."""
        for _ in range(total):
            yield self.next()

    def release(self, slot: int) -> None:
        """Allow the slot to be refilled. Any thread may call this, in any order; no effect on a stopped loader."""
        ring = self._ring
        if ring is not None:
            ring.release(slot)

    def interrupt(self) -> None:
        """Deliver no more batches: `next` raises Aborted, also in a thread that waits in it. Any thread may call this,
        and it returns at once."""
        ring = self._ring
        if ring is not None:
            ring.close()

    def stop(self) -> None:
        """End the threads. Returns within half a second; if the source blocks, its thread ends later."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for thread in self._threads:
            # Ctrl-C may have interrupted `start`: an unstarted thread cannot be joined, and will find its ring closed.
            with contextlib.suppress(RuntimeError):
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def locate(self, task: int, example: int) -> str:
        """The location in the data set of an example in a task's batch: its file, or its number. task: number of the
        task over all learners."""
        indices, steps = np.zeros((2, self.order.batch_size), np.intp)
        with self._ordering:
            self.order.indices(task, indices)
            if self._bad:
                self.order.leave_out(self._bad.mask, task, indices, steps)
        number = int(indices[example])
        return self._examples.source(number) or f"example {number} of the data set"

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _fill(self, ring: BatchRing) -> None:
        """Body of a thread: fill slots until the ring is closed, the tasks are done, or a source fails."""
        size = self.order.batch_size
        selection = Selection(np.zeros(size, np.intp), np.zeros(size, np.int64), self.order.seed)
        steps = np.zeros(size, np.intp)
        memory = [(self.images[slot], self.labels[slot]) for slot in range(self.slots)]
        positions = [(self.positions[slot, :, 0], self.positions[slot, :, 1]) for slot in range(self.slots)]
        claim = ring.claim()
        while claim is not None:
            task, slot = self._number(claim[0]), claim[1]
            begin = now()
            try:
                examples = self._write(task, selection, steps, *memory[slot])
            except BaseException as error:
                name = threading.current_thread().name
                error.add_note(f"raised in the thread {name!r}, while filling the batch of task {task}")
                ring.fail(claim, error)
                return
            epochs, indices = positions[slot]
            epochs[...], indices[...] = selection.epochs, selection.indices
            if self._recorder.on:
                self._recorder.event(threading.current_thread().name, "fill a batch", begin, task=task, slot=slot)
            claim = ring.publish(slot, examples) or ring.claim()

    def _number(self, task: int) -> int:
        """The number, over all learners, of a task that is loaded."""
        number = task if self._placement is None else self._first + self._placement.task(task)
        for skipped in self._skipped:
            number += skipped <= number
        return number

    def _write(self, task: int, selection: Selection, steps: Indices, images: Array, labels: Array) -> int:
        """Select a task's examples, and write them to a slot. Returns the number of real ones."""
        bad = self._bad
        with self._ordering:
            examples = self.order.indices(task, selection.indices, selection.epochs)
            if bad:
                steps[...] = 0
                examples = self.order.leave_out(bad.mask, task, selection.indices, steps)
        while True:
            try:
                self._source(selection, images, labels)
            except BadExample as error:
                if bad is None or error.index not in selection.indices:
                    raise
                bad.add(error)
            else:
                return examples
            # The whole batch is written again, but only once for each bad example, because bad examples are remembered.
            with self._ordering:
                examples = self.order.leave_out(bad.mask, task, selection.indices, steps)


def _zeros(shape: Shape, dtype: np.dtype[np.generic]) -> Array:
    tensor = Tensor(shape, dtype)
    return tensor.view(aligned_zeros(tensor.nbytes))
