"""Names of classes: as many as classes, and different ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossbow.data import class_names, digits
from crossbow.data.class_names import class_lines, read_class_names
from crossbow.types import DataError


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


# Files


@pytest.mark.parametrize("names", [("a",), ("grizzly bear", "fjällräv", " ", "0")])
def test_names_are_read_as_they_were_written(names: tuple[str, ...], tmp_path: Path) -> None:
    lines = class_lines(names)
    assert lines is not None
    (tmp_path / "some.classes").write_bytes(lines)
    assert read_class_names(tmp_path / "some.classes") == names


@pytest.mark.parametrize("names", [None, (), ("a", ""), ("a\nb",), ("a\r",), ("a\u2028b",), ("a\udcff",)])
def test_what_lines_cannot_hold(names: tuple[str, ...] | None) -> None:
    assert class_lines(names) is None


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (b"", "an empty file"),
        (b"one\n\nthree\n", "no name in line 2"),
        (b"one\n\xff\n", "'utf-8' codec can't decode byte 0xff"),
        (b"x" * (1 + (1 << 20)), "more"),
    ],
    ids=["empty", "no name", "other bytes", "long"],
)
def test_files_without_names(content: bytes, received: str, tmp_path: Path) -> None:
    path = tmp_path / "some.classes"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_class_names(path)
    assert str(caught.value).startswith(f"{path}: expected a text with the name of a class in each line")
    assert f"Received: {received}" in str(caught.value)


def test_no_file_of_names(tmp_path: Path) -> None:
    assert read_class_names(tmp_path / "some.classes") is None
    with pytest.raises(
        DataError, match=r": expected a text with the name of a class in each line\. Received: a directory"
    ):
        read_class_names(tmp_path)
