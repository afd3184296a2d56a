"""The stream of examples: every epoch a permutation, every position a function of the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data.order import CheckOrder, TrainingOrder, permutation, permutation_by_files
from crossbow.types import DataError

SIZES = st.integers(1, 60).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))
SEEDS = st.integers(0, 2**64 - 1)


def stream(order: TrainingOrder, tasks: range) -> np.ndarray:
    out = np.empty(order.batch_size, np.intp)
    batches = []
    for task in tasks:
        assert order.indices(task, out) == order.batch_size
        batches.append(out.copy())
    return np.concatenate(batches) if batches else out[:0]


@given(st.integers(1, 200), SEEDS, st.integers(0, 2**40))
def test_an_epoch_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed, epoch)
    assert order.dtype == np.intp
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    np.testing.assert_array_equal(permutation(count, seed, epoch), order)


@given(SIZES, SEEDS, st.integers(1, 4))
def test_every_example_comes_once_in_an_epoch_of_the_stream(sizes: tuple[int, int], seed: int, epochs: int) -> None:
    count, batch = sizes
    order = TrainingOrder(count, batch, seed)
    tasks = order.tasks_in_epochs(epochs)
    assert (tasks - 1) * batch < epochs * count <= tasks * batch
    positions = stream(order, range(tasks))
    for epoch in range(epochs):
        np.testing.assert_array_equal(positions[epoch * count :][:count], permutation(count, seed, epoch))
    rest = positions[epochs * count :]  # the last batch is filled from the next epoch
    np.testing.assert_array_equal(rest, permutation(count, seed, epochs)[: len(rest)])


@given(SIZES, SEEDS, st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_a_task_is_the_same_whenever_it_is_asked_for(sizes: tuple[int, int], seed: int, tasks: list[int]) -> None:
    used = TrainingOrder(*sizes, seed)
    for task in tasks:  # in any order, unlike the loader
        fresh = TrainingOrder(*sizes, seed)
        np.testing.assert_array_equal(stream(used, range(task, task + 1)), stream(fresh, range(task, task + 1)))


def test_the_order_never_changes_from_one_release_to_the_next() -> None:
    # Recorded: a run must be repeatable with later versions of Crossbow and of NumPy.
    assert permutation(8, 0, 0).tolist() == [2, 3, 5, 7, 0, 6, 1, 4]
    assert permutation(8, 0, 1).tolist() == [3, 7, 2, 6, 4, 5, 0, 1]
    assert permutation(8, 1, 0).tolist() == [0, 4, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("epoch", range(5))
def test_every_group_but_the_last_has_as_many_files_as_asked_for(epoch: int) -> None:
    files = np.repeat(np.arange(7), 4)
    order = permutation_by_files(files, 2, 3, epoch)
    np.testing.assert_array_equal(np.sort(order), np.arange(28))
    groups = [set(files[order[start : start + 8]].tolist()) for start in range(0, 28, 8)]
    assert [len(group) for group in groups] == [2, 2, 2, 1]
    assert set().union(*groups) == set(range(7))


def test_seeds_and_epochs_are_independent() -> None:
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100
    # Each example is about equally often in each place: χ² of 50 cells, 2000 draws, 5 standard deviations.
    first = np.bincount([permutation(50, 7, epoch)[0] for epoch in range(2000)], minlength=50)
    assert ((first - 40.0) ** 2 / 40).sum() < 49 + 5 * np.sqrt(2 * 49)


@pytest.mark.parametrize(
    ("count", "batch", "epochs", "tasks"), [(10, 5, 1, 2), (10, 4, 1, 3), (10, 4, 2, 5), (10, 10, 3, 3), (1, 1, 7, 7)]
)
def test_tasks_in_epochs(count: int, batch: int, epochs: int, tasks: int) -> None:
    order = TrainingOrder(count, batch, 0)
    assert order.tasks_in_epochs(epochs) == tasks
    assert order.tasks_in_epochs(0) == 0
    assert order.tasks_per_epoch == count / batch
    assert order.tasks is None


@given(st.integers(1, 60), st.integers(1, 80))
def test_checking_sees_every_example_once_and_pads_with_valid_ones(count: int, batch: int) -> None:
    order, out, seen = CheckOrder(count, batch), np.full(batch, -1), []
    for task in range(order.tasks):
        real = order.indices(task, out)
        assert real == (batch if task < order.tasks - 1 else count - (order.tasks - 1) * batch)
        assert out.min() >= 0
        assert out.max() < count
        seen.extend(out[:real])
    assert seen == list(range(count))


@pytest.mark.parametrize("task", [-1, 3])
def test_checking_has_an_end(task: int) -> None:
    with pytest.raises(IndexError, match=f"0 ≤ task < 3. Received: {task}"):
        CheckOrder(5, 2).indices(task, np.empty(2, np.intp))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(DataError, match=r"training set of 7 examples. Received: batch_size=8"):
        TrainingOrder(7, 8, 0)
    for make in (lambda count, batch: TrainingOrder(count, batch, 0), CheckOrder):
        with pytest.raises(DataError, match=r"batch_size: expected an integer ≥ 1. Received: 0"):
            make(7, 0)
        with pytest.raises(DataError, match="number_of_examples: expected"):
            make(0, 1)


@given(SIZES, SEEDS, st.integers(0, 50))
def test_every_example_has_its_epoch(sizes: tuple[int, int], seed: int, task: int) -> None:
    count, batch = sizes
    order, out, epochs = TrainingOrder(count, batch, seed), np.empty(batch, np.intp), np.empty(batch, np.int64)
    order.indices(task, out, epochs)
    np.testing.assert_array_equal(epochs, (task * batch + np.arange(batch)) // count)
    np.testing.assert_array_equal(out, stream(order, range(task, task + 1)))


def test_checking_is_of_epoch_0() -> None:
    out, epochs = np.empty(4, np.intp), np.full(4, -1)
    assert CheckOrder(6, 4).indices(1, out, epochs) == 2
    assert epochs.tolist() == [0, 0, 0, 0]


# Files.


def grouped(files: np.ndarray, together: int, seed: int, batch: int = 1) -> TrainingOrder:
    return TrainingOrder(len(files), batch, seed, files, together)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 12), SEEDS, st.integers(0, 3))
def test_by_files_an_epoch_is_a_permutation_that_reads_a_group_of_files_at_a_time(
    files: list[int], together: int, seed: int, epoch: int
) -> None:
    numbers = np.array(files)
    order = stream(grouped(numbers, together, seed), range(epoch * len(files), (epoch + 1) * len(files)))
    np.testing.assert_array_equal(np.sort(order), np.arange(len(files)))
    left = {file: files.count(file) for file in files}
    begun: set[int] = set()
    for file in numbers[order].tolist():
        begun.add(file)
        assert len(begun) <= together
        left[file] -= 1
        if not any(left[each] for each in begun):
            begun.clear()  # the group is read


def test_files_and_their_examples_are_in_another_order_in_every_epoch() -> None:
    files = np.repeat(np.arange(6), 10)
    epochs = [stream(grouped(files, 1, seed=3), range(60 * epoch, 60 * (epoch + 1))) for epoch in range(4)]
    assert len({tuple(dict.fromkeys(files[epoch].tolist())) for epoch in epochs}) == 4
    assert len({tuple(epoch[files[epoch] == 0].tolist()) for epoch in epochs}) == 4
    other = stream(grouped(files, 1, seed=4), range(60))
    assert not np.array_equal(other, epochs[0])


def test_the_order_by_files_never_changes_from_one_release_to_the_next() -> None:
    # Recorded.
    files = np.array([0, 0, 0, 2, 2, 7, 7, 7])  # a part of a data set may have no examples of some files
    assert stream(grouped(files, 2, seed=0), range(8)).tolist() == [3, 5, 7, 6, 4, 2, 0, 1]


# Bad examples.


def without(order: TrainingOrder | CheckOrder, bad: list[int], task: int, one_by_one: bool) -> tuple[list[int], int]:
    """A task's examples, and the number of real ones, if these examples are bad. one_by_one: they are found so."""
    mask = np.zeros(order.number_of_examples, np.bool_)
    out, steps = np.empty(order.batch_size, np.intp), np.zeros(order.batch_size, np.intp)
    real = order.indices(task, out)
    if one_by_one:
        while (found := [index for index in out.tolist() if index in bad and not mask[index]]) != []:
            mask[found[0]] = True
            real = order.leave_out(mask, task, out, steps)
    else:
        mask[bad] = True
        real = order.leave_out(mask, task, out, steps)
    return out.tolist(), real


@given(SIZES, SEEDS, st.data())
def test_the_next_good_example_of_the_epoch_takes_the_place_of_a_bad_one(
    sizes: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    count, batch = sizes
    bad = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1))
    task = data.draw(st.integers(0, 3 * count))
    expected = []
    for position in range(task * batch, (task + 1) * batch):
        epoch, place = divmod(position, count)
        order = permutation(count, seed, epoch).tolist()
        expected.append(next(index for index in order[place:] + order[:place] if index not in bad))
    for one_by_one in (False, True):
        assert without(TrainingOrder(count, batch, seed), bad, task, one_by_one) == (expected, batch)


@given(st.integers(2, 40), st.integers(1, 50), st.data())
def test_checking_leaves_bad_examples_out(count: int, batch: int, data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1))
    for one_by_one in (False, True):
        order, seen = CheckOrder(count, batch), []
        for task in range(order.tasks):
            out, real = without(order, bad, task, one_by_one)
            assert len(out) == batch
            assert not set(out[:real]) & set(bad)
            assert all(index not in bad for index in out) or one_by_one
            seen += out[:real]
        assert seen == [index for index in range(count) if index not in bad]
