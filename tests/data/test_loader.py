"""The loader's threads: what they fill, in which order, how they fail, stop and start again. No thread is left."""

from __future__ import annotations

import gc
import hashlib
import os
import queue
import random
import signal
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from crossbow.cluster.placement import Placement
from crossbow.data import loader as loading
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.data.loader import Loader
from crossbow.data.order import CheckOrder, TrainingOrder, permutation
from crossbow.types import Aborted, DataError, address
from tests.support import SECONDS, until, within

COUNT, BATCH, SLOTS = 50, 4, 6


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until(lambda: set(threading.enumerate()) <= before)


def examples(count: int = COUNT) -> ArrayExamples:
    random_numbers = np.random.default_rng(0)
    images = random_numbers.integers(0, 256, (count, 1, 3, 3)).astype(np.uint8)
    return ArrayExamples(images, np.arange(count, dtype=np.int32))


def loader(slots: int = SLOTS, source: Callable[..., None] | None = None, seed: int = 3, threads: int = 1) -> Loader:
    return Loader(examples(), TrainingOrder(COUNT, BATCH, seed), slots, source=source, threads=threads)


def expected(task: int, seed: int = 3) -> list[int]:
    out = np.empty(BATCH, np.intp)
    TrainingOrder(COUNT, BATCH, seed).indices(task, out)
    return out.tolist()


def take(made: Loader, tasks: int) -> None:
    """Take and release batches."""
    for batch in made.batches(tasks):
        made.release(batch.slot)


def read(made: Loader, first: int, tasks: int) -> None:
    """Take and release batches, checking each."""
    for task in range(first, first + tasks):
        slot, number, real = made.next()
        assert (slot, number, real) == (task % made.slots, task, BATCH)
        assert made.labels[slot].tolist() == expected(task)
        made.release(slot)


# What is filled.


@pytest.mark.parametrize("slots", [1, 2, 3, 6, 40])
def test_batches_come_in_task_order_with_their_images(slots: int) -> None:
    given = examples()
    with loader(slots) as made:
        made.start()
        for task, (slot, number, real) in enumerate(made.batches(60)):  # almost five epochs
            assert (slot, number, real) == (task % slots, task, BATCH)
            assert made.labels[slot].tolist() == expected(task)
            np.testing.assert_array_equal(made.images[slot], given.images[made.labels[slot]])
            made.release(slot)


def test_slots_are_of_the_data_s_types_and_stay_where_they_are() -> None:
    made = loader()
    assert made.images.shape == (SLOTS, BATCH, 1, 3, 3)
    assert made.images.dtype == np.uint8
    assert made.labels.shape == (SLOTS, BATCH)
    assert made.labels.dtype == np.int32
    where = address(made.images), address(made.labels)
    assert where[0] % 64 == where[1] % 64 == 0
    made.start()
    read(made, 0, 20)
    made.stop()
    assert (address(made.images), address(made.labels)) == where


def test_targets_and_feature_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 3))
    given = ArrayExamples(rows, rows[:, :2].astype(np.float32))
    with Loader(given, CheckOrder(10, 5), 2) as made:
        made.start()
        for task, (slot, _, _) in enumerate(made.batches(2)):
            np.testing.assert_array_equal(made.images[slot], rows[5 * task :][:5])
            np.testing.assert_array_equal(made.labels[slot], given.labels[5 * task :][:5])
            made.release(slot)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("slots", [1, 4])
def test_checking_counts_every_example_once(count: int, slots: int) -> None:
    order = CheckOrder(count, 8)
    with Loader(examples(count), order, slots, name="check") as made:
        for _ in range(2):  # a second test starts afresh
            made.start()
            seen: list[int] = []
            for slot, _, real in made.batches(order.tasks):
                seen += made.labels[slot, :real].tolist()
                made.release(slot)
            assert seen == list(range(count))
            with pytest.raises(IndexError, match="where the loader ends"):
                made.next()


def test_a_part_of_the_tasks() -> None:
    with Loader(examples(), CheckOrder(COUNT, 8), 2) as made:
        made.start(2, tasks=3)
        for task, batch in enumerate(made.batches(3), start=2):
            assert batch.task == task
            made.release(batch.slot)
        with pytest.raises(IndexError):
            made.next()
        with pytest.raises(DataError, match=r"at most the 5 from task 2 on. Received: 6"):
            made.start(2, tasks=6)


