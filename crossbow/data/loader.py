"""The loader: a thread that fills batches ahead of the learners, in memory that is allocated once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import numpy as np

from crossbow.conf import is_integer
from crossbow.data.examples import Examples, Selection
from crossbow.data.order import Order
from crossbow.data.ring import Batch, BatchRing
from crossbow.host_memory import aligned_zeros
from crossbow.types import Array, DataError, Shape, Tensor

Source = Callable[[Selection, Array, Array], None]
"""Function that writes the selected examples to a slot's images (B, …) and labels (B, …)."""

SECONDS_TO_STOP = 0.5


def batch_tensors(examples: Examples, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Contents of a slot: images, labels and positions."""
    images = Tensor((batch_size, *examples.image_shape), examples.image_dtype)
    labels = Tensor((batch_size, *examples.label_shape), examples.labels.dtype)
    return images, labels, Tensor((batch_size, 2), np.dtype(np.int64))


class Loader:
    """Loads batches of `examples` in `order`, ahead of time, in one thread; task n uses slot n mod `slots`.

    `images` is (S, B, C, H, W) or (S, B, features) and `labels` is (S, B, …), with S slots, the order's batch size B
    and the data set's types; kernels may be bound to them. The same applies to `positions` (S, B, 2), int64: the epoch
    and the index of each example, which determine random transforms. `source` replaces writing by
    `examples` (generated examples; tests inject failures).

    One thread (the scheduler's) calls `next` and receives the batches in task order; any thread that has read a batch
    calls `release`. There must be at least as many slots as batches held at the same time. `next` raises errors of the
    source as soon as they occur. The contents of the batches depend only on the order, never on timing.

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
    ) -> None:
        """memory: arrays for images, labels and positions of the slots; by default they are allocated. in_turn: if
        False, task n uses any free slot, so that one slot in use delays no other task."""
        if not is_integer(slots) or slots < 1:
            raise DataError(f"slots: expected an integer ≥ 1. Received: {slots!r}")
        self.order = order
        self.slots = slots
        self.name = f"crossbow-{name}"
        if memory is None:
            parts = batch_tensors(examples, order.batch_size)
            memory = [_zeros((slots, *part.shape), part.dtype) for part in parts]
        self.images, self.labels, positions = memory
        self.positions = positions.view(np.int64)
        self._in_turn = in_turn
        self._source = examples.write if source is None else source
        self._ring: BatchRing | None = None
        self._thread: threading.Thread | None = None

    def start(self, first_task: int = 0, tasks: int | None = None) -> None:
        """Start to fill the batches of `tasks` tasks (None: all tasks of the order) from `first_task` on.

        It also restarts a loader after a stop, a failure or Ctrl-C. No thread may still read a slot.
        """
        if not is_integer(first_task) or first_task < 0:
            raise DataError(f"first_task: expected an integer ≥ 0. Received: {first_task!r}")
        available = None if self.order.tasks is None else self.order.tasks - first_task
        if tasks is None:
            tasks = available
        if tasks is not None and (tasks < 0 or (available is not None and tasks > available)):
            raise DataError(f"tasks: expected at most the {available} from task {first_task} on. Received: {tasks}")
        self.stop()
        if self._thread is not None:
            # If `stop` could not wait for a source, it still writes to a slot; two threads must not do so.
            self._thread.join()
        self._ring = BatchRing(self.slots, first_task, tasks, in_turn=self._in_turn)
        self._thread = threading.Thread(target=self._fill, args=(self._ring,), name=self.name, daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        """The next task's (slot, task, number of real examples). Blocks until it is filled.

        Raises the source's error; Aborted if another thread stops the loader; IndexError after the last task.
        """
        if self._ring is None:
            raise RuntimeError("the loader was not started")
        return self._ring.next()

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
        """Deliver no more batches: a thread that waits in `next` gets Aborted. Any thread; returns at once."""
        ring = self._ring
        if ring is not None:
            ring.close()

    def stop(self) -> None:
        """End the thread. Returns within half a second; if the source blocks, its thread ends later."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        if self._thread is not None:
            # Ctrl-C may have interrupted `start`: an unstarted thread cannot be joined, and will find its ring closed.
            with contextlib.suppress(RuntimeError):
                self._thread.join(SECONDS_TO_STOP)
            if not self._thread.is_alive():
                self._thread = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _fill(self, ring: BatchRing) -> None:
        """Body of the thread: fill slots until the ring is closed, the tasks are done, or the source fails."""
        size = self.order.batch_size
        selection = Selection(np.zeros(size, np.intp), np.zeros(size, np.int64), self.order.seed)
        memory = [(self.images[slot], self.labels[slot]) for slot in range(self.slots)]
        positions = [(self.positions[slot, :, 0], self.positions[slot, :, 1]) for slot in range(self.slots)]
        task = -1
        try:
            while (task := ring.wait_for_space()) >= 0:
                more = True
                while more:
                    slot = ring.slot_to_fill()
                    epochs, places = positions[slot]
                    examples = self.order.indices(task, selection.indices, selection.epochs)
                    epochs[...], places[...] = selection.epochs, selection.indices
                    self._source(selection, *memory[slot])
                    more = ring.publish(examples)
                    task += 1
        except BaseException as error:
            error.add_note(f"raised in the thread {self.name!r}, while filling the batch of task {task}")
            ring.fail(error)


def _zeros(shape: Shape, dtype: np.dtype[np.generic]) -> Array:
    tensor = Tensor(shape, dtype)
    return tensor.view(aligned_zeros(tensor.nbytes))
