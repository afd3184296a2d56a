"""Combinations of parameters: those that a test needs in every run, and all the others, which are marked `slow`.

A run of the whole suite takes a sample of those that a test needs, too, if there are many (`sample_long_lists`). A run
of files or folders takes all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., None])
ROW = type(pytest.param())
FEW, SHARE = 3, 16
"""See `spread`."""


def pairwise(test: F) -> F:
    """Decorator: mark as slow the combinations of a test's parameters that not every pair of values needs."""
    return _combine(test, covering)


def in_turn(test: F) -> F:
    """Decorator: mark as slow the combinations of a test's parameters that not every single value needs."""
    return _combine(test, lambda *lists: covering(*lists, together=1))


def one_in(count: int) -> Callable[[F], F]:
    """Decorator: mark as slow all but one in `count` of a test's combinations, where these are much alike. The others
    are spread evenly: each value of each parameter comes where `count` is no larger than the other lists."""

    def mark(test: F) -> F:
        return _combine(test, lambda *lists: _product(lists, lambda places: sum(places) % count == 0))

    return mark


def sample_long_lists(items: Iterable[pytest.Item]) -> None:
    """Mark as slow, of each test with many combinations that are not slow, most of those beyond the first `FEW`. Tests
    that count their cases are left alone."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        counts = "record_property" in getattr(item, "fixturenames", ())
        if not counts and item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for combinations in tests.values():
        kept = spread(len(combinations))
        for place in set(range(len(combinations))).difference(kept):
            combinations[place].add_marker(pytest.mark.slow)


def spread(count: int) -> list[int]:
    """The places of a sample of `count` combinations: as many as `FEW` and one in `SHARE` of the others, spread evenly.

    >>> spread(3), spread(35)
    ([0, 1, 2], [0, 7, 14, 21, 28])
    """
    kept = min(count, FEW) + max(count - FEW, 0) // SHARE
    return [place * count // kept for place in range(kept)]


def covering(*parameters: Iterable[Any], together: int = 2) -> list[Any]:
    """All combinations of several lists, for `parametrize`, those marked slow that are not needed for every value
    (together = 1) or every pair of values (2) to be run once.

    >>> [row.values for row in covering("ab", [1, 2], together=1) if not row.marks]
    [('a', 1), ('b', 2)]
    """
    lists = [[each if isinstance(each, ROW) else pytest.param(each) for each in values] for values in parameters]
    sizes = [len(values) for values in lists]
    needed = _needed(list(itertools.product(*map(range, sizes))), sizes, min(together, len(lists)))
    return _product(lists, needed.__contains__)


def _product(lists: Sequence[Sequence[Any]], is_needed: Callable[[tuple[int, ...]], bool]) -> list[Any]:
    """All combinations, those marked slow whose places in the lists are not needed."""
    rows = []
    for places in itertools.product(*(range(len(values)) for values in lists)):
        chosen = [values[place] for place, values in zip(places, lists, strict=True)]
        marks = [mark for each in chosen for mark in each.marks] + ([] if is_needed(places) else [pytest.mark.slow])
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


def _combine(test: F, combinations: Callable[..., list[Any]]) -> F:
    """Make one `parametrize` of those of a test, with some combinations of their values."""
    marks: list[pytest.Mark] = test.pytestmark  # type: ignore[attr-defined]
    names, lists, indirect = [], [], []
    for mark in [mark for mark in marks if mark.name == "parametrize"]:
        name, values = mark.args
        own = [part.strip() for part in name.split(",")] if isinstance(name, str) else list(name)
        names += own
        given = mark.kwargs.get("indirect", [])
        indirect += given if isinstance(given, list) else own if given else []
        lists.append(_rows(name, list(values), mark.kwargs.get("ids")))
    marks[:] = [mark for mark in marks if mark.name != "parametrize"]
    decorated: F = pytest.mark.parametrize(names, combinations(*lists), indirect=indirect)(test)
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