@pytest.mark.parametrize(
    ("placement", "first", "tasks", "skipped", "loaded"),
    [
        (None, 2, 5, (2, 3, 6), [4, 5]),
        (None, 2, 4, (0, 1, 3, 6), [2, 4, 5]),  # only those from the first task to the last one are left out
        (Placement(4, 1, 2), 0, 8, (), [1, 2, 5, 6]),
        (Placement(4, 1, 2), 3, 8, (), [4, 5, 8, 9]),
        (Placement(4, 1, 2), 3, 8, (4, 8), [5, 6, 10]),
        (Placement.alone(4), 2, 4, (3,), [2, 4, 5]),
    ],
)
def test_a_rank_s_tasks_without_those_that_are_skipped(
    placement: Placement | None, first: int, tasks: int, skipped: tuple[int, ...], loaded: list[int]
) -> None:
    with Loader(examples(), TrainingOrder(COUNT, BATCH, 3), 2, placement=placement) as made:
        made.start(first, tasks, skipped)
        counted_from = 0 if placement == Placement(4, 1, 2) else first
        for number, task in enumerate(loaded, counted_from):
            batch = made.next()
            assert batch.task == number
            assert made.labels[batch.slot].tolist() == expected(task)
            made.release(batch.slot)
        with pytest.raises(IndexError, match="where the loader ends"):
            made.next()


def test_every_slot_says_in_which_epoch_its_examples_are_seen() -> None:
    with loader(slots=3) as made:
        assert made.positions.shape == (3, BATCH, 2)
        assert made.positions.dtype == np.int64
        where = address(made.positions)
        made.start()
        for slot, task, _ in made.batches(40):
            epochs = (task * BATCH + np.arange(BATCH)) // COUNT
            np.testing.assert_array_equal(made.positions[slot], np.stack([epochs, expected(task)], axis=1))
            made.release(slot)
        assert address(made.positions) == where


def test_positions_of_a_checking_loader() -> None:
    with Loader(examples(), CheckOrder(COUNT, 8), 2) as made:
        made.start(6)
        slot, _, real = made.next()
        assert real == 2
        np.testing.assert_array_equal(made.positions[slot], [[0, n] for n in (48, 49, 49, 49, 49, 49, 49, 49)])


# Who releases, and when.


def test_slots_released_out_of_order_by_many_threads_with_delays() -> None:
    """Four learners hold their batch for random times; what each batch holds is the same every time."""

    def run(seed: int) -> list[tuple[int, tuple[int, ...]]]:
        delays = random.Random(seed)
        fill = examples().write

        def slow(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
            if delays.random() < 0.1:
                time.sleep(delays.random() * 0.003)
            fill(selection, images, labels)

        tasks: queue.SimpleQueue[tuple[int, int, float] | None] = queue.SimpleQueue()
        seen: list[tuple[int, tuple[int, ...]]] = []
        refilled: list[int] = []

        def learn(made: Loader) -> None:
            while (item := tasks.get()) is not None:
                slot, task, delay = item
                before = tuple(made.labels[slot].tolist())
                time.sleep(delay)
                seen.append((task, before))
                if tuple(made.labels[slot].tolist()) != before:
                    refilled.append(task)
                made.release(slot)

        with loader(slots=8, source=slow, threads=(1, 2, 4)[seed]) as made:
            learners = [threading.Thread(target=learn, args=(made,)) for _ in range(4)]
            for learner in learners:
                learner.start()
            made.start()
            for slot, task, _ in made.batches(200):
                tasks.put((slot, task, delays.choice([0, 0, 0.001, 0.004])))
            for _ in learners:
                tasks.put(None)
            for learner in learners:
                learner.join()
        assert not refilled, "slots were filled while a learner held them"
        return sorted(seen)

    runs = [run(seed) for seed in range(3)]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] == [(task, tuple(expected(task))) for task in range(200)]


