"""Reports wake the scheduler when there are enough, and none is lost; results are handed on in order, a few ahead."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crossbow import TrainingUnit
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Completed, Failed
from tests.support import SECONDS, within

TASKS = TrainingUnit.TASKS


def done(task: int) -> Completed:
    return Completed(task, 0.5, None, 4, 0)


def failed(task: int, error: BaseException | None = None) -> Failed:
    return Failed(task, 0, "operator", error)


def everything(reports: Reports) -> list[int]:
    found = []
    while (report := reports.take()) is not None:
        found.append(report.task)
    return found


class Watched(Reports):
    """Reports whose reader shows where it stands: `between` is called there, and sleeping for ever is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[str], None] = lambda place: None
        self.wakes = self.sleeps = 0
        outer = self

        class Event:
            set_ = False

            def set(self) -> None:
                outer.wakes += 1
                self.set_ = True

            def wait(self) -> None:
                outer.between("before sleep")
                outer.sleeps += 1
                assert self.set_, "asleep for ever"
                outer.between("after sleep")

            def clear(self) -> None:
                self.set_ = False
                outer.between("after clear")

        class Deque(deque[Any]):
            def __len__(self) -> int:
                outer.between("before look")
                seen = super().__len__()
                outer.between("after look")
                return seen

        self._enough: Any = Event()
        self._reports: Any = Deque()


# The queue.


def test_reports_come_out_as_they_went_in() -> None:
    reports = Reports()
    assert reports.take() is None
    for task in (3, 1, 2):
        reports.put(done(task))
    reports.wait(3)
    reports.wait(1)
    reports.wait(0)
    assert everything(reports) == [3, 1, 2]
    reports.wait(0)


def test_the_reader_is_woken_when_there_are_enough_and_not_before() -> None:
    reports = Watched()
    reports.put(done(0))
    reports.wait(1)
    assert everything(reports) == [0]
    steps = iter(range(1, 6))

    def between(place: str) -> None:
        if place == "before sleep":
            reports.between = lambda place: None
            for task in steps:
                wakes = reports.wakes
                reports.put(done(task))
                assert reports.wakes - wakes == (task >= 5), "woken for too few"

    reports._enough.clear()
    reports.between = between
    reports.wait(5)
    assert reports.sleeps == 1
    assert everything(reports) == [1, 2, 3, 4, 5]


PLACES = ("before look", "after look", "before sleep", "after sleep", "after clear")


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale wake"])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("time", [0, 1, 2])
def test_no_report_is_missed_wherever_the_reader_stands(place: str, time: int, before: int, stale: bool) -> None:
    """Two reports come at once, at a place that the reader passes; the rest when it sleeps. It sees all of them."""
    reports = Watched()
    reports.between = lambda where: [reports.put(done(task)) for task in range(9)] if where == "before sleep" else None
    reports.wait(9)  # it has wanted more before
    assert everything(reports) == list(range(9))
    for task in range(before):
        reports.put(done(task))
    if stale:
        reports._enough.set()
    else:
        reports._enough.clear()
    passed = 0
    put = [before]

    def give(count: int) -> None:
        kept, reports.between = reports.between, lambda place: None
        for _ in range(count):
            reports.put(done(put[0]))
            put[0] += 1
        reports.between = kept

    def between(where: str) -> None:
        nonlocal passed
        if where == place:
            passed += 1
            if passed == time + 1:
                give(2)
        if where == "before sleep" and not reports._enough.set_:
            give(max(0, 4 - put[0]))  # whoever sleeps now hears of the fourth

    reports.between = between
    reports.wait(4)
    reports.between = lambda place: None
    assert put[0] >= 4
    assert everything(reports) == list(range(put[0]))


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_failure_wakes_at_once(before: int) -> None:
    reports = Watched()
    for task in range(before):
        reports.put(done(task))
    reports._enough.clear()

    def between(place: str) -> None:
        if place == "before sleep":
            reports.between = lambda place: None
            reports.put(failed(before))

    reports.between = between
    reports.wait(100)
    assert reports.sleeps == 1
    assert everything(reports) == list(range(before + 1))


def test_a_failure_is_remembered_until_it_is_forgotten() -> None:
    """After it every report may be the one that is waited for; never does the reader return without any."""
    reports = Watched()
    reports.put(failed(0))
    reports.wait(5)
    assert everything(reports) == [0]
    given = [1]

    def between(place: str) -> None:
        if place == "before sleep":
            reports.between = lambda place: None
            reports.put(done(given[0]))

    reports._enough.clear()
    reports.between = between
    reports.wait(5)
    assert everything(reports) == [1]
    reports.put(failed(2))
    reports.clear()
    assert reports.take() is None
    reports._enough.clear()
    reports.put(done(3))
    with pytest.raises(AssertionError, match="asleep for ever"):
        reports.wait(2)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def put_from_threads(reports: Reports, writers: int, each: int, last: Callable[[int], Any] | None = None) -> list[Any]:
    """Threads that report tasks writer, writer + writers, …; then perhaps a last thing each."""

    def write(writer: int) -> None:
        for number in range(each):
            reports.put(done(writer + writers * number))
        if last is not None:
            reports.put(last(writer))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("writers", [1, 2, 8])
def test_twenty_thousand_reports(writers: int, hasty: None) -> None:
    """Each comes once, those of a thread in order, and whoever waits for so many gets them."""
    reports, total = Reports(), 20_000
    generator = random.Random(writers)

    def read() -> list[int]:
        found: list[int] = []
        while len(found) < total:
            count = min(total - len(found), generator.choice([1, 1, 2, 3, 7, 50]))
            before = len(found)
            reports.wait(count)
            found += everything(reports)
            assert len(found) - before >= count
        return found

    threads = put_from_threads(reports, writers, total // writers)
    found = within(SECONDS, read)
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(total))
    for writer in range(writers):
        own = [task for task in found if task % writers == writer]
        assert own == sorted(own)
    assert reports.take() is None


@pytest.mark.parametrize("writers", [1, 8])
def test_a_failure_among_thousands(writers: int, hasty: None) -> None:
    """The reader waits for more than will ever come."""
    for _ in range(20):
        reports = Reports()
        threads = put_from_threads(reports, writers, 100, last=failed)

        def read(reports: Reports = reports) -> int:
            failures = 0
            while failures < writers:
                reports.wait(10_000)
                while (report := reports.take()) is not None:
                    failures += isinstance(report, Failed)
            return failures

        assert within(SECONDS, read) == writers
        for thread in threads:
            thread.join()
