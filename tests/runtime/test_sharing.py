"""Results of tasks between ranks."""

from __future__ import annotations

import json
import math
import queue
import time
from typing import Any

import pytest

from crossbow.cluster.members import ViewChangedError
from crossbow.cluster.ranks import Ranks
from crossbow.runtime.reports import Reports
from crossbow.runtime.sharing import SECONDS_TO_LOOK, Sharing
from crossbow.runtime.task import Completed, Failed
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.support import raising, until


def shared(ranks: list[Ranks], reports: list[Reports]) -> list[Sharing]:
    """A `Sharing` for each rank, which shares these reports."""
    made = [Sharing(each) for each in ranks]
    for each, own in zip(made, reports, strict=True):
        each.join(own)
    return made


def test_every_rank_gets_all_results_of_the_part_that_it_has_begun() -> None:
    ranks = FakeNetwork(2).ranks()
    reports = [Reports(), Reports()]
    first, second = shared(ranks, reports)
    try:
        first.begin(reports[0])
        second.begin(reports[1])
        result = Completed(3, 0.1 + 0.2, None, 4, 1, 0.5)
        reports[0].put(result)
        assert reports[0].take() == result
        until(lambda: bool(reports[1]._reports))
        assert reports[1].take() == result
        first.begin(reports[0])
        later = Completed(0, 0.5, 0.75, 4, 0)
        reports[0].put(later)
        until(lambda: bool(second._early))
        assert reports[1].take() is None  # the second rank has not begun that part
        second.begin(reports[1])
        assert reports[1].take() == later
    finally:
        first.close()
        second.close()


def test_a_deferred_exchange_is_made_up_for() -> None:
    ranks = FakeNetwork(2).ranks()
    reports = [Reports(), Reports()]
    first, second = shared(ranks, reports)
    try:
        for each, own in zip((first, second), reports, strict=True):
            each.begin(own)
        looks, look = [], first._look_for_failure
        first._look_for_failure = lambda: (looks.append(1), look())  # type: ignore[method-assign, assignment]
        first.defer()
        looks.clear()
        until(lambda: len(looks) >= 2)  # an exchange that had begun before is over
        results = [Completed(task, 0.5, None, 4, 0) for task in range(3)]
        for each in results[:2]:
            reports[0].put(each)
        time.sleep(3 * SECONDS_TO_LOOK)
        assert reports[1].take() is None
        first.exchange()
        until(lambda: len(reports[1]._reports) == 2)
        first._exchanges.clear()
        reports[0].put(results[2])  # as the last one before `defer`
        first.defer()
        until(lambda: len(reports[1]._reports) == 3)
        assert [reports[1].take() for _ in range(3)] == results
        reports[1].put(results[0])
        time.sleep(3 * SECONDS_TO_LOOK)
        assert reports[0].take() == results[0]  # its own; that of the other is still on its way
        assert reports[0].take() == results[1]
        assert reports[0].take() == results[2]
        assert reports[0].take() is None
        first.exchange()
        until(lambda: bool(reports[0]._reports))
    finally:
        first.close()
        second.close()


def test_a_result_is_sent_once_by_either_thread() -> None:
    """The scheduler's thread and that of `Sharing` may send at the same time."""
    first, _ = FakeNetwork(2).ranks()
    sharing, sent = Sharing(first), list[bytes]()
    first.transport.send = lambda message, rank, channel: sent.append(message)  # type: ignore[method-assign]

    class Queue(queue.SimpleQueue[Any]):
        """Between its two methods, another thread has the time for both."""

        def empty(self) -> bool:
            found = super().empty()
            time.sleep(0.02)
            return found

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return super().get(timeout=1)

    sharing._own = Queue()
    for task in range(3):
        sharing._put(Completed(task, 0.5, None, 4, 0))
    assert sorted(at_once([sharing._send, sharing._send])) == [False, True]
    assert [result[1][0] for result in json.loads(b"".join(sent))] == [0, 1, 2]