def test_as_many_batches_as_slots_may_be_held_and_one_release_is_enough_to_go_on() -> None:
    # Two learners may wait for each other: nothing else is released before the next batch is there.
    with loader(slots=4) as made:
        made.start()
        held = [made.next().slot for _ in range(4)]
        for task in range(4, 20):
            timer = threading.Timer(0.002, made.release, (held.pop(0),))
            timer.start()
            batch = made.next()  # blocks until the timer's release
            assert batch.task == task
            assert made.labels[batch.slot].tolist() == expected(task)
            held.append(batch.slot)
            timer.join()


@pytest.mark.slow
def test_the_loader_sleeps_while_the_ring_is_full_and_wakes_for_several_slots() -> None:
    made = loader(slots=8)
    made.start()
    ring = made._ring
    assert ring is not None
    wakings = 0
    wait = ring._space.wait

    def counted() -> bool:
        nonlocal wakings
        wakings += 1
        return wait()

    ring._space.wait = counted  # type: ignore[method-assign, assignment]
    for _ in range(100):
        time.sleep(0.001)  # the learners are slower than the loader
        made.release(made.next().slot)
    made.stop()
    assert wakings <= 100 / 4 + 2
    made.start()
    until(lambda: made._ring._sleeping)  # type: ignore[union-attr]
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02  # no busy waiting, which takes a core, or a share of a busy one
    made.stop()


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_allocated_batch_by_batch(threads: int) -> None:
    """What a collection of garbage frees is not kept. What the loader's thread has in hand differs from one look to the
    next; the smallest object for every batch would be more."""
    with loader(threads=threads) as made:
        made.start()
        take(made, 200)
        tracemalloc.start()
        try:
            take(made, 100)
            start = _traced(made)
            take(made, 2000)
            assert _traced(made) - start < 2000 * SMALLEST_OBJECT // 2
        finally:
            tracemalloc.stop()


SMALLEST_OBJECT = 16
"""Bytes. What Python allocates is at least that."""


def _traced(made: Loader) -> int:
    until(lambda: made._ring._sleeping == len(made._threads))  # type: ignore[union-attr]
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# Several threads.


