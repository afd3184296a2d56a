"""BatchNorm, Concat, ElementWiseOp, LRN and Scale of any shape: reference, fast library and PyTorch agree."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.kernels import why_not_compiled
from crossbow.ops import LRN, Concat, Constant, ElementWiseOp, Gaussian, Scale
from crossbow.types import Shape
from tests.operators import test_table
from tests.operators.table import Case, normalisation

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")
with_pytorch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, only for comparisons, is not installed")
# Derandomised: a suite that fails on some days only would not say what changed. max_examples keeps it to seconds.
modest = settings(max_examples=15, deadline=None, derandomize=True)


def shapes(least: int, most: int, longest: int = 7) -> st.SearchStrategy[Shape]:
    """Of so many dimensions; the second, the channels, long enough for more than one vector register."""
    sizes = st.lists(st.integers(1, longest), min_size=least, max_size=most)
    return st.builds(lambda s, c: (*s[:1], *([c] if len(s) > 1 else []), *s[2:]), sizes, st.integers(1, 40))


@st.composite
def concatenations(draw: st.DrawFn) -> Case:
    shape = draw(shapes(1, 5))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    return Case(Concat(axis=axis), tuple((*shape[:place], length, *shape[place + 1 :]) for length in lengths))


@st.composite
def combinations(draw: st.DrawFn) -> Case:
    kind, count = draw(st.sampled_from(["sum", "product", "max"])), draw(st.integers(1, 6))
    return Case(ElementWiseOp(type=kind), (draw(shapes(1, 5)),) * count)


@st.composite
def responses(draw: st.DrawFn) -> Case:
    region = draw(st.sampled_from(["across_channels", "within_channel"]))
    operator = LRN(
        size=draw(st.sampled_from([1, 2, 3, 3, 4, 5, 5, 7, 8])),
        alpha=draw(st.sampled_from([0.0, 0.3, 2.0])),
        beta=draw(st.sampled_from([0.0, 0.5, 0.75, 0.75, 1.0])),
        kappa=draw(st.sampled_from([0.5, 1.0, 2.0])),
        region=region,
    )
    return Case(operator, (draw(shapes(4, 4, 9) if region == "within_channel" else shapes(2, 5)),))


@st.composite
def scales(draw: st.DrawFn) -> Case:
    shape = draw(shapes(2, 5))
    axis = draw(st.integers(1, len(shape) - 1))
    bias = draw(st.booleans())
    operator = Scale(
        axis=axis - draw(st.sampled_from([0, len(shape)])),
        number_of_axes=draw(st.integers(1, len(shape) - axis)),
        bias=bias,
        weight_initialiser=Gaussian(std=1.0),
        bias_initialiser=Gaussian(std=0.5) if bias else Constant(),
    )
    return Case(operator, (shape,))


@st.composite
def normalisations(draw: st.DrawFn) -> Case:
    # Of a few values only, the gradient is a small difference of large numbers.
    shape = draw(shapes(2, 5).filter(lambda shape: math.prod(shape) >= 8 * shape[1]))
    statistics = draw(st.sampled_from(["fixed", "cma"]))
    return normalisation(
        shape,
        draw(st.sampled_from([0.0, 0.0, 0.0, 30.0])),
        epsilon=draw(st.sampled_from([1e-5, 1e-3, 1.0])),
        moving_average_fraction=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])) if statistics == "fixed" else 0.9,
        statistics=statistics,
        bias=draw(st.booleans()),
    )


cases = st.one_of(concatenations(), combinations(), responses(), scales(), normalisations())
many = settings(modest, max_examples=2 * modest.max_examples)


@fast
@many
@given(cases)
def test_fast_library(case: Case) -> None:
    test_table.test_fast_library_agrees_with_reference(case, {"device": "cpu"})


@fast
@modest
@given(cases)
def test_fast_library_when_checking(case: Case) -> None:
    test_table.test_fast_library_agrees_with_reference_when_checking(case, {"device": "cpu"})


@fast
@modest
@given(cases)
def test_fast_library_in_place(case: Case) -> None:
    test_table.test_in_place_changes_nothing(case, {"device": "cpu"})


@pytest.mark.slow
@with_pytorch
@many
@given(cases)
def test_in_pytorch(case: Case) -> None:
    test_table.test_agrees_with_pytorch(case)