def test_numbers_that_are_not_finite_arrive_and_failures_stay() -> None:
    ranks = FakeNetwork(2).ranks()
    reports = [Reports(), Reports()]
    first, second = shared(ranks, reports)
    for each, own in zip((first, second), reports, strict=True):
        each.begin(own)
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


def test_engines_that_take_turns_share_one_connection() -> None:
    """Results belong to the engine that has begun the part."""
    ranks = FakeNetwork(2).ranks()
    made = [Sharing(each) for each in ranks]
    of_engines = [[Reports(), Reports()] for _ in ranks]
    for sharing, engines in zip(made, of_engines, strict=True):
        for reports in engines:
            sharing.join(reports)
    try:
        for engine in (0, 1, 0):
            for sharing, engines in zip(made, of_engines, strict=True):
                sharing.begin(engines[engine])
            result = Completed(engine, 0.5, None, 4, 1)
            of_engines[0][engine].put(result)
            until(lambda engine=engine: bool(of_engines[1][engine]._reports))
            assert of_engines[1][engine].take() == result
            assert of_engines[1][1 - engine].take() is None
    finally:
        for sharing in made:
            sharing.close()


def test_parts_begin_and_results_arrive_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of the next part must not be kept for later while that part begins."""
    deliver, held = Sharing._deliver, list[bool]()

    def watched(sharing: Sharing, part: int, result: Completed) -> None:
        held.append(sharing._lock.locked())
        deliver(sharing, part, result)

    monkeypatch.setattr(Sharing, "_deliver", watched)
    reports = [Reports(), Reports()]
    first, second = shared(FakeNetwork(2).ranks(), reports)
    try:
        first.begin(reports[0])
        reports[0].put(Completed(0, 0.5, None, 4, 0))
        until(lambda: bool(second._early))
        second.begin(reports[1])
        reports[0].put(Completed(1, 0.5, None, 4, 0))
        until(lambda: len(reports[1]._reports) == 2)
    finally:
        first.close()
        second.close()
    assert held == [True, True, True]


def test_a_rank_that_has_left_ends_the_wait_for_its_results() -> None:
    """Also that of another engine, which takes over before the first one has noticed."""
    ranks, reports = FakeNetwork(2).ranks(), [Reports(), Reports()]
    first, second = shared(ranks, reports)
    second.close()
    following = Reports()
    first.join(following)
    try:
        first.begin(reports[0])
        ranks[0].check_others = raising(ViewChangedError("rank 1 has left"))  # type: ignore[method-assign]
        first.begin(reports[0])
        time.sleep(0.05)
        assert not reports[0]._reports  # the engine rests
        for each in (reports[0], following, reports[0]):
            first.begin(each, works=True)
            until(lambda each=each: bool(each._reports))
            found = each.take()
            assert isinstance(found, Failed)
            assert isinstance(found.error, ViewChangedError)
            assert each.take() is None
    finally:
        first.close()


def test_results_are_shared_until_the_last_engine_is_closed() -> None:
    ranks, reports = FakeNetwork(2).ranks(), [Reports(), Reports()]
    first, second = shared(ranks, reports)
    following = Reports()
    try:
        first.join(following)
        first.leave(reports[0])
        first.begin(following)
        second.begin(reports[1])
        following.put(Completed(0, 0.5, None, 4, 0))
        until(lambda: bool(reports[1]._reports))
        first.leave(following)
        assert not first._thread.is_alive()
    finally:
        first.close()
        second.close()


def test_a_failure_of_a_rank_that_is_seen_too_late_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has ended its work meanwhile."""
    ranks, reports = FakeNetwork(2).ranks(), [Reports(), Reports()]
    first, second = shared(ranks, reports)
    try:
        first.begin(reports[0], works=True)

        def changed() -> None:
            first.rest()
            raise ViewChangedError

        monkeypatch.setattr(ranks[0], "check_others", changed)
        first._look_for_failure()
        assert reports[0].take() is None
    finally:
        first.close()
        second.close()