def hashes(threads: int, by_files: bool, in_turn: bool = True, dawdle: bool = False) -> list[str]:
    """Of all batches in two epochs: images, labels and positions."""
    given = examples()
    files = np.arange(COUNT) // 7 if by_files else None
    order = TrainingOrder(COUNT, BATCH, 3, files, files_together=2)
    delays = random.Random(threads)

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        if dawdle:
            time.sleep(delays.random() * 0.002)
        given.write(selection, images, labels)

    found = []
    with Loader(given, order, SLOTS, source=source, threads=threads, in_turn=in_turn) as made:
        made.start()
        for slot, _, _ in made.batches(order.tasks_in_epochs(2)):
            parts = made.images[slot], made.labels[slot], made.positions[slot]
            found.append(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
            made.release(slot)
    return found


@pytest.mark.parametrize("by_files", [False, True])
def test_batches_do_not_depend_on_the_number_of_threads(by_files: bool) -> None:
    one = hashes(1, by_files)
    assert len(set(one)) == len(one)
    for threads in (1, 2, 4, 9):
        assert hashes(threads, by_files, in_turn=threads % 2 == 0, dawdle=True) == one


def test_threads_fill_at_the_same_time_each_its_own_slot() -> None:
    together = threading.Barrier(3, timeout=SECONDS)

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        if selection.indices.tolist() in first_three:
            together.wait()
        labels[...] = selection.indices

    first_three = [expected(task) for task in range(3)]
    with loader(source=source, threads=3) as made:
        made.start()
        assert [thread.name for thread in made._threads] == [f"crossbow-loader-{number}" for number in range(3)]
        read(made, 0, 30)


def test_the_error_of_the_first_failing_task_is_raised() -> None:
    """The second fails first, and is not raised until the first has failed too."""
    later_failed = threading.Event()
    first, second = expected(0), expected(1)

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        if selection.indices.tolist() == first:
            assert later_failed.wait(SECONDS)
            raise TroubleError("of task 0")
        if selection.indices.tolist() == second:
            raise TroubleError("of task 1")

    with loader(source=source, threads=2) as made:
        made.start()
        until(lambda: made._ring._failure is not None)  # type: ignore[union-attr]
        later_failed.set()
        with pytest.raises(TroubleError, match="of task 0"):
            within(SECONDS, made.next)


@pytest.mark.usefixtures("patient")
def test_stopping_ends_all_threads() -> None:
    made = loader(threads=4)
    for first in (0, 9):
        made.start(first)
        read(made, first, 3)
        assert len(made._threads) == 4
        assert has_stopped(made)


def test_a_system_that_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    made = loader(threads=4)
    with pytest.raises(
        DataError, match=r"expected a system that starts 4 threads. Received: can't start new thread, af"
    ):
        made.start()
    until(lambda: not any(thread.is_alive() for thread in started))


# Bad examples.


class Spoilt(ArrayExamples):
    """Some examples cannot be decoded."""

    spoilt: frozenset[int] = frozenset()
    writes = 0

    def write_images(self, selection: Selection, images: np.ndarray) -> None:
        type(self).writes += 1
        for index in selection.indices.tolist():
            if index in self.spoilt:
                raise BadExample(index, f"file {index}", "expected an image. Received: nothing")
        super().write_images(selection, images)


def spoilt(indices: set[int], count: int = COUNT) -> Spoilt:
    good = examples(count)
    made = Spoilt(good.images, good.labels)
    object.__setattr__(made, "spoilt", frozenset(indices))
    return made


def test_a_bad_example_is_an_error() -> None:
    with Loader(spoilt({7}), TrainingOrder(COUNT, BATCH, 3), SLOTS) as made:
        made.start()
        with pytest.raises(BadExample, match=r"^file 7: expected an image. Received: nothing"):
            take(made, 20)


def test_bad_examples_are_replaced_whatever_the_threads_do() -> None:
    indices = {0, 7, 8, 30, *permutation(COUNT, 3, 1)[-3:].tolist()}  # an epoch ends with three of them

    def run(threads: int) -> tuple[list[list[int]], list[int]]:
        bad, seen = BadExamples(COUNT), []
        with Loader(spoilt(indices), TrainingOrder(COUNT, BATCH, 3), SLOTS, threads=threads, bad=bad) as made:
            made.start()
            for slot, _, real in made.batches(40):
                assert real == BATCH
                np.testing.assert_array_equal(made.images[slot], examples().images[made.labels[slot]])
                np.testing.assert_array_equal(made.positions[slot, :, 1], made.labels[slot])
                seen.append(made.labels[slot].tolist())
                made.release(slot)
        return seen, sorted(example.index for example in bad.all())

    one = run(1)
    assert one[1] == sorted(indices)
    assert not indices & {index for batch in one[0] for index in batch}
    for threads in (1, 2, 4):
        assert run(threads) == one
    # The rest of the order does not change.
    for task, batch in enumerate(one[0]):
        assert [found for found, index in zip(batch, expected(task), strict=True) if index not in indices] == [
            index for index in expected(task) if index not in indices
        ]


def test_a_bad_example_is_written_once() -> None:
    Spoilt.writes = 0
    bad = BadExamples(COUNT)
    with Loader(spoilt({7, 8, 9}), TrainingOrder(COUNT, BATCH, 3), 1, bad=bad) as made:
        made.start(tasks=100)
        take(made, 100)
    assert Spoilt.writes == 100 + 3


def test_checking_leaves_bad_examples_out() -> None:
    indices = {0, 1, 2, 3, 9, COUNT - 1}
    seen: list[int] = []
    with Loader(spoilt(indices), CheckOrder(COUNT, BATCH), 2, bad=BadExamples(COUNT), threads=2) as made:
        made.start()
        for slot, _, real in made.batches(made.order.tasks or 0):
            seen += made.labels[slot, :real].tolist()
            assert not indices & set(made.labels[slot].tolist())
            made.release(slot)
    assert seen == [index for index in range(COUNT) if index not in indices]


@pytest.mark.parametrize("order", [TrainingOrder(COUNT, BATCH, 3), CheckOrder(COUNT, BATCH)], ids=["train", "check"])
def test_only_bad_examples(order: TrainingOrder | CheckOrder) -> None:
    with Loader(spoilt(set(range(COUNT))), order, SLOTS, bad=BadExamples(COUNT), threads=2) as made:
        made.start()
        with pytest.raises(
            DataError, match=r"expected an example that can be decoded. Received: 50 that cannot, the first: file"
        ):
            take(made, 1)


def test_an_error_that_names_another_example_is_raised() -> None:
    """Otherwise the loader would try for ever."""

    def source(*arrays: object) -> None:
        raise BadExample(COUNT + 1, "file", "reason")

    with Loader(examples(), TrainingOrder(COUNT, BATCH, 3), SLOTS, source=source, bad=BadExamples(COUNT)) as made:
        made.start()
        with pytest.raises(BadExample):
            within(SECONDS, made.next)


# What goes wrong.


class TroubleError(Exception):
    pass


def failing_at(task: int, error: BaseException) -> Callable[..., None]:
    fill = examples().write
    wanted = expected(task)

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        if selection.indices.tolist() == wanted:
            raise error
        fill(selection, images, labels)

    return source


@pytest.mark.parametrize("error", [TroubleError("no such picture"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_error_in_the_source_is_raised_by_next_with_its_traceback(error: BaseException) -> None:
    with loader(source=failing_at(9, error)) as made:
        made.start()
        with pytest.raises(type(error)) as caught:
            within(SECONDS, lambda: take(made, 100))
        assert caught.value is error
        assert error.__notes__ == ["raised in the thread 'crossbow-loader', while filling the batch of task 9"]
        assert "raise error" in traceback.format_tb(error.__traceback__)[-1]
        with pytest.raises(type(error)):
            made.next()  # and again


def test_an_error_wakes_a_scheduler_that_waits_for_the_batch() -> None:
    waits = threading.Event()

    def source(*arrays: np.ndarray) -> None:
        assert waits.wait(SECONDS)
        raise TroubleError("later")

    with loader(source=source) as made:
        made.start()
        threading.Thread(target=lambda: (until(lambda: made._ring._taker_waits), waits.set())).start()  # type: ignore
        with pytest.raises(TroubleError):
            within(SECONDS, made.next)


def test_an_error_is_raised_before_batches_that_are_filled_already() -> None:
    with loader(slots=6, source=failing_at(3, TroubleError("early"))) as made:
        made.start()
        (thread,) = made._threads
        thread.join(SECONDS)
        with pytest.raises(TroubleError):
            made.next()


def test_an_order_that_fails_is_an_error_too() -> None:
    class Short(CheckOrder):
        def indices(self, task: int, out: np.ndarray, epochs: np.ndarray | None = None) -> int:
            return super().indices(task + 1, out, epochs)

    with Loader(examples(), Short(COUNT, 10), 2) as made:
        made.start()
        with pytest.raises(IndexError, match="Received: 5") as caught:
            take(made, 5)
        assert "task 4" in caught.value.__notes__[0]


def test_after_a_failure_it_starts_again() -> None:
    broken = True
    fill = examples().write

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        if broken:
            raise TroubleError
        fill(selection, images, labels)

    with loader(source=source) as made:
        made.start()
        with pytest.raises(TroubleError):
            made.next()
        broken = False
        made.start(5)
        read(made, 5, 20)


@pytest.mark.parametrize("first", [-1, 1.5, None])
def test_bad_arguments(first: object) -> None:
    with pytest.raises(DataError, match="first_task: expected an integer ≥ 0"):
        loader().start(first)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"tasks: expected an integer ≥ 0\. Received: -1"):
        loader().start(3, tasks=-1)
    with Loader(examples(10), CheckOrder(10, 5), 2) as checking:
        checking.start(1, tasks=0)
        with pytest.raises(DataError, match=r"≥ 0, at most the 1 from task 1 on\. Received: 2"):
            checking.start(1, tasks=2)
    with pytest.raises(DataError, match=r"slots: expected an integer ≥ 1. Received: 0"):
        loader(slots=0)
    with pytest.raises(DataError, match=r"threads: expected an integer ≥ 1. Received: 0"):
        loader(threads=0)
    with pytest.raises(RuntimeError, match="not started"):
        loader().next()


# Stopping and starting.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping waits for the thread as long as it takes on a busy machine; on others that is no time at all."""
    monkeypatch.setattr("crossbow.data.loader.SECONDS_TO_STOP", SECONDS)


def has_stopped(made: Loader) -> bool:
    """Whether the thread ended when it was told to."""
    made.stop()
    return not made._threads


@pytest.mark.usefixtures("patient")
def test_stopping_while_the_ring_is_full_ends_the_thread_and_may_be_repeated() -> None:
    made = loader()
    made.stop()
    made.start()
    made.next()
    until(lambda: made._ring._sleeping)  # type: ignore[union-attr]
    assert has_stopped(made)
    assert has_stopped(made)
    made.release(0)  # a learner that was late


@pytest.mark.usefixtures("patient")
def test_stopping_in_the_middle_of_filling_waits_for_one_batch() -> None:
    fill, filled = examples().write, []

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        filled.append(1)
        if len(filled) > 1:
            until(lambda: made._ring is None)  # it is being stopped
            time.sleep(0.01)
        fill(selection, images, labels)

    made = loader(slots=40, source=source)
    made.start()
    made.next()
    until(lambda: len(filled) == 2)
    assert has_stopped(made)
    assert len(filled) == 2


def test_stopping_does_not_wait_for_a_source_that_hangs_and_starting_does() -> None:
    go, entered, inside = threading.Event(), threading.Event(), []

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        inside.append(threading.current_thread())
        entered.set()
        assert go.wait(2 * SECONDS)
        labels[...] = selection.indices

    made = loader(source=source)
    made.start()
    assert entered.wait(SECONDS)
    assert not has_stopped(made)
    assert inside[0].is_alive()
    timer = threading.Timer(0.05, go.set)
    timer.start()
    made.start(3)
    assert inside[0].is_alive() is False  # two threads never fill the same slots
    read(made, 3, 10)
    made.stop()
    timer.join()


def test_two_threads_never_write_into_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the first is still in its source long after `stop` has given up waiting for it. (The timer is late where
    the machine is busy, which makes the test longer, not another one.)"""
    monkeypatch.setattr(loading, "SECONDS_TO_STOP", 0.0)
    go, entered, inside, most = threading.Event(), threading.Event(), [0], [0]

    def source(selection: Selection, images: np.ndarray, labels: np.ndarray) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        entered.set()
        assert go.wait(SECONDS)
        labels[...] = selection.indices
        inside[0] -= 1

    made = loader(source=source)
    made.start()
    assert entered.wait(SECONDS)
    made.stop()
    timer = threading.Timer(0.1, go.set)
    timer.start()
    made.start(3)
    read(made, 3, 10)
    made.stop()
    timer.join()
    assert most == [1]


@pytest.mark.usefixtures("patient")
def test_stopping_releases_a_scheduler_that_waits() -> None:
    made = loader(slots=2)
    made.start()
    made.next()
    made.next()
    result: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def wait() -> None:
        try:
            made.next()
        except Aborted as error:
            result.put(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: made._ring._taker_waits)  # type: ignore[union-attr]
    assert has_stopped(made)
    assert isinstance(result.get(timeout=SECONDS), Aborted)
    waiting.join()


def test_starting_anywhere_any_number_of_times() -> None:
    with loader() as made:
        for first in (0, 17, 3, 1000, 12):
            made.start(first)
            made.next()  # never released
            made.next()
            made.start(first)  # without stopping
            read(made, first, 15)


def test_the_thread_is_a_named_daemon() -> None:
    with loader() as made:
        made.start()
        (thread,) = made._threads
        assert thread.daemon
        assert thread.name == "crossbow-loader"


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs POSIX signals")
def test_ctrl_c_while_waiting_leaves_a_usable_loader() -> None:
    def press(made: Loader) -> None:
        until(lambda: made._ring._taker_waits)  # type: ignore[union-attr]
        time.sleep(0.01)  # it goes to sleep
        os.kill(os.getpid(), signal.SIGALRM)

    with loader(slots=2) as made:
        for _ in range(5):
            made.start()
            held = [made.next().slot, made.next().slot]
            previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
            presser = threading.Thread(target=press, args=(made,))
            presser.start()
            try:
                with pytest.raises(KeyboardInterrupt):
                    made.next()
            finally:
                presser.join()
                signal.signal(signal.SIGALRM, previous)
            for slot in held:
                made.release(slot)
            read(made, 2, 10)  # goes on where it was
