"""Results are delivered in order, and tasks are submitted a few ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import SMA, SSGD, TaskError, TrainingUnit
from crossbow.runtime import flow
from crossbow.runtime.reports import Reports
from crossbow.runtime.sharing import Sharing
from crossbow.runtime.task import Completed, Failed
from crossbow.timeline.recorder import Recorder
from crossbow.types import CrossbowError, NonFiniteLossError
from tests.cluster.fake_network import FakeNetwork
from tests.combinations import one_in
from tests.runtime.fake_parts import FakeCoordination, FakeLoader, new_flow
from tests.runtime.test_reports import done, failed
from tests.support import SECONDS, CheckProbe, Probe, Trap, blobs, context, new_calls, perceptron, raising, within

TASKS = TrainingUnit.TASKS


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


@pytest.mark.slow
@one_in(2)
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


@pytest.mark.slow
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


# With learners that are none


def flow_of(learners: int = 2, *, in_order: bool = True) -> tuple[flow.Flow, FakeCoordination, Reports]:
    reports = Reports(learners=learners)
    coordination = FakeCoordination(reports, learners, in_order=in_order)
    return new_flow(coordination, reports), coordination, reports


def test_results_are_delivered_in_order_and_counted() -> None:
    under, _, reports = flow_of()
    seen: list[int] = []
    with under.handing_on("training", 5, lambda result: seen.append(result.task)):
        under._in_flight = 4
        for task in (6, 8, 5):
            reports.put(done(task))
        under.collect(3)
        assert (seen, under.done, under.in_flight) == ([5, 6], 7, 1)
        reports.put(done(7))
        under.collect_until(9)
        assert (seen, under.done, under.in_flight) == ([5, 6, 7, 8], 9, 0)


def test_the_coordination_knows_when_no_task_follows() -> None:
    """Where results must come first: at the limit of tasks ahead, before a task's result, and at the end."""
    under, coordination, reports = flow_of()
    with under.handing_on("training", 0, flow.ignore_result):
        for _ in range(flow.LEAST_AHEAD * under._learners):
            under.expect()
        assert coordination.awaited == 0
        for task in range(under.in_flight):
            reports.put(done(task))
        under.expect()
        assert coordination.awaited == 1
        under.collect_until(4)
        assert coordination.awaited == 1  # they are there
        reports.put(done(4))
        under.collect_until(5)
        assert coordination.awaited == 2
        under.collect_all()
        assert coordination.awaited == 3


@pytest.mark.parametrize("in_order", [True, False])
def test_tasks_with_known_results_are_skipped(in_order: bool) -> None:
    """In order, a known result waits for those before it."""
    under, coordination, reports = flow_of(in_order=in_order)
    under.restore(5, 1.5, [done(8)._replace(seconds=2.0), done(6)])
    assert (under.done, under.data_wait_seconds) == (5, 1.5)
    assert {result.task for result in under.known_results} == {6, 8}
    seen: list[int] = []
    with under.handing_on("training", 5, lambda result: seen.append(result.task)):
        assert not under.skip(5)
        assert under.skip(6)
        assert seen == ([] if in_order else [5])
        assert under.skip(8)
        assert not under.skip(6)
        under._in_flight = 2
        for task in (5, 7):
            reports.put(done(task))
        under.collect_all()
    assert seen == [5, 6, 7, 8]
    assert under.known_results == []
    assert all(entry[0] == "observed" for entry in coordination.log) or in_order


def test_what_was_done_ahead_of_a_failure_is_known() -> None:
    under, _, reports = flow_of()
    under.restore(2, 0.0, [done(9)])
    with under.handing_on("training", 2, lambda result: None):
        under._in_flight = 6
        error = Failed(5, 0, "conv", ZeroDivisionError())
        for report in (done(2), done(4), failed(3), done(6), failed(7), error, done(8)):
            reports.put(report)
        with pytest.raises(TaskError):
            under.collect()
        assert under.done == 3
        assert sorted(result.task for result in under.salvage()) == [4, 6, 8, 9]


def test_results_without_order_are_numbered_as_they_arrive() -> None:
    """Except those of tests, whose numbers are those of batches. Only training is observed."""
    under, coordination, reports = flow_of(in_order=False)
    seen: list[int] = []
    for doing, expected in (("training", [3, 4]), ("testing", [9, 2])):
        with under.handing_on(doing, 3, lambda result: seen.append(result.task)):  # type: ignore[arg-type]
            under._in_flight = 2
            reports.put(done(9))
            reports.put(done(2))
            under.collect_all()
        assert seen[-2:] == expected
    assert coordination.log == [("observed", 9), ("observed", 2)]
    assert under.done == 5


def test_a_batch_counts_as_pending_until_its_result_is_known() -> None:
    under, _, reports = flow_of(1)
    loader: Any = FakeLoader()
    assert under.next_batch(loader) == (0, 4)
    assert under.next_batch(loader) == (1, 4)
    assert under.in_flight == 2
    reports.put(done(0))
    assert under.next_batch(loader) == (2, 4)  # after one of two results
    assert under.in_flight == 2


