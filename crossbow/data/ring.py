"""Ownership of the slots in a ring of batches: a protocol between the loader's thread and the learners' threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from crossbow.types import Aborted

_FREE, _FILLED, _TAKEN = 0, 1, 2


class Batch(NamedTuple):
    """A filled slot."""

    slot: int
    task: int
    examples: int
    """Number of real examples in the batch; the rest is padding."""


class BatchRing:
    """S slots. Task n uses slot n mod S or, with `in_turn=False`, the first free slot. A slot is free, filled, taken,
    and then free again.

    ::

        loader's thread      wait_for_space ──► publish           (in task order)
        scheduler's thread                         └──► next      (in task order; one thread)
        learners' threads                                └──► release   (in any order) ──► wait_for_space

    Waking a thread costs more than filling a small batch. So the loader sleeps until half of the slots are free, or
    until a thread waits for a batch: then one free slot suffices, because two learners that wait for each other might
    hold the others.
    """

    def __init__(self, slots: int, first_task: int, tasks: int | None, *, in_turn: bool = True) -> None:
        """in_turn: whether a task waits for its own slot even if others are free."""
        self.slots = slots
        self._in_turn = in_turn
        self._order: deque[int] = deque()
        """Filled slots, in task order."""
        self._filling: int | None = None
        """The slot that the loader is filling."""
        self._end = None if tasks is None else first_task + tasks
        self._next_to_fill = self._next_to_take = first_task
        self._state = bytearray(slots)
        self._examples = [0] * slots
        self._number_free = slots
        self._bulk = max(1, slots // 2)
        # Always `with self._lock`, never with a condition: acquiring a lock is atomic with respect to Ctrl-C.
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._filled = threading.Condition(self._lock)
        self._loader_waits = self._taker_waits = False
        self._closed = False
        self._failure: BaseException | None = None

    # The loader's side.

    def wait_for_space(self) -> int:
        """Block until enough slots are free. Returns the next task to fill, or −1 if there is nothing more to do."""
        with self._lock:
            while not self._closed and self._next_to_fill != self._end:
                if self._worth_filling():
                    return self._next_to_fill
                self._loader_waits = True
                self._space.wait()
                self._loader_waits = False
            return -1

    def slot_to_fill(self) -> int:
        """The slot that the loader fills for the next task, until it is published."""
        with self._lock:
            self._filling = self._next_slot()
            return self._filling

    def publish(self, examples: int) -> bool:
        """Mark the next task's slot as filled. Returns whether the next slot can be filled at once."""
        with self._lock:
            slot = self._next_slot() if self._filling is None else self._filling
            self._filling = None
            self._order.append(slot)
            self._state[slot] = _FILLED
            self._examples[slot] = examples
            self._number_free -= 1
            self._next_to_fill += 1
            if self._taker_waits:
                self._filled.notify()
            return not self._closed and self._next_to_fill != self._end and self._can_fill()

    def fail(self, error: BaseException) -> None:
        """Store the error, which `next` raises from now on, and wake all waiting threads."""
        with self._lock:
            self._failure = error
            self._filled.notify_all()

    # The learners' side.

    def next(self) -> Batch:
        """The next task's batch. Blocks until it is filled. Raises the loader's error as soon as it occurs."""
        with self._lock:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._closed:
                    raise Aborted("the loader was stopped")
                task = self._next_to_take
                if task != self._next_to_fill:
                    break
                if task == self._end:
                    raise IndexError(f"expected a task < {self._end}, where the loader ends. Received: {task}")
                self._wait_for_a_batch()
            self._next_to_take += 1
            slot = self._order.popleft()
            self._state[slot] = _TAKEN
            return Batch(slot, task, self._examples[slot])

    def release(self, slot: int) -> None:
        """Free a slot that has been read. Any thread may call this, in any order, once for each `next`."""
        with self._lock:
            if self._state[slot] != _TAKEN:
                state = "free" if self._state[slot] == _FREE else "filled, but not taken"
                raise ValueError(
                    f"release: expected a slot returned by `next`. Received: slot {slot}, which is {state}"
                )
            self._state[slot] = _FREE
            self._number_free += 1
            if self._loader_waits and self._worth_filling():
                self._space.notify()

    def close(self) -> None:
        """Wake all threads permanently."""
        with self._lock:
            self._closed = True
            self._space.notify_all()
            self._filled.notify_all()

    # With the lock held.

    def _worth_filling(self) -> bool:
        return self._can_fill() and (self._taker_waits or self._number_free >= self._bulk)

    def _can_fill(self) -> bool:
        slot = self._next_slot()
        return slot >= 0 and self._state[slot] == _FREE

    def _next_slot(self) -> int:
        """The slot of the next task to fill; −1 if any slot may be used and none is free."""
        return self._next_to_fill % self.slots if self._in_turn else self._state.find(_FREE)

    def _wait_for_a_batch(self) -> None:
        self._taker_waits = True
        try:
            if self._loader_waits and self._worth_filling():
                self._space.notify()
            self._filled.wait()
        finally:
            self._taker_waits = False
