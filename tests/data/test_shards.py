"""Parts of data sets: disjoint, complete, and in which order."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data import Dataset
from crossbow.types import DataError


def numbered(count: int) -> Dataset:
    images = np.arange(count * 5, dtype=np.uint8).reshape(count, 5)
    return Dataset((images, np.arange(count)), (np.zeros((2, 5), np.uint8), np.array([0, 0])))


def labels(part: Dataset) -> list[int]:
    """The indices of its examples, in order."""
    taken = part.train.labels.tolist()
    np.testing.assert_array_equal(part.train.images[:, 0], (5 * np.array(taken)).astype(np.uint8))
    assert part.train.images.flags.c_contiguous
    assert part.train.labels.flags.c_contiguous
    return taken


def test_known_parts() -> None:
    data = numbered(10)
    assert labels(data.shard(stride=(2, 3))) == [2, 5, 8]
    assert labels(data.shard(fraction=(0.25, 0.5))) == [2, 3, 4]
    assert labels(data.shard(fraction=(0, 1))) == list(range(10))
    assert labels(data.shard(offset=(1, 3))) == [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert labels(data.shard(offset=(0, 3))) == list(range(10))


def test_the_rest_of_the_data_set_is_the_same() -> None:
    data = numbered(10)
    part = data.shard(stride=(0, 5))
    assert part.number_of_classes == 10
    assert part.check is data.check
    assert part.scale == data.scale
    assert len(data.train) == 10
    assert "2 training and 2 check examples" in repr(part)
    assert labels(part.shard(stride=(1, 2))) == [5]


def test_a_fraction_shares_memory() -> None:
    data = numbered(10)
    assert np.shares_memory(data.shard(fraction=(0.5, 1)).train.images, data.train.images)


@given(st.integers(1, 60), st.data())
def test_strides_are_disjoint_and_together_everything(count: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count))
    parts = [labels(numbered(count).shard(stride=(r, k))) for r in range(k)]
    assert sorted(itertools.chain(*parts)) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 60), st.integers(1, 12), st.booleans())
def test_adjoining_fractions_are_disjoint_and_together_everything(count: int, k: int, exact: bool) -> None:
    found = []
    for i in range(k):
        fraction = (Fraction(i, k), Fraction(i + 1, k)) if exact else (i / k, (i + 1) / k)
        if round(fraction[0] * count) < round(fraction[1] * count):
            found += labels(numbered(count).shard(fraction=fraction))
    assert found == list(range(count))


@given(st.integers(1, 60), st.integers(1, 70), st.data())
def test_offsets_have_everything(count: int, k: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, k - 1))
    found = labels(numbered(count).shard(offset=(i, k)))
    assert found[0] == i * count // k
    assert sorted(found) == list(range(count))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected one of stride, fraction and offset. Received: none"),
        ({"stride": (0, 1), "offset": (0, 1)}, "expected one of stride, fraction and offset. Received: stride, offset"),
        ({"stride": (3, 3)}, "expected stride to be a pair (r, k) of integers with 0 ≤ r < k. Received: (3, 3)"),
        ({"stride": (-1, 3)}, "expected stride to be a pair"),
        ({"stride": 3}, "expected stride to be a pair"),
        ({"stride": (0, 1, 2)}, "expected stride to be a pair"),
        ({"stride": (0.0, 2)}, "expected stride to be a pair"),
        ({"stride": (False, 2)}, "expected stride to be a pair"),
        ({"offset": (2, 1)}, "expected offset to be a pair (i, k) of integers with 0 ≤ i < k. Received: (2, 1)"),
        (
            {"fraction": (0.5, 0.5)},
            "expected fraction to be a pair (a, b) of numbers with 0 ≤ a < b ≤ 1. Received: (0.5",
        ),
        ({"fraction": (0.5, 1.1)}, "expected fraction to be a pair"),
        ({"fraction": (float("nan"), 1)}, "expected fraction to be a pair"),
        ({"fraction": ("0", "1")}, "expected fraction to be a pair"),
        ({"stride": (4, 5)}, "expected at least one of 4 examples. Received: none, with stride=(4, 5)"),
        ({"fraction": (0.01, 0.02)}, "expected at least one of 4 examples. Received: none, with fraction=(0.01, 0.02)"),
    ],
)
def test_what_is_no_part(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        numbered(4).shard(**arguments)
    assert str(caught.value).startswith("shard: ")
    assert message in str(caught.value)


def test_numbers_of_numpy() -> None:
    assert labels(numbered(4).shard(stride=(np.int64(1), np.int32(2)))) == [1, 3]
    assert labels(numbered(4).shard(fraction=(np.float32(0.5), np.float64(1)))) == [2, 3]


def test_workers_see_other_examples_in_the_same_task() -> None:
    """The order of an epoch is one of indices, which are those of other examples in each worker's data set."""
    from crossbow.data.order import permutation

    order = permutation(12, seed=0, epoch=0)
    seen = [np.array(labels(numbered(12).shard(offset=(i, 3))))[order] for i in range(3)]
    assert all(len({*task}) == 3 for task in zip(*seen, strict=True))
