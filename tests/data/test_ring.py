"""The ring's protocol, step by step on one thread: who may fill, take and release which slot, and when."""

from __future__ import annotations

import pytest

from crossbow.data.ring import Batch, BatchRing
from crossbow.types import Aborted


def fill(ring: BatchRing) -> int:
    """What one of the loader's threads does when it is awake: fill until a slot is not free. Returns how many it
    filled."""
    count, claim = 0, ring.claim()
    while claim is not None:
        claim = ring.publish(claim[1], examples=4)
        count += 1
    return count


def worth_filling(ring: BatchRing) -> bool:
    with ring._lock:
        return ring._worth_filling()


def test_tasks_come_in_order_in_slot_n_mod_s() -> None:
    ring = BatchRing(3, first_task=7, tasks=None)
    taken = []
    for _ in range(3):
        for _ in range(fill(ring)):
            taken.append(ring.next())
            ring.release(taken[-1].slot)
    assert taken == [Batch(task % 3, task, 4) for task in range(7, 16)]


def test_a_new_ring_is_filled_to_the_brim_and_not_beyond() -> None:
    ring = BatchRing(4, 0, None)
    assert fill(ring) == 4
    assert not worth_filling(ring)


def test_filled_slots_are_counted_until_they_are_taken() -> None:
    ring = BatchRing(3, 0, None)
    claim, counts = ring.claim(), [ring.filled]
    for _ in range(2):
        assert claim is not None
        claim = ring.publish(claim[1], examples=4)
        counts.append(ring.filled)
    ring.next()
    assert [*counts, ring.filled] == [0, 1, 2, 1]


def test_refilling_waits_until_half_is_free() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    ring.release(ring.next().slot)
    assert not worth_filling(ring)
    ring.release(ring.next().slot)
    assert worth_filling(ring)
    assert fill(ring) == 2


def test_out_of_order_releases_wait_for_the_slot_that_is_next() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    slots = [ring.next().slot for _ in range(4)]
    for slot in (slots[3], slots[1], slots[2]):
        ring.release(slot)
        assert not worth_filling(ring)
    ring.release(slots[0])
    assert worth_filling(ring)
    assert fill(ring) == 4


def test_filling_stops_at_a_slot_that_is_held() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    for _ in range(4):
        ring.next()
    for slot in (0, 1, 3):
        ring.release(slot)
    assert fill(ring) == 2
    assert not worth_filling(ring)
    ring.release(2)
    assert worth_filling(ring)
    assert fill(ring) == 2


def test_one_free_slot_is_enough_when_somebody_waits() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    slots = [ring.next().slot for _ in range(4)]
    ring.release(slots[0])
    assert not worth_filling(ring)
    ring._taker_waits = True
    assert worth_filling(ring)


def test_a_ring_of_one_slot_works() -> None:
    ring = BatchRing(1, 0, None)
    for task in range(5):
        assert fill(ring) == 1
        assert ring.next() == (0, task, 4)
        ring.release(0)


def test_a_finite_ring_ends() -> None:
    ring = BatchRing(4, first_task=2, tasks=3)
    assert ring.claim() == (2, 2)
    assert ring.publish(2, 4) == (3, 3)
    assert ring.publish(3, 4) == (4, 0)
    assert ring.publish(0, 4) is None
    assert ring.claim() is None
    assert [ring.next().task for _ in range(3)] == [2, 3, 4]
    with pytest.raises(IndexError, match=r"task < 5, where the loader ends. Received: 5"):
        ring.next()
    empty = BatchRing(4, 2, 0)
    assert empty.claim() is None


def test_a_slot_is_released_once_and_only_after_it_was_given() -> None:
    ring = BatchRing(2, 0, None)
    with pytest.raises(ValueError, match="slot 0, which is free"):
        ring.release(0)
    fill(ring)
    with pytest.raises(ValueError, match="slot 1, which is filled, but not taken"):
        ring.release(1)
    ring.release(ring.next().slot)
    with pytest.raises(ValueError, match="slot 0, which is free"):
        ring.release(0)


