"""Reports wake the scheduler when there are enough, and none is lost; results are handed on in order, a few ahead."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, SSGD, TaskError, TrainingUnit
from crossbow.runtime import flow
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Completed, Failed
from tests.support import SECONDS, CheckProbe, Probe, Trap, blobs, context, new_calls, perceptron, raising, within

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


# The scheduler.


class Clock:
    """A clock that goes on by so much whenever somebody looks at it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.parametrize(
    ("learners", "ahead", "seconds", "expected"),
    [
        (1, 6, 0.0, 6),
        (1, 6, 0.001, 6),  # seconds for each task that is waited for
        (1, 6, 0.024, 4),
        (1, 6, 0.04, 2),
        (1, 6, 60.0, 2),
        (1, 2, 60.0, 2),
        (1, 2, 0.03, 3),
        (1, 2, 0.001, 6),  # it was slow, and is no longer
        (1, 3, 0.001, 6),
        (2, 6, 0.012, 4),  # of each learner one in 24 ms
        (3, 2, 0.001, 6),
        (3, 6, 1.0, 2),
    ],
)
def test_how_much_is_submitted_ahead(
    learners: int, ahead: int, seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of a second of each learner's work, but two tasks at least and six at the most."""
    with context(learners=learners) as running:
        clock, under_way = SimpleNamespace(now=0.0), ahead * learners
        monkeypatch.setattr(flow, "time", SimpleNamespace(monotonic=lambda: clock.now))
        under = running.engine.flow
        waited: list[int] = []

        def collect(count: int = 1) -> None:
            waited.append(count)
            under._in_flight -= count
            clock.now += seconds * count

        monkeypatch.setattr(under, "collect", collect)
        under._in_flight, under._ahead = under_way, ahead
        under._make_room()
        assert waited == [under_way - under_way // 2]  # until half of them are done
        assert under._ahead == expected
        under._in_flight = 0
        monkeypatch.undo()


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3), SSGD()], ids=str)
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_slow_tasks_are_submitted_two_ahead_and_quick_ones_six(
    learners: int, rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = blobs(examples=400)  # at the end of an epoch everything is collected
    with context(data=data, learners=learners, rule=rule) as running:
        under, most = running.engine.flow, [0]
        next_batch = under.next_batch

        def counted(loader: Any) -> Any:
            batch = next_batch(loader)
            most[0] = max(most[0], under.in_flight)
            return batch

        monkeypatch.setattr(under, "next_batch", counted)
        running.train(30 * learners, TASKS)
        assert most[0] <= flow.TASKS_AHEAD * learners
        monkeypatch.setattr(flow, "time", Clock(10.0))
        running.train(30 * learners, TASKS)
        assert under._ahead == 2
        most[0] = 0
        running.train(30 * learners, TASKS)
        assert most[0] == 2 * learners
        monkeypatch.setattr(flow, "time", Clock(0.0))
        running.train(30 * learners, TASKS)
        assert under._ahead == flow.TASKS_AHEAD
        most[0] = 0
        running.train(30 * learners, TASKS)
        assert most[0] == flow.TASKS_AHEAD * learners


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_it_begins_with_two_ahead(learners: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit or Ctrl-C in the first tasks, however long they are, waits for no more than these."""
    with context(learners=learners) as running:
        under, most = running.engine.flow, [0]
        next_batch = under.next_batch

        def counted(loader: Any) -> Any:
            batch = next_batch(loader)
            most[0] = max(most[0], under.in_flight)
            return batch

        monkeypatch.setattr(under, "next_batch", counted)
        monkeypatch.setattr(flow, "time", Clock(10.0))
        running.train(30 * learners, TASKS)
        assert most[0] == 2 * learners


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_nothing_is_left_behind(learners: int) -> None:
    with context(learners=learners) as running:
        for _ in range(3):
            running.train(60, TASKS)
            running.test()
            under = running.engine.flow
            assert (under._in_flight, len(under._early), len(under._reports._reports)) == (0, 0, 0)


@pytest.mark.parametrize("learners", [2, 3])
def test_results_are_handed_on_in_order_and_few_wait(learners: int) -> None:
    """A learner in its first task of a test holds all results up, until another has done as many as it is given."""
    new_calls()
    gate, sizes, order = threading.Event(), [0], []

    def act(where: str, learner: int, call: int) -> None:
        if learner == 0 and call == 0:
            assert gate.wait(SECONDS)
        if learner == 1 and call == flow.TASKS_AHEAD - 1:
            gate.set()

    data = blobs(check=200)
    network = perceptron(CheckProbe(action=act))
    with context(network, data=data, learners=learners, check_batch_size=2) as running:
        under = running.engine.flow
        under._ahead = flow.TASKS_AHEAD
        take = under._reports.take

        def watched() -> Any:
            sizes.append(len(under._early))
            return take()

        class Early(dict[int, Completed]):
            def pop(self, task: int, default: Any = None) -> Any:
                found = super().pop(task, default)
                if found is not None:
                    order.append(task)
                return found

        under._reports.take = watched  # type: ignore[method-assign]
        under._early = Early()
        held_up = within(SECONDS, running.test)
        assert gate.is_set()
        assert order == list(range(100))
        # While one task runs, the others' queues empty and fill again, each time with fewer.
        assert flow.TASKS_AHEAD - 1 <= max(sizes) <= flow.TASKS_AHEAD * learners * learners
        assert len(under._early) == 0
        assert within(SECONDS, running.test) == held_up


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_a_failure_ends_the_wait_for_half_of_them(learners: int) -> None:
    """The first task of the first learner fails; the scheduler waits for results that will not come."""
    trap = Trap(raising(ZeroDivisionError("broken")), where="backward", learner=0, call=0)
    with context(perceptron(Probe(action=trap)), learners=learners) as running:
        with pytest.raises(TaskError, match="broken") as caught:
            within(SECONDS, lambda: running.train(1000, TASKS))
        assert caught.value.task == 0
        assert within(SECONDS, lambda: running.train(10, TASKS)).stopped == "count"


def test_of_tasks_that_were_given_up_the_one_that_failed_is_reported() -> None:
    """The others may report first: there was nobody to average with."""
    with context(learners=3) as running:
        under, error = running.engine.flow, ZeroDivisionError("the cause")
        for report in (failed(4), done(3), failed(5), Failed(7, 1, "conv", error), done(6)):
            under._reports.put(report)
        first = under._reports.take()
        assert isinstance(first, Failed)
        with pytest.raises(
            TaskError, match="task 7 failed in operator 'conv' on learner 1: ZeroDivisionError"
        ) as caught:
            within(SECONDS, lambda: under._fail(first))
        assert caught.value.__cause__ is error
        under._reports.clear()


def test_the_time_of_waiting_for_data_goes_on_in_the_next_flow() -> None:
    first, second = (object.__new__(flow.Flow) for _ in range(2))
    first.data_wait_seconds, second.data_wait_seconds = 1.5, 0.0
    second.continue_from(first)
    assert second.data_wait_seconds == 1.5
