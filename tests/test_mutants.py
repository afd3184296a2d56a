"""The changes that measure the tests (`python -m tests.mutations`): what is changed, and which tests run."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutants import Mutant, mutants, sample
from tests.mutations import ROOT, Coverage, by_stage, equivalent, place, sources, stages, statement

PYTHON = '''
"""At least 1."""
LARGE = 4096

def bounded(values: tuple[int, int], lock, text: str = "0") -> int:
    """At most 2."""
    if not values or min(values) < 0:
        raise ValueError(f"expected {1 + 2}")
    with lock:
        store(zip(values, values, strict=True), copy=True)
    return values[0] if text else len(values) - 1

def describe(number: int) -> str:
    return "one" if number == 1 else "many"
'''
CUDA = """
// a < b
KERNEL add(const real *x, real *y, int64 n) {
    double sum = 0;
    if (!n) return;
    for (int64 i = 0; i < n; ++i) sum += x[i];
    y[0] = sum;
}
"""


def changes(folder: Path, name: str, text: str) -> set[tuple[str, str, str]]:
    (folder / name).write_text(text)
    return {(mutant.kind, mutant.old.strip(), mutant.new) for mutant in mutants(folder, name)}


def test_what_is_changed_in_python(tmp_path: Path) -> None:
    assert changes(tmp_path, "m.py", PYTHON) == {
        ("not", "not values", "bool(values)"),
        ("operand", "not values or", ""),
        ("operand", "or min(values) < 0", ""),
        ("swapped", "min", "max"),
        ("boundary", "<", "<="),
        ("number", "0", "1"),
        ("number", "0", "(-1)"),
        ("statement", 'raise ValueError(f"expected {1 + 2}")', "pass"),
        ("lock", "lock", '__import__("contextlib").nullcontext()'),
        ("statement", "store(zip(values, values, strict=True), copy=True)", "pass"),
        ("keyword", ", copy=True", ""),
        ("conditional", "values[0] if text else len(values) - 1", "(values[0])"),
        ("conditional", "values[0] if text else len(values) - 1", "(len(values) - 1)"),
        ("term", "len(values) - 1", "(len(values))"),
        ("number", "1", "2"),
        ("number", "1", "(0)"),
    }


def test_what_is_changed_in_cuda(tmp_path: Path) -> None:
    assert changes(tmp_path, "m.cu", CUDA) == {
        ("precision", "double", "float"),
        ("number", "0", "1"),
        ("statement", "if (!n) return;", ""),
        ("operand", "!", ""),
        ("boundary", "<", "<="),
        ("statement", "y[0] = sum;", ""),
    }


def test_what_is_changed_is_still_python() -> None:
    paths = [path for path in sources(["crossbow/*"], ["*/kernels/*"])[::15] if path.endswith(".py")]
    found = [mutant for path in paths for mutant in mutants(ROOT, path)]
    assert len(found) > 100
    for mutant in sample(found, 50, seed=0):
        ast.parse(mutant.applied((ROOT / mutant.path).read_bytes()))


def test_a_sample_repeats_and_no_kind_is_more_than_a_fifth() -> None:
    kinds = ["number"] * 500 + ["lock"] * 3 + ["not", "term", "swapped", "keyword", "operand"] * 20
    everything = [Mutant("m.py", kind, i, i, i, "", "") for i, kind in enumerate(kinds)]
    chosen = sample(everything, 50, seed=4)
    assert chosen == sample(everything, 50, seed=4) != sample(everything, 50, seed=5)
    assert len(chosen) == len(set(chosen)) == 50
    assert max(Counter(each.kind for each in chosen).values()) == 10


@pytest.mark.slow
def test_mutants_that_make_no_difference_exist() -> None:
    """Where the code has changed, the judgement no longer holds."""
    judged = equivalent()
    found = {place(mutant) for path in {path for path, *_ in judged} for mutant in mutants(ROOT, path)}
    assert not judged.keys() - found
    assert all(judged.values())


@pytest.mark.parametrize(
    ("path", "first", "then"),
    [
        ("crossbow/data/ring.py", "tests/data/test_ring.py", "tests/data/test_loader.py"),
        ("crossbow/synch/asynchronous.py", "tests/synch/test_asynchronous.py", "tests/synch/test_rules.py"),
        (
            "crossbow/kernels/cuda/sources/loss.cu",
            "tests/kernels/cuda/test_loss.py",
            "tests/kernels/cuda/test_table.py",
        ),
    ],
)
def test_which_tests_run(path: str, first: str, then: str) -> None:
    found = stages(path)
    assert first in found[0]
    assert any(then in stage for stage in found[1:]) or then in found[0]
    everything = [test for stage in found for test in stage]
    assert len(everything) == len(set(everything))
    assert "tests/test_trajectory.py" in everything


def test_the_lines_of_a_statement() -> None:
    code = b"def f(a,\n      b=1):\n    x = g(a,\n          b)\n    if (a and\n            b):\n        return 1\n"
    of_lines = [statement(code, line) for line in range(1, 8)]
    assert of_lines == [range(1, 3)] * 2 + [range(3, 5)] * 2 + [range(5, 7)] * 2 + [range(7, 8)]


def test_which_tests_execute_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout whose folder has the package's name."""
    path = "/home/me/crossbow/crossbow/data/ring.py"
    lines = {1: [""], 2: ["tests/a.py::test[1]|setup", "tests/a.py::test[1]|run", "tests/b.py::test|run"], 3: [""]}
    made = SimpleNamespace(
        read=lambda: None,
        measured_files=lambda: {path},
        measured_contexts=lambda: {each for of_line in lines.values() for each in of_line},
        contexts_by_lineno=lambda asked: lines if asked == path else {},
    )
    monkeypatch.setitem(sys.modules, "coverage", SimpleNamespace(CoverageData=lambda file: made))
    found, code = Coverage(Path(".coverage")), b"def f():\n    return 1\nx = 2\n"
    executing = [found.tests(Mutant("crossbow/data/ring.py", "number", n, 0, 0, "", ""), code) for n in (1, 2, 3)]
    assert executing == [[], ["tests/a.py::test[1]", "tests/b.py::test"], []]
    assert found.tests(Mutant("crossbow/data/order.py", "number", 2, 0, 0, "", ""), code) == []
    made.measured_contexts = lambda: {""}
    with pytest.raises(ValueError, match="expected the coverage of each test"):
        Coverage(Path(".coverage"))


def test_tests_that_execute_a_line_run_stage_by_stage() -> None:
    tests = ["tests/c.py::test[1]", "tests/a.py::test", "tests/c.py::test[2]", "tests/other.py::test"]
    found = [["tests/a.py"], ["tests/b.py", "tests/c.py"]]
    assert by_stage(tests, found) == [["tests/a.py"], ["tests/c.py"], ["tests/other.py"]]
