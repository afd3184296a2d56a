"""Which combinations of parameters are run by default: every value, or every pair, comes, and no more than needed."""

from __future__ import annotations

import doctest
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests import combinations
from tests.combinations import covering, in_turn, one_in, pairwise
from tests.conftest import is_whole, pytest_configure_node


def is_slow(row: Any) -> bool:
    return any(mark.name == "slow" for mark in row.marks)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (3, 3, 3), (7, 5, 2), (2, 2, 2, 2, 4), (4, 1, 3)], ids=str)
@pytest.mark.parametrize("together", [1, 2])
def test_what_is_run_by_default_covers_everything(sizes: tuple[int, ...], together: int) -> None:
    rows = covering(*map(range, sizes), together=together)
    assert [row.values for row in rows] == list(itertools.product(*map(range, sizes)))
    run = [row.values for row in rows if not is_slow(row)]
    for lists in itertools.combinations(range(len(sizes)), together):
        wanted = set(itertools.product(*(range(sizes[each]) for each in lists)))
        assert {tuple(values[each] for each in lists) for values in run} == wanted
    largest = sorted(sizes)[-together:]
    assert len(run) <= 1.5 * largest[0] * (largest[1] if together == 2 else 1)


def test_other_marks_and_names_stay() -> None:
    gpu = pytest.param(3, marks=pytest.mark.gpu, id="three")
    rows = covering(["a", "b"], [1, gpu], together=1)
    assert [row.id for row in rows] == ["a-1", "a-three", "b-1", "b-three"]
    assert [[mark.name for mark in row.marks] for row in rows] == [[], ["gpu", "slow"], ["slow"], ["gpu"]]


def test_decorators_take_the_place_of_the_parameters() -> None:
    @pytest.mark.parametrize("kernels", ["reference", "onednn"])
    @pytest.mark.parametrize(("devices", "learners"), [("cpu", 1), ("cuda", 2)])
    @pytest.mark.parametrize("rule", [{}, {"tau": 3}], ids=["sma", "tau"])
    def test(rule: Any, devices: str, learners: int, kernels: str) -> None:
        pass

    once = in_turn(test)
    (mark,) = once.pytestmark  # type: ignore[attr-defined]
    names, rows = mark.args
    assert names == ["rule", "devices", "learners", "kernels"]
    assert [row.id for row in rows if not is_slow(row)] == ["sma-cpu-1-reference", "tau-cuda-2-onednn"]
    assert rows[-1].values == ({"tau": 3}, "cuda", 2, "onednn")
    assert len(rows) == 8


def test_pairs_of_two_lists_are_all() -> None:
    @pairwise
    @pytest.mark.parametrize("a", [1, 2])
    @pytest.mark.parametrize("b", [object(), 1.5])
    def test(a: int, b: Any) -> None:
        pass

    rows = test.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [(row.id, is_slow(row)) for row in rows] == [
        ("value0-1", False),
        ("value0-2", False),
        ("1.5-1", False),
        ("1.5-2", False),
    ]


def test_one_in_some() -> None:
    @one_in(3)
    @pytest.mark.parametrize("a", range(4))
    @pytest.mark.parametrize("b", range(3))
    def test(a: int, b: int) -> None:
        pass

    rows = test.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert len(rows) == 12
    assert [row.id for row in rows if not is_slow(row)] == ["0-0", "0-3", "1-2", "2-1"]


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(combinations).failed == 0


class Item:
    """What `sample_long_lists` asks of an item."""

    def __init__(self, nodeid: str, *marks: str, fixtures: tuple[str, ...] = ()) -> None:
        self.nodeid, self.marks, self.fixturenames = nodeid, list(marks), fixtures

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark.name)


def test_the_whole_suite_takes_a_sample_of_long_lists() -> None:
    few = [Item(f"a.py::test_few[{n}]") for n in range(combinations.FEW)]
    many = [Item(f"a.py::test_many[{n}]", *(["slow"] if n % 2 else [])) for n in range(60)]
    counted = [Item(f"a.py::test_counted[{n}]", fixtures=("record_property",)) for n in range(60)]
    combinations.sample_long_lists([*few, *many, *counted, Item("a.py::test_single")])  # type: ignore[list-item]
    assert not any(item.marks for item in (*few, *counted))
    run = [n for n, item in enumerate(many) if not item.marks]
    assert run == [2 * place for place in combinations.spread(30)]
    assert len(run) == combinations.FEW + (30 - combinations.FEW) // combinations.SHARE


@pytest.mark.parametrize(
    ("source", "options", "whole"),
    [
        (pytest.Config.ArgsSource.TESTPATHS, {}, True),
        (pytest.Config.ArgsSource.TESTPATHS, {"keyword": "conv"}, False),
        (pytest.Config.ArgsSource.TESTPATHS, {"lf": True}, False),
        (pytest.Config.ArgsSource.ARGS, {}, False),
    ],
)
def test_the_whole_suite_is_what_runs_without_a_selection(source: Any, options: dict[str, Any], whole: bool) -> None:
    """Also in the workers of pytest-xdist, whose own arguments are others."""
    config: Any = SimpleNamespace(args_source=source, getoption=lambda name, default: options.get(name, default))
    assert is_whole(config) == whole
    node = SimpleNamespace(config=config, workerinput={})
    pytest_configure_node(node)
    assert is_whole(SimpleNamespace(workerinput=node.workerinput)) == whole  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, combinations.FEW, combinations.FEW + 1, 30, 1000])
def test_a_sample_is_spread_evenly(count: int) -> None:
    places = combinations.spread(count)
    assert places == sorted(set(places))
    assert places[:1] == [0][:count]
    steps = {after - before for before, after in itertools.pairwise(places)}
    assert max(steps, default=1) - min(steps, default=1) <= 1
    assert max(steps, default=1) <= combinations.SHARE