def test_the_failure_behind_an_interrupted_loader_is_raised() -> None:
    under, _, reports = flow_of()
    error = ZeroDivisionError("the cause")
    with under.handing_on("training", 0, flow.ignore_result):
        under._in_flight = 1
        reports.put(Failed(0, 1, "conv", error))
        with pytest.raises(
            TaskError, match="task 0 failed in operator 'conv' on learner 1: ZeroDivisionError: the cause"
        ):
            under.next_batch(FakeLoader(aborted=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(("learner", "where"), [(0, "on learner 0"), (1, "on learner 1"), (2, "between the devices")])
def test_a_failure_says_where_it_was(learner: int, where: str) -> None:
    under, _, reports = flow_of()
    reports.put(Failed(3, learner, "average", KeyError("k")))
    with pytest.raises(TaskError, match=rf"^task 3 failed in operator 'average' {where}: KeyError: 'k'$"):
        under.collect()


def test_a_loss_that_is_not_finite_is_raised_as_it_is() -> None:
    under, _, reports = flow_of()
    error = NonFiniteLossError("the loss became nan")
    reports.put(Failed(3, 0, "task", error))
    with pytest.raises(NonFiniteLossError) as caught:
        under.collect()
    assert caught.value is error


def test_closing_ends_what_is_being_done() -> None:
    under, _, _ = flow_of()
    under.refuse()
    with under.handing_on("testing", 0, flow.ignore_result):
        under.wake(0)
        with pytest.raises(CrossbowError, match=r"^the context was closed while testing$"):
            under.collect()


def test_what_is_cleared_is_forgotten() -> None:
    under, _, reports = flow_of()
    with under.handing_on("training", 0, flow.ignore_result):
        under._in_flight = 3
        reports.put(done(2))
        under.collect()
        reports.put(failed(1, KeyError()))
        under.clear()
        under.restart(40)
        assert (under.in_flight, under.done) == (0, 40)
        under.collect_all()
        under._in_flight = 1
        reports.put(done(40))
        under.collect_all()
        assert under.done == 41


def test_the_time_of_waiting_for_data_goes_on_in_the_next_flow() -> None:
    first, second = flow_of()[0], flow_of()[0]
    first.restore(3, 1.5)
    second.continue_from(first)
    assert second.data_wait_seconds == 1.5


class FakeSharing:
    """Notes the beginnings of parts, and whether results are exchanged."""

    def __init__(self) -> None:
        self.begun, self.works = 0, False
        self.exchanges: list[bool] = []

    def join(self, reports: Reports) -> None:
        """Do nothing."""

    def begin(self, reports: Reports, *, works: bool = False) -> None:
        self.begun, self.works = self.begun + 1, works or self.works

    def rest(self) -> None:
        self.works = False

    def check_own(self, check: Callable[[], None] | None) -> None:
        """Do nothing."""

    def exchange(self) -> None:
        self.exchanges.append(True)

    def defer(self) -> None:
        self.exchanges.append(False)


def test_training_and_every_restart_in_it_begin_a_part_of_the_results_of_ranks() -> None:
    reports, sharing = Reports(learners=2), FakeSharing()
    made = flow.Flow(reports, 2, FakeCoordination(reports, 2), Recorder(), sharing)  # type: ignore[arg-type]
    with made.handing_on("training", 0, flow.ignore_result):
        assert (sharing.begun, sharing.works) == (1, True)
        made.restart(4)
        assert (sharing.begun, sharing.works) == (2, True)
    assert not sharing.works
    assert made.done == 4


def test_a_failure_ends_the_wait_for_another_rank_that_waits_for_the_result() -> None:
    _, second = FakeNetwork(2).ranks()
    reports, sharing = Reports(learners=1), Sharing(second)
    made = flow.Flow(reports, 2, FakeCoordination(reports, 2), Recorder(), sharing)  # type: ignore[arg-type]
    failing = threading.Timer(0.05, lambda: reports.put(Failed(3, 1, "loss", NonFiniteLossError("loss is nan"))))

    def train() -> None:
        with made.handing_on("training", 0, flow.ignore_result):
            failing.start()
            second.agree(lambda: True)  # the first rank's

    try:
        with pytest.raises(NonFiniteLossError):
            train()
        assert second._check_own is None
    finally:
        failing.join()
        sharing.close()


def test_with_two_levels_results_of_other_ranks_come_when_all_are_collected() -> None:
    """Of four learners this rank has learners 2 and 3, for which alone it waits before it submits more."""
    reports, sharing, seen = Reports(learners=2), FakeSharing(), list[int]()
    made = flow.Flow(reports, 4, FakeCoordination(reports, 4), Recorder(), sharing, own=2)  # type: ignore[arg-type]
    with made.handing_on("training", 0, lambda result: seen.append(result.task)):
        assert sharing.exchanges == [False]
        for task in range(16):
            if task % 4 < 2:
                made.expect()
            else:
                made._in_flight += 1
        assert made.in_flight == 8
        made._in_flight = flow.LEAST_AHEAD * 2  # the limit of its own
        for task in (2, 3):
            reports.put(done(task))
        made._make_room()
        assert (made.in_flight, seen) == (2, [])
        made._in_flight += 4
        for task in (6, 7, 10, 11, 14, 15, *(each for each in range(16) if each % 4 < 2)):
            reports.put(done(task))
        made.collect_all()
        assert (made.in_flight, seen) == (0, [*range(16)])
        assert sharing.exchanges == [False, True, False]
        made.expect()
        made.clear()
        made.collect_all()
    assert sharing.exchanges == [False, True, False, True, False, True]


def test_merges_are_taken_with_the_results_before_a_task() -> None:
    reports = Reports(learners=1)
    under = new_flow(FakeCoordination(reports, 1), reports)
    under._merges.extend([(4, 1), (5, 2), (7, 0), (8, 3)])
    assert [under.take_merges(before) for before in (4, 6, 6, 8, 9, 100)] == [0, 3, 0, 0, 3, 0]
    under._merges.append((9, 1))
    under.forget_merges()
    assert under.take_merges(100) == 0
