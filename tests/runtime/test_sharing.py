"""Results of tasks between ranks."""

from __future__ import annotations

import math

from crossbow.runtime.reports import Reports
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.task import Completed, Failed
from tests.cluster.fake_network import FakeNetwork
from tests.support import until


def test_every_rank_gets_all_results_of_the_part_that_it_has_begun() -> None:
    ranks = FakeNetwork(2).ranks()
    reports = [Reports(), Reports()]
    first, second = (Sharing(*pair) for pair in zip(ranks, reports, strict=True))
    try:
        first.begin()
        second.begin()
        result = Completed(3, 0.1 + 0.2, None, 4, 1, 0.5)
        reports[0].put(result)
        assert reports[0].take() == result
        until(lambda: bool(reports[1]._reports))
        assert reports[1].take() == result
        first.begin()
        later = Completed(0, 0.5, 0.75, 4, 0)
        reports[0].put(later)
        until(lambda: bool(second._early))
        assert reports[1].take() is None  # the second rank has not begun that part
        second.begin()
        assert reports[1].take() == later
    finally:
        first.close()
        second.close()


def test_numbers_that_are_not_finite_arrive_and_failures_stay() -> None:
    ranks = FakeNetwork(2).ranks()
    reports = [Reports(), Reports()]
    first, second = (Sharing(*pair) for pair in zip(ranks, reports, strict=True))
    reports[0].put(Failed(1, 0, "conv", ValueError()))
    reports[0].put(Completed(2, math.nan, None, 4, 0))
    first.close()
    until(lambda: bool(reports[1]._reports))
    second.close()
    arrived = reports[1].take()
    assert isinstance(arrived, Completed)
    assert arrived.task == 2
    assert math.isnan(arrived.loss)
    assert reports[1].take() is None
