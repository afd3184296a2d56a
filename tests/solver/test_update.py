"""Updates of vectors: what they mean, how they are taken apart, and that kernels do the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import LinearCombination
from crossbow.solver import Update
from crossbow.solver.update import Assignment, total

NAMES = "abcd"


def vectors(**values: float) -> dict[str, Any]:
    return {name: np.array([value, -value]) for name, value in values.items()}


def test_apply_assigns_one_target_after_the_other() -> None:
    """Later assignments see what earlier ones wrote: v = ½v − g; w = w + v."""
    update = Update((("v", {"v": 0.5, "g": -1.0}), ("w", {"w": 1.0, "v": 1.0})))
    values = vectors(v=4.0, g=3.0, w=10.0)
    update.apply(values)
    assert {name: value.tolist() for name, value in values.items()} == {
        "v": [-1.0, 1.0],
        "g": [3.0, -3.0],
        "w": [9.0, -9.0],
    }


def test_apply_writes_into_the_array_it_is_given() -> None:
    values = vectors(a=1.0, b=2.0)
    target = values["a"]
    Update((("a", {"b": 2.0}),)).apply(values)
    assert values["a"] is target
    assert target.tolist() == [4.0, -4.0]


def test_an_empty_update_does_nothing() -> None:
    update = Update(())
    update.apply({})
    assert (update.assignments, update.coefficients, update.vectors) == ((), [], ())


def test_it_is_taken_apart_into_shape_and_numbers() -> None:
    update = Update((("v", {"v": 0.5, "g": -0.1}), ("w", {"w": 1.0, "v": 1.0})))
    assert update.assignments == (Assignment("v", ("v", "g")), Assignment("w", ("w", "v")))
    assert update.coefficients == [0.5, -0.1, 1.0, 1.0]
    assert update.vectors == ("v", "g", "w")


def test_expand_replaces_a_term_by_a_combination() -> None:
    update = Update((("z", {"z": 2.0, "total": 3.0}), ("y", {"z": 1.0})))
    expanded = update.expand("total", total("sent", [0.5, 0.25]))
    assert expanded.steps == (("z", {"z": 2.0, "sent0": 1.5, "sent1": 0.75}), ("y", {"z": 1.0}))


def test_expand_adds_to_a_term_that_is_there_already() -> None:
    update = Update((("z", {"a": 1.0, "total": 2.0, "b": 5.0}),))
    assert update.expand("total", {"a": 3.0, "b": 1.0}).steps == (("z", {"a": 7.0, "b": 7.0}),)


def test_expand_leaves_targets_and_others_alone() -> None:
    update = Update((("total", {"a": 1.0}),))
    assert update.expand("total", {"b": 2.0}) == update


def test_total_names_a_vector_for_each_weight() -> None:
    assert total("sent", [0.5, 0.25, 0.25]) == {"sent0": 0.5, "sent1": 0.25, "sent2": 0.25}


numbers = st.floats(-4, 4, width=32)
terms = st.dictionaries(st.sampled_from(NAMES), numbers, min_size=1)
updates = st.lists(st.tuples(st.sampled_from(NAMES), terms), min_size=1, max_size=3).map(
    lambda steps: Update(tuple(steps))
)


@given(updates, st.lists(numbers, min_size=4, max_size=4), terms)
def test_expanding_changes_no_result(update: Update, values: list[float], parts: dict[str, float]) -> None:
    """x = Σ parts before the update gives what the expansion gives, where nothing writes to x or its parts first."""
    update = Update((("result", {**update.steps[0][1], "x": 2.0}),))
    start = {**vectors(**dict(zip(NAMES, values, strict=True))), "result": np.zeros(2)}
    combined = {**{name: value.copy() for name, value in start.items()}, "x": np.zeros(2)}
    Update((("x", parts),)).apply(combined)
    update.apply(combined)
    expanded = {name: value.copy() for name, value in start.items()}
    update.expand("x", parts).apply(expanded)
    np.testing.assert_allclose(expanded["result"], combined["result"], atol=1e-12)


@given(updates, st.lists(numbers, min_size=4, max_size=4))
def test_the_kernel_does_what_apply_means(update: Update, values: list[float]) -> None:
    named = {name: np.full(3, value) for name, value in zip(NAMES, values, strict=True)}
    expected = {name: value.copy() for name, value in named.items()}
    update.apply(expected)
    kernel = Reference(np.float64).prepare(LinearCombination(update.assignments, np.dtype(np.float64)))
    used = {name: named[name] for name in update.vectors}
    for call in kernel.bind({**used, "coefficients": np.array(update.coefficients)}):
        call()
    for name, value in expected.items():
        np.testing.assert_allclose(named[name], value, rtol=1e-12, atol=1e-12)


def test_an_unknown_vector_is_an_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        Update((("a", {"nobody": 1.0}),)).apply(vectors(a=1.0))
