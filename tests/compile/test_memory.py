"""The memory plan: no two buffers in one place at one time, and not much more than is needed."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.compile import Lifetime, MemoryPlan, memory, plan_memory
from crossbow.compile.memory import ALIGNMENT, ORDERS, aligned


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 25))
    found = []
    for name in range(count):
        first = draw(st.integers(0, 20))
        last = draw(st.integers(first, 21))
        nbytes = draw(st.sampled_from([64, 128, 1000]) | st.integers(0, 5000))
        found.append(Lifetime(name, nbytes, first, last))
    return found


def needed(buffers: list[Lifetime], step: int) -> int:
    return sum(aligned(b.nbytes) for b in buffers if b.first <= step <= b.last)


def largest_first(buffers: list[Lifetime]) -> int:
    """Bytes of a plan in which each buffer, the largest first, lies at the lowest place that is free all its life."""
    rows: dict[int, set[int]] = {}  # by cache line: the steps in which it is taken
    top = 0
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first)):
        lines, life = aligned(buffer.nbytes) // ALIGNMENT, set(range(buffer.first, buffer.last + 1))
        start = 0
        while any(life & rows.get(line, set()) for line in range(start, start + lines)):
            start += 1
        for line in range(start, start + lines):
            rows[line] = rows.get(line, set()) | life
        top = max(top, start + lines) if lines else top
    return top * ALIGNMENT


@pytest.mark.slow
@given(lifetimes())
def test_a_plan_is_never_larger_than_with_the_largest_first(buffers: list[Lifetime]) -> None:
    assert plan_memory(buffers).arena <= largest_first(buffers)


@pytest.mark.parametrize(
    ("best", "sizes"),
    [
        (0, [(4, 3, 6), (3, 1, 2), (2, 2, 2), (4, 2, 4)]),
        (1, [(2, 3, 6), (5, 0, 2), (4, 3, 4), (2, 2, 5)]),
        (2, [(5, 5, 5), (5, 2, 2), (1, 3, 6), (4, 1, 3)]),
        (3, [(3, 0, 2), (2, 0, 2), (3, 1, 3), (4, 3, 3)]),
        (4, [(5, 0, 2), (4, 3, 6), (2, 2, 4), (2, 4, 5)]),
    ],
)
def test_every_order_is_the_best_somewhere(
    best: int, sizes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it needs what the fullest step needs, and the others more."""
    buffers = [Lifetime(name, lines * 64, first, last) for name, (lines, first, last) in enumerate(sizes)]
    plan = plan_memory(buffers)
    assert plan.arena == plan.lower_bound
    for number, order in enumerate(ORDERS):
        monkeypatch.setattr(memory, "ORDERS", (order,))
        alone = plan_memory(buffers)
        assert (alone == plan) == (number == best)
        assert (alone.arena == plan.arena) == (number == best)


@given(lifetimes(), st.sampled_from(range(len(ORDERS))))
def test_buffers_that_live_together_do_not_overlap_in_any_order(buffers: list[Lifetime], order: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "ORDERS", ORDERS[order : order + 1])
        check_apart(buffers, plan_memory(buffers))


@given(lifetimes())
def test_buffers_that_live_together_do_not_overlap(buffers: list[Lifetime]) -> None:
    check_apart(buffers, plan_memory(buffers))


def check_apart(buffers: list[Lifetime], plan: MemoryPlan) -> None:
    for one, other in itertools.combinations(buffers, 2):
        if max(one.first, other.first) <= min(one.last, other.last) and one.nbytes and other.nbytes:
            start, start2 = plan.offsets[one.name], plan.offsets[other.name]
            assert start + one.nbytes <= start2 or start2 + other.nbytes <= start, (one, other)


@given(lifetimes())
def test_every_buffer_is_aligned_and_inside_the_arena(buffers: list[Lifetime]) -> None:
    plan = plan_memory(buffers)
    assert set(plan.offsets) == {buffer.name for buffer in buffers}
    for buffer in buffers:
        offset = plan.offsets[buffer.name]
        assert offset >= 0
        assert offset % ALIGNMENT == 0
        assert offset + buffer.nbytes <= plan.arena
    assert plan.arena % ALIGNMENT == 0


@given(lifetimes())
def test_the_arena_is_between_its_bounds(buffers: list[Lifetime]) -> None:
    plan = plan_memory(buffers)
    assert plan.lower_bound == max((needed(buffers, step) for step in range(22)), default=0)
    assert plan.without_reuse == sum(aligned(buffer.nbytes) for buffer in buffers)
    assert plan.lower_bound <= plan.arena <= plan.without_reuse


@given(lifetimes())
def test_the_same_lifetimes_give_the_same_plan(buffers: list[Lifetime]) -> None:
    assert plan_memory(buffers) == plan_memory(list(buffers))


@given(lifetimes())
def test_names_do_not_count(buffers: list[Lifetime]) -> None:
    """Nor how they are hashed, which differs from run to run."""
    names = [f"{random.Random(buffer.name).random()}" for buffer in buffers]
    named = [Lifetime(name, b.nbytes, b.first, b.last) for name, b in zip(names, buffers, strict=True)]
    plan, other = plan_memory(buffers), plan_memory(named)
    assert [plan.offsets[buffer.name] for buffer in buffers] == [other.offsets[name] for name in names]


def test_no_buffers_need_no_memory() -> None:
    assert plan_memory([]) == MemoryPlan({}, arena=0, without_reuse=0, lower_bound=0)


def test_a_chain_needs_two_buffers_in_turn() -> None:
    """Buffer i is written in step i and read in step i + 1."""
    plan = plan_memory([Lifetime(i, 1000, i, i + 1) for i in range(10)])
    assert [plan.offsets[i] for i in range(10)] == [0, 1024] * 5
    assert (plan.arena, plan.lower_bound, plan.without_reuse) == (2048, 2048, 10240)


def test_buffers_that_touch_in_a_step_live_together() -> None:
    """The last use of one and the first of the other are in the same call: it reads one while it writes the other."""
    plan = plan_memory([Lifetime("read", 64, 0, 3), Lifetime("written", 64, 3, 5)])
    assert plan.arena == 128


def test_a_gap_between_buffers_is_used() -> None:
    buffers = [
        Lifetime("large", 640, 0, 9),
        Lifetime("early", 320, 0, 4),
        Lifetime("late", 320, 5, 9),
        Lifetime("small", 64, 0, 9),
    ]
    plan = plan_memory(buffers)
    assert plan.offsets == {"large": 0, "early": 640, "late": 640, "small": 960}
    assert plan.arena == plan.lower_bound == 1024


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0), (1, 64), (63, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_cache_lines(nbytes: int, expected: int) -> None:
    assert aligned(nbytes) == expected
