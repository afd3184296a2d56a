"""Names of classes: as many as classes, and different ones."""

from __future__ import annotations

import pytest

from crossbow.data import class_names, digits


@pytest.mark.parametrize(
    ("names", "count"),
    [("DIGITS", 10), ("FASHION_MNIST", 10), ("CIFAR_10", 10), ("CIFAR_100_FINE", 100), ("CIFAR_100_COARSE", 20)],
)
def test_there_are_as_many_as_classes(names: str, count: int) -> None:
    found = getattr(class_names, names)
    assert len(set(found)) == len(found) == count


@pytest.mark.parametrize("names", ["CIFAR_10", "CIFAR_100_FINE", "CIFAR_100_COARSE"])
def test_those_of_cifar_are_sorted(names: str) -> None:
    """Labels are numbered in this order."""
    found = getattr(class_names, names)
    assert list(found) == sorted(found)


def test_data_sets_have_them() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'crossbow[zoo]'")
    assert digits().class_names == class_names.DIGITS