def test_a_failure_comes_before_batches_that_are_filled_already() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    ring.release(ring.next().slot)
    ring.release(ring.next().slot)
    claim = ring.claim()
    assert claim is not None
    error = OSError("gone")
    ring.fail(claim, error)
    assert ring.claim() is None
    for _ in range(2):
        with pytest.raises(OSError, match="gone") as caught:
            ring.next()
        assert caught.value is error


def test_closing_ends_both_sides() -> None:
    ring = BatchRing(4, 0, None)
    _, slot = ring.claim() or (-1, -1)
    ring.close()
    assert ring.claim() is None
    assert ring.publish(slot, 4) is None
    with pytest.raises(Aborted, match="stopped"):
        ring.next()


# Several threads of a loader.


def test_batches_that_are_filled_out_of_order_are_given_in_task_order() -> None:
    ring = BatchRing(4, 0, tasks=3)
    slots = [slot for _, slot in (ring.claim() or (-1, -1) for _ in range(3))]
    assert slots == [0, 1, 2]
    assert ring.claim() is None  # the last task is claimed
    for slot in (2, 0, 1):
        ring.publish(slot, examples=slot)
    assert [ring.next() for _ in range(3)] == [Batch(task, task, task) for task in range(3)]


def test_a_slot_that_is_being_filled_cannot_be_released() -> None:
    ring = BatchRing(2, 0, None)
    ring.claim()
    with pytest.raises(ValueError, match="slot 0, which is being filled"):
        ring.release(0)


def test_the_first_failure_in_task_order_counts() -> None:
    """It is known when no earlier task is being filled: tasks are claimed in order."""
    ring = BatchRing(8, 0, None)
    claims = [ring.claim() or (-1, -1) for _ in range(4)]
    errors = [OSError(f"task {task}") for task, _ in claims]
    ring.fail(claims[2], errors[2])
    with ring._lock:
        assert not ring._is_first_failure()
    ring.publish(0, 4)
    ring.fail(claims[3], errors[3])
    ring.fail(claims[1], errors[1])
    for _ in range(2):
        with pytest.raises(OSError, match="task 1"):
            ring.next()


def test_a_failure_does_not_wait_for_later_tasks() -> None:
    ring = BatchRing(8, 0, None)
    first, _ = (ring.claim() or (-1, -1) for _ in range(2))
    ring.fail(first, OSError("task 0"))
    with ring._lock:
        assert ring._is_first_failure()


# Slots in any order.


def test_a_ring_that_is_not_in_turn_goes_on_beside_a_slot_that_is_held() -> None:
    ring = BatchRing(3, 0, None, in_turn=False)
    assert fill(ring) == 3
    held = ring.next()
    seen = []
    for task in range(1, 20):
        batch = ring.next()
        seen.append(batch.task)
        assert batch.slot != held.slot
        ring.release(batch.slot)
        if worth_filling(ring):
            fill(ring)
        assert batch.task == task
    assert seen == [*range(1, 20)]
    ring.release(held.slot)


def test_a_slot_that_becomes_free_does_not_replace_the_one_that_is_being_filled() -> None:
    ring = BatchRing(3, 0, None, in_turn=False)
    fill(ring)
    first, second, third = ring.next(), ring.next(), ring.next()
    ring.release(third.slot)
    ring.release(second.slot)
    assert ring.claim() == (3, second.slot)
    ring.release(first.slot)  # of a lower number
    assert ring.publish(second.slot, 4) == (4, first.slot)
    assert ring.next().slot == second.slot


def test_no_slot_is_free() -> None:
    ring = BatchRing(2, 0, None, in_turn=False)
    fill(ring)
    assert not worth_filling(ring)
    ring.next()
    assert not worth_filling(ring)
