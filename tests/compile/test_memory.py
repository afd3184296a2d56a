"""The memory plan: no two buffers in one place at one time, and not much more than is needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.compile import Lifetime, MemoryPlan, plan_memory
from crossbow.compile.memory import ALIGNMENT, aligned


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 25))
    found = []
    for name in range(count):
        first = draw(st.integers(0, 20))
        last = draw(st.integers(first, 21))
        found.append(Lifetime(name, draw(st.integers(0, 5000)), first, last))
    return found


def needed(buffers: list[Lifetime], step: int) -> int:
    return sum(aligned(b.nbytes) for b in buffers if b.first <= step <= b.last)


@given(lifetimes())
def test_buffers_that_live_together_do_not_overlap(buffers: list[Lifetime]) -> None:
    plan = plan_memory(buffers)
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
