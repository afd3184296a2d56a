"""The ring's protocol, step by step on one thread: who may fill, take and release which slot, and when."""

from __future__ import annotations

import pytest

from crossbow.data.ring import Batch, BatchRing
from crossbow.types import Aborted


def fill(ring: BatchRing) -> int:
    """What the loader does when it is awake: fill until a slot is not free. Returns how many it filled."""
    count, more = 0, True
    while more:
        more = ring.publish(examples=4)
        count += 1
    return count


def worth_filling(ring: BatchRing) -> bool:
    with ring._lock:
        return ring._worth_filling()


def test_tasks_come_in_order_in_slot_n_mod_s() -> None:
    ring = BatchRing(3, first_task=7, tasks=None)
    taken = []
    for _ in range(3):
        assert ring.wait_for_space() == 7 + len(taken)
        for _ in range(fill(ring)):
            taken.append(ring.next())
            ring.release(taken[-1].slot)
    assert taken == [Batch(task % 3, task, 4) for task in range(7, 16)]


def test_a_new_ring_is_filled_to_the_brim_and_not_beyond() -> None:
    ring = BatchRing(4, 0, None)
    assert ring.wait_for_space() == 0
    assert fill(ring) == 4
    assert not worth_filling(ring)


def test_refilling_waits_until_half_is_free() -> None:
    ring = BatchRing(4, 0, None)
    fill(ring)
    ring.release(ring.next().slot)
    assert not worth_filling(ring)
    ring.release(ring.next().slot)
    assert worth_filling(ring)
    assert ring.wait_for_space() == 4
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
    assert ring.wait_for_space() == 6
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
        assert ring.wait_for_space() == task
        assert fill(ring) == 1
        assert ring.next() == (0, task, 4)
        ring.release(0)


def test_a_finite_ring_ends() -> None:
    ring = BatchRing(4, first_task=2, tasks=3)
    assert ring.wait_for_space() == 2
    assert fill(ring) == 3
    assert ring.wait_for_space() == -1
    assert [ring.next().task for _ in range(3)] == [2, 3, 4]
    with pytest.raises(IndexError, match=r"task < 5, where the loader ends. Received: 5"):
        ring.next()
    empty = BatchRing(4, 2, 0)
    assert empty.wait_for_space() == -1


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
    ring.next()
    error = OSError("gone")
    ring.fail(error)
    for _ in range(2):
        with pytest.raises(OSError, match="gone") as caught:
            ring.next()
        assert caught.value is error
    ring.release(0)


def test_closing_ends_both_sides() -> None:
    ring = BatchRing(4, 0, None)
    ring.publish(4)
    ring.close()
    assert ring.wait_for_space() == -1
    assert not ring.publish(4)
    with pytest.raises(Aborted, match="stopped"):
        ring.next()


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
            assert ring.slot_to_fill() not in (-1, held.slot)
            fill(ring)
        assert batch.task == task
    assert seen == [*range(1, 20)]
    ring.release(held.slot)


def test_the_slot_that_is_being_filled_stays_it_when_another_becomes_free() -> None:
    ring = BatchRing(3, 0, None, in_turn=False)
    fill(ring)
    first, second, _ = ring.next(), ring.next(), ring.next()
    ring.release(second.slot)
    filling = ring.slot_to_fill()
    assert filling == second.slot
    ring.release(first.slot)  # of a lower number
    ring.publish(4)
    assert ring.next().slot == second.slot
    assert ring.slot_to_fill() == first.slot


def test_no_slot_is_free() -> None:
    ring = BatchRing(2, 0, None, in_turn=False)
    fill(ring)
    assert not worth_filling(ring)
    ring.next()
    assert not worth_filling(ring)
