"""Ownership of the slots in a ring of batches: a protocol between the loader's threads and the learners' threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from crossbow.types import Aborted

_FREE, _FILLING, _FILLED, _TAKEN = 0, 1, 2, 3


Claim = tuple[int, int]
"""A task and the slot that one of the loader's threads fills for it."""


class Batch(NamedTuple):
    """A filled slot."""

    slot: int
    task: int
    examples: int
    """Number of real examples in the batch; the rest is padding."""


class BatchRing:
    """S slots. Task n uses slot n mod S or, with `in_turn=False`, the first free slot. A slot is first free, then being
    filled, filled, taken, and free again.

    ::

        loader's threads     claim (in task order) ──► publish (in any order)
        scheduler's thread                                └──► next      (in task order; one thread)
        learners' threads                                       └──► release   (in any order) ──► claim

    Waking a thread costs more than filling a small batch. So the loader's threads sleep until half of the slots are
    free, or until a thread waits for a batch. In the latter case one free slot suffices, because two learners that wait
    for each other might hold the other slots.
    """

    def __init__(self, slots: int, first_task: int, tasks: int | None, *, in_turn: bool = True) -> None:
        """in_turn: whether a task waits for its own slot even if others are free."""
        self.slots = slots
        self._in_turn = in_turn
        self._order: deque[int] = deque()
        """Slots that are claimed or filled, in task order."""
        self._end = None if tasks is None else first_task + tasks
        self._next_to_claim = self._next_to_take = first_task
        self._state = bytearray(slots)
        self._tasks = [0] * slots
        self._examples = [0] * slots
        self._number_free = slots
        self._bulk = max(1, slots // 2)
        # Use `with self._lock` everywhere, never a condition: acquiring a lock is atomic with respect to Ctrl-C.
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._filled = threading.Condition(self._lock)
        self._sleeping = 0
        """Number of the loader's threads that wait for space."""
        self._taker_waits = False
        self._closed = False
        self._failure: tuple[int, BaseException] | None = None
        """The first task in task order whose batch could not be filled, and the error."""

    # The loader's side.

    def claim(self) -> Claim | None:
        """Block until enough slots are free. Returns the next task to fill and its slot, or None if the thread should
        end."""
        with self._lock:
            while not self._over():
                if self._worth_filling():
                    return self._claim()
                self._sleeping += 1
                self._space.wait()
                self._sleeping -= 1
            return None

    def publish(self, slot: int, examples: int) -> Claim | None:
        """Mark a claimed slot as filled. Returns another claim if a slot can be filled at once."""
        with self._lock:
            self._state[slot] = _FILLED
            self._examples[slot] = examples
            if self._taker_waits and (self._order[0] == slot or self._failure is not None):
                self._filled.notify()
            return None if self._over() or not self._can_fill() else self._claim()

    def fail(self, claim: Claim, error: BaseException) -> None:
        """Store the error of a claimed task. No more tasks are claimed, and `next` raises the error of the first
        failing task as soon as the tasks before it are filled."""
        with self._lock:
            task, slot = claim
            self._state[slot] = _FREE
            if self._failure is None or task < self._failure[0]:
                self._failure = task, error
            self._space.notify_all()
            self._filled.notify_all()

    # The learners' side.

    def next(self) -> Batch:
        """The next task's batch. Blocks until it is filled. Raises the loader's error as soon as it occurs."""
        with self._lock:
            while True:
                if self._failure is not None and self._is_first_failure():
                    raise self._failure[1]
                if self._closed:
                    raise Aborted("the loader was stopped")
                if self._failure is None:
                    if self._order and self._state[self._order[0]] == _FILLED:
                        break
                    if self._next_to_take == self._end:
                        raise IndexError(f"expected a task < {self._end}, where the loader ends. Received: {self._end}")
                self._wait_for_a_batch()
            self._next_to_take += 1
            slot = self._order.popleft()
            self._state[slot] = _TAKEN
            return Batch(slot, self._tasks[slot], self._examples[slot])

    def release(self, slot: int) -> None:
        """Free a slot that has been read. Any thread may call this, in any order, once for each `next`."""
        with self._lock:
            if self._state[slot] != _TAKEN:
                state = ("free", "being filled", "filled, but not taken")[self._state[slot]]
                raise ValueError(
                    f"release: expected a slot returned by `next`. Received: slot {slot}, which is {state}"
                )
            self._state[slot] = _FREE
            self._number_free += 1
            if self._sleeping and self._worth_filling():
                self._space.notify_all()

    @property
    def filled(self) -> int:
        """Number of filled slots that have not been taken yet."""
        return self._state.count(_FILLED)

    def close(self) -> None:
        """Wake all threads permanently."""
        with self._lock:
            self._closed = True
            self._space.notify_all()
            self._filled.notify_all()

    # Callers of these methods hold the lock.

    def _over(self) -> bool:
        return self._closed or self._failure is not None or self._next_to_claim == self._end

    def _claim(self) -> Claim:
        task, slot = self._next_to_claim, self._next_slot()
        self._next_to_claim += 1
        self._number_free -= 1
        self._state[slot] = _FILLING
        self._tasks[slot] = task
        self._order.append(slot)
        return task, slot

    def _worth_filling(self) -> bool:
        return self._can_fill() and (self._taker_waits or self._number_free >= self._bulk)

    def _can_fill(self) -> bool:
        slot = self._next_slot()
        return slot >= 0 and self._state[slot] == _FREE

    def _next_slot(self) -> int:
        """The slot of the next task to fill; −1 if any slot may be used and none is free."""
        return self._next_to_claim % self.slots if self._in_turn else self._state.find(_FREE)

    def _is_first_failure(self) -> bool:
        """Whether no task before the failing one can still fail. All of these have been claimed, because tasks are
        claimed in order."""
        assert self._failure is not None
        failing = self._failure[0]
        return not any(
            state == _FILLING and task < failing for state, task in zip(self._state, self._tasks, strict=True)
        )

    def _wait_for_a_batch(self) -> None:
        self._taker_waits = True
        try:
            if self._sleeping and self._worth_filling():
                self._space.notify_all()
            self._filled.wait()
        finally:
            self._taker_waits = False
