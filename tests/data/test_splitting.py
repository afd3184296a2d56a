"""Check examples that are a part of the training examples."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data import Dataset, dataset, sequence, splitting
from crossbow.types import DataError


def numbered(labels: Any) -> Dataset:
    """Examples that contain their index."""
    return Dataset((np.arange(len(labels), dtype=np.float32)[:, None], np.asarray(labels)))


def indices(data: Dataset) -> tuple[list[int], list[int]]:
    assert data.check is not None
    return data.train.images[:, 0].tolist(), data.check.images[:, 0].tolist()  # type: ignore[attr-defined]


def test_doctests() -> None:
    for module in (splitting, dataset):
        assert doctest.testmod(module).failed == 0


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_class_keeps_its_share(labels: list[int], fraction: float, seed: int) -> None:
    wanted = round(fraction * len(labels))
    if not 0 < wanted < len(labels):
        return
    data = numbered(labels)
    parts = data.split(fraction, seed=seed)
    train, check = indices(parts)
    assert sorted(train + check) == list(range(len(labels)))
    assert (train, check) == (sorted(train), sorted(check))
    assert len(check) == wanted
    assert parts.train.labels.tolist() == [labels[int(index)] for index in train]
    assert parts.number_of_classes == data.number_of_classes
    for label in set(labels):
        chosen = sum(labels[int(index)] == label for index in check)
        assert abs(chosen - labels.count(label) * wanted / len(labels)) < 1


def test_the_choice_is_random_and_depends_on_the_seed() -> None:
    data = numbered([0, 1] * 50)
    assert indices(data.split(0.2)) == indices(data.split(0.2))
    assert indices(data.split(0.2)) != indices(data.split(0.2, seed=1))
    assert indices(data.split(0.2, stratified=False)) != indices(data.split(0.2))


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 40), np.arange(80).reshape(40, 2) % 3])
def test_targets_and_maps_are_drawn_alike(labels: np.ndarray) -> None:
    parts = numbered(labels).split(0.25)
    train, check = indices(parts)
    assert (len(train), len(check)) == (30, 10)
    np.testing.assert_array_equal(parts.train.labels, labels[np.array(train, int)].astype(parts.train.labels.dtype))
    assert indices(numbered(labels).split(0.25, seed=1)) != (train, check)


def test_check_examples_of_the_whole_are_not_used() -> None:
    data = Dataset((np.zeros((8, 2)), np.arange(8) % 2), (np.ones((3, 2)), np.zeros(3, int)))
    parts = data.split(0.5)
    assert parts.check is not None
    assert (len(parts.train), len(parts.check)) == (4, 4)
    assert data.check is not None
    assert len(data.check) == 3


def test_images_that_are_read_when_they_are_needed() -> None:
    items = [(np.full((1, 2, 2), index, np.float32), index % 2) for index in range(10)]
    parts = sequence(items).split(0.2)
    assert parts.check is not None
    assert (len(parts.train), len(parts.check), parts.check.image_shape) == (8, 2, (1, 2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"check_fraction": 0}, r"check_fraction to be a number > 0 and < 1\. Received: 0"),
        ({"check_fraction": 1.0}, r"check_fraction to be .*\. Received: 1\.0"),
        ({"check_fraction": "half"}, r"check_fraction to be .*\. Received: 'half'"),
        ({"check_fraction": 0.5, "stratified": "yes"}, r"stratified to be True or False\. Received: 'yes'"),
        ({"check_fraction": 0.5, "seed": -1}, r"a seed that is an integer ≥ 0\. Received: -1"),
        ({"check_fraction": 0.01}, r"at least one .*\. Received: 10 and 0, with check_fraction=0\.01 of 10"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"split: expected {message}"):
        numbered([0] * 10).split(**arguments)
