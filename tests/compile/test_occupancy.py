"""Buffers lie where they would if each were compared with all that were placed before."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from crossbow.compile import occupancy as module
from crossbow.compile.occupancy import Occupancy, lowest_gap, take

STEPS = 21


def test_examples() -> None:
    assert doctest.testmod(module).failed == 0


def test_what_a_search_passes() -> None:
    """Each range once, but for those that a longer one covers."""
    assert lowest_gap([], 5) == (0, 0)
    assert lowest_gap([[5, 7]], 5) == (0, 0)
    assert lowest_gap([[4, 7]], 5) == (7, 1)
    assert lowest_gap([[0, 4, 6, 8], [1, 3, 5, 9]], 2) == (9, 4)
    assert lowest_gap([[0, 9], [0, 1, 2, 3, 4, 5]], 2) == (9, 2)
    assert lowest_gap([[0, 4], [2, 7, 8, 9]], 1) == (7, 2)


Buffer = tuple[int, int, int]
"""First step, last step, size."""


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    found = []
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, STEPS - 1))
        last = draw(st.integers(first, STEPS - 1))
        found.append((first, last, draw(st.integers(0, 5))))
    return found


def lowest(placed: list[tuple[int, Buffer]], buffer: Buffer) -> int:
    """The lowest offset, found by trying one after the other."""
    first, last, size = buffer
    alive = [(offset, other) for offset, other in placed if other[0] <= last and first <= other[1]]
    offset = 0
    while any(offset < start + other[2] and start < offset + size for start, other in alive):
        offset += 1
    return offset


@given(buffers())
def test_every_buffer_lies_at_the_lowest_offset_that_is_free_all_its_life(found: list[Buffer]) -> None:
    occupancy = Occupancy(STEPS)
    placed: list[tuple[int, Buffer]] = []
    for buffer in found:
        expected = lowest(placed, buffer) if buffer[2] else 0
        assert occupancy.place(*buffer) == expected
        placed.append((expected, buffer))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8))))
def test_a_union_holds_the_bytes_of_its_ranges_and_neighbours_are_one(ranges: list[tuple[int, int]]) -> None:
    union: list[int] = []
    for start, size in ranges:
        take(union, start, start + size)
    held = {byte for start, stop in zip(union[::2], union[1::2], strict=True) for byte in range(start, stop)}
    assert held == {byte for start, size in ranges for byte in range(start, start + size)}
    assert union == sorted(set(union))  # no two touch


def test_looking_for_a_place_in_a_full_stack_passes_few_ranges() -> None:
    """The lives of a chain's activations are nested: each joins those below it to one range."""
    count = 1000
    occupancy = Occupancy(2 * count)
    for number in range(count):
        assert occupancy.place(number, 2 * count - 1 - number, 64) == 64 * number
    assert count - 1 <= occupancy.passed < 60 * count
    assert Occupancy(1).passed == 0
