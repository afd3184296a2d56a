"""The bytes of an arena that are in use at each step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

Union = list[int]
"""Disjoint byte ranges in order, as start, end, start, end, … (the parity of an index tells whether it is taken)."""


class Occupancy:
    """Places buffers in order, each at the lowest offset that is free during its lifetime.

    It is a segment tree over the steps. Each node represents a range of steps, and stores two unions of bytes: those of
    the buffers that live during the whole range, but not during the whole range of its parent, and those of all buffers
    that live at any of its steps. The bytes taken during a lifetime are the union of O(log steps) of these, which are
    short, because neighbours in memory are merged.
    """

    def __init__(self, steps: int) -> None:
        self._leaves = 1 << steps.bit_length()
        self._through = defaultdict[int, Union](list)
        self._within = defaultdict[int, Union](list)
        self.passed = 0
        """Number of ranges passed in searches, which dominates the run time."""

    def place(self, first: int, last: int, size: int) -> int:
        """Allocate `size` bytes from step `first` to step `last`, inclusive. Returns their offset."""
        nodes = self._cover(first, last)
        above = _ancestors(nodes)
        unions = [self._within[node] for node in nodes] + [self._through[node] for node in above]
        start, passed = lowest_gap([union for union in unions if union], size)
        self.passed += passed
        for node in nodes:
            take(self._through[node], start, start + size)
            take(self._within[node], start, start + size)
        for node in above:
            take(self._within[node], start, start + size)
        return start

    def _cover(self, first: int, last: int) -> list[int]:
        """The smallest set of nodes whose ranges together are the steps from `first` to `last`."""
        nodes = []
        left, right = first + self._leaves, last + self._leaves + 1
        while left < right:
            if left & 1:
                nodes.append(left)
                left += 1
            if right & 1:
                right -= 1
                nodes.append(right)
            left, right = left >> 1, right >> 1
        return nodes


def _ancestors(nodes: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for node in nodes:
        parent = node >> 1
        while parent and parent not in found:
            found.add(parent)
            parent >>= 1
    return found


def lowest_gap(unions: Sequence[Union], size: int) -> tuple[int, int]:
    """The lowest offset at which `size` bytes are free in every union, and the number of ranges passed.

    >>> lowest_gap([[0, 64, 128, 192], [64, 96]], 64)
    (192, 3)
    """
    start = passed = 0
    pending = [(union[0], number, 0) for number, union in enumerate(unions)]
    heapify(pending)
    while pending and pending[0][0] < start + size:
        _, number, position = pending[0]
        passed += 1
        union = unions[number]
        start = max(start, union[position + 1])
        position = bisect_right(union, start)
        if position & 1:
            start = union[position]
            position += 1
        if position < len(union):
            heapreplace(pending, (union[position], number, position))
        else:
            heappop(pending)
    return start, passed


def take(union: Union, start: int, end: int) -> None:
    """Add a range, which may overlap others, to a union.

    >>> union = [0, 64, 128, 192]
    >>> take(union, 64, 96)
    >>> union
    [0, 96, 128, 192]
    """
    low, high = bisect_left(union, start), bisect_right(union, end)
    union[low:high] = [start] * (low % 2 == 0) + [end] * (high % 2 == 0)
