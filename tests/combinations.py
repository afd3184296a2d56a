"""Combinations of parameters: those that a test needs in every run, and all the others, which are marked `slow`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., None])
ROW = type(pytest.param())


def pairwise(test: F) -> F:
    """Decorator: mark as slow the combinations of a test's parameters that not every pair of values needs."""
    return _cover(test, 2)


def in_turn(test: F) -> F:
    """Decorator: mark as slow the combinations of a test's parameters that not every single value needs."""
    return _cover(test, 1)


def covering(*parameters: Iterable[Any], together: int = 2) -> list[Any]:
    """All combinations of several lists, for `parametrize`, those marked slow that are not needed for every value
    (together = 1) or every pair of values (2) to be run once.

    >>> [row.values for row in covering("ab", [1, 2], together=1) if not row.marks]
    [('a', 1), ('b', 2)]
    """
    lists = [[each if isinstance(each, ROW) else pytest.param(each) for each in values] for values in parameters]
    sizes = [len(values) for values in lists]
    product = list(itertools.product(*map(range, sizes)))
    needed = _needed(product, sizes, min(together, len(lists)))
    rows = []
    for places in product:
        chosen = [values[place] for place, values in zip(places, lists, strict=True)]
        marks = [mark for each in chosen for mark in each.marks] + ([] if places in needed else [pytest.mark.slow])
        name = "-".join("-".join(map(_name, each.values)) if each.id is None else each.id for each in chosen)
        rows.append(pytest.param(*(value for each in chosen for value in each.values), marks=marks, id=name))
    return rows


def _needed(product: list[tuple[int, ...]], sizes: list[int], together: int) -> set[tuple[int, ...]]:
    """First the combinations that bring the most groups of values that have not come yet."""
    # Diagonals come first: there the values of all lists change from one combination to the next.
    order = sorted(product, key=lambda row: [(place - row[0]) % size for place, size in zip(row, sizes, strict=True)])
    missing = {group for row in product for group in _groups(row, together)}
    needed = set()
    for gain in range(math.comb(len(sizes), together), 0, -1):
        for row in order:
            found = missing.intersection(_groups(row, together))
            if len(found) >= gain:
                needed.add(row)
                missing -= found
    return needed


def _groups(row: tuple[int, ...], together: int) -> Iterator[tuple[tuple[int, int], ...]]:
    return itertools.combinations(enumerate(row), together)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def _cover(test: F, together: int) -> F:
    marks: list[pytest.Mark] = test.pytestmark  # type: ignore[attr-defined]
    names, lists = [], []
    for mark in [mark for mark in marks if mark.name == "parametrize"]:
        name, values = mark.args
        names += [part.strip() for part in name.split(",")] if isinstance(name, str) else name
        lists.append(_rows(name, list(values), mark.kwargs.get("ids")))
    marks[:] = [mark for mark in marks if mark.name != "parametrize"]
    decorated: F = pytest.mark.parametrize(names, covering(*lists, together=together))(test)
    return decorated


def _rows(names: str | Sequence[str], values: list[Any], ids: Any) -> list[Any]:
    """The entries of a `parametrize`, with names as pytest gives them."""
    single = isinstance(names, str) and "," not in names
    rows = []
    for number, value in enumerate(values):
        row = value if isinstance(value, ROW) else pytest.param(value) if single else pytest.param(*value)
        name = row.id
        if name is None and ids is not None and not callable(ids):
            name = list(ids)[number]
        if name is None:
            shown = [ids(each) if callable(ids) else each for each in row.values]
            plain = (str, int, float, bool, type(None))
            name = "-".join(str(each) if isinstance(each, plain) else f"value{number}" for each in shown)
        rows.append(pytest.param(*row.values, marks=row.marks, id=name))
    return rows
