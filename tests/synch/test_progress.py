"""The bookkeeping of rules without a barrier, by hand. What engine and simulator make of it: test_simulator.py."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import SolverConf
from crossbow.synch import SMA, SSP, AsynchronousSGD, Default, Gossip, Grouping, PartiallySynchronous, Rule, WeedOut
from crossbow.synch.progress import ExchangeState, Masses, check_skip, left_out
from crossbow.types import ConfigurationError


def test_a_group_is_as_stale_as_its_stalest_learner() -> None:
    """Learner 0 waits from before the merge of learner 1, and then both are of one group."""
    progress = ExchangeState(Grouping(((0, 2), (1,))), 3)
    assert progress.arrive(0) is None
    assert progress.arrive(1) is not None
    assert progress.let_go() == [1]
    assert progress.follow(Grouping(((0, 1), (2,)))) == [0]
    assert progress.arrive(0) is None
    merge = progress.arrive(1)
    assert merge is not None
    assert (merge.contributors, merge.arrival.staleness) == ((0, 1), 2)


@given(st.data())
def test_starters_are_those_that_may_start(data: st.DataObject) -> None:
    rules = (
        SSP(),
        SSP(bound=2),
        PartiallySynchronous(max_advance=2),
        Grouping(2),
        Grouping(((0, 2), (1, 3, 4))),
        Default(),
    )
    rule = data.draw(st.sampled_from(rules))
    clocks = data.draw(st.lists(st.integers(0, 4), min_size=5, max_size=5))
    waiting = data.draw(st.sets(st.integers(0, 4)))
    learners = sorted(data.draw(st.sets(st.sampled_from(sorted(waiting) or [0])))) if waiting else []
    assert rule.starters(clocks, waiting, learners) == [i for i in learners if rule.may_start(clocks, waiting, i)]


@given(st.data())
def test_who_waits_starts_as_soon_as_it_may(data: st.DataObject) -> None:
    """Whoever arrives, leaves or joins, and after a restart or from a checkpoint."""
    rule = data.draw(st.sampled_from([SSP(), SSP(bound=1), SSP(bound=3), PartiallySynchronous(2), Default()]))
    progress = ExchangeState(rule, 3)
    for event in data.draw(st.lists(st.sampled_from(["arrive"] * 9 + ["leave", "join", "restart", "restore"]))):
        running = [learner for learner in range(progress.learners) if learner not in progress.waiting]
        if event == "arrive" and running:
            progress.arrive(data.draw(st.sampled_from(running)))
        elif event == "leave" and progress.learners > 1:
            progress.leave(data.draw(st.integers(0, progress.learners - 1)))
        elif event == "join":
            progress.join(data.draw(st.integers(0, progress.learners)))
        elif event == "restart":
            progress.restart()
        elif event == "restore":
            state, progress = progress.state(), ExchangeState(rule, progress.learners)
            progress.restore(state)
        if data.draw(st.booleans()):  # several may arrive before
            clocks, waiting = list(progress.clocks), set(progress.waiting)
            assert progress.let_go() == [i for i in sorted(waiting) if rule.may_start(clocks, waiting, i)]


def test_what_is_dropped_is_no_merge() -> None:
    """Learner 1 is late: the last two to finish were learner 0."""
    progress, dropped = ExchangeState(WeedOut(), 2), []
    for learner in (0, 0, 1, 0):
        merge = progress.arrive(learner)
        assert merge is not None
        dropped.append(merge.dropped)
        progress.let_go()
    assert dropped == [False, False, True, False]
    assert progress.merges == 3
    assert (progress.arrivals, progress.dropped, progress.staleness) == (4, 1, 1 + 1 + 3 + 1)
    assert progress.state()["finishers"] == [1, 0]
    assert ExchangeState(WeedOut(), 2).state()["arrivals"] == [0, 0, 0]


def test_variables_are_left_out_whether_or_not_gossip_would_send() -> None:
    """The first draws of the same learner, seed by seed: were they of one stream, all would be equal."""
    seeds, learner = range(64), 1
    sends = [Gossip(probability=0.5).peer(learner, 2, 0, seed) is not None for seed in seeds]
    omits = [left_out(0.5, 1, learner, 0, seed)[0] for seed in seeds]
    assert 16 < sum(sent == out for sent, out in zip(sends, omits, strict=True)) < 48


def test_what_is_left_out_is_drawn_anew_for_every_merge() -> None:
    def drawn(probability: float = 0.5, *, learner: int = 1, draw: int = 0, seed: int = 3) -> list[bool]:
        return left_out(probability, 400, learner, draw, seed)

    assert drawn() == drawn()
    others = [drawn(learner=2), drawn(draw=1), drawn(draw=2), drawn(seed=4)]
    assert all(140 < sum(one != other for one, other in zip(drawn(), each, strict=True)) < 260 for each in others)
    assert [30 < sum(drawn(0.125)) < 70, 320 < sum(drawn(0.875)) < 380, sum(drawn(0.0))] == [True, True, 0]


FREE_GRADIENTS = AsynchronousSGD(sends="gradient")
CLIPPING, ADAM = SolverConf(clip_gradient_norm=1.0), SolverConf(method="adam")


@pytest.mark.parametrize(
    ("probability", "rule", "solver", "text"),
    [
        (0.5, SMA(), SolverConf(), "whose learners do not add to z"),
        (0.5, SSP(), SolverConf(), None),
        (0.5, FREE_GRADIENTS, SolverConf(), None),
        (0.5, FREE_GRADIENTS, ADAM, "method='adam', which steps all variables of z alike"),
        (0.5, FREE_GRADIENTS, CLIPPING, "clipped by their norm as a whole"),
        (0.5, AsynchronousSGD(), CLIPPING, None),
        (0.5, AsynchronousSGD(), ADAM, None),
        (0.0, FREE_GRADIENTS, CLIPPING, None),
        (0.0, SMA(), SolverConf(), None),
    ],
)
def test_where_nothing_can_be_left_out(probability: float, rule: Rule, solver: SolverConf, text: str | None) -> None:
    with contextlib.nullcontext() if text is None else pytest.raises(ConfigurationError, match=f"skip.*{text}"):
        check_skip(probability, rule, solver)


def test_learners_leave_and_join_the_count() -> None:
    """Learner 1 of three leaves, so that learner 2 becomes 1; another one joins as number 0, with the slowest clock."""
    progress = ExchangeState(SSP(bound=1), 3)
    for learner in (2, 2, 0):
        progress.arrive(learner)
        progress.let_go()
    assert (progress.clocks, progress.waiting) == ([1, 0, 2], {2})
    progress.leave(1)
    assert (progress.clocks, progress.waiting) == ([1, 2], {1})
    assert progress.let_go() == [1]
    progress.join(0)
    assert progress.clocks == [1, 1, 2]
    merge = progress.arrive(0)
    assert merge is not None
    assert merge.arrival.staleness == 1  # it has the z of three merges
    assert merge.arrival.learners == 3


def test_no_learner_waits_for_one_that_rests() -> None:
    """The barrier begins as if learner 2 had a task, and ends without it; its lead is forgotten."""
    state = ExchangeState(PartiallySynchronous(max_advance=2), 3)
    for learner in (2, 0):
        state.arrive(learner)
        assert state.let_go() == [learner]
    state.rest(2)
    assert state.let_go() == []
    assert state.clocks == [1, 0, 1]  # there was no barrier
    state.arrive(0)
    assert state.let_go() == []  # it is two ahead of learner 1
    state.arrive(1)
    assert state.let_go() == [0, 1]
    assert state.clocks == [0, 0, 0]
    state.arrive(2)
    assert state.let_go() == [2]
    assert state.resting == set()
    for learner in (2, 0):
        state.arrive(learner)
        assert state.let_go() == []
    state.rest(0)  # it waits, so this comes too late to matter
    assert state.resting == set()
    state.rest(1)
    assert state.let_go() == [0, 2]


def test_resting_learners_are_renumbered_and_forgotten() -> None:
    state = ExchangeState(PartiallySynchronous(), 3)
    state.rest(0)
    state.rest(2)
    state.leave(1)
    assert state.resting == {0, 1}
    state.join(0)
    assert state.resting == {1, 2}
    state.restart()
    assert state.resting == set()


def test_finishers_are_renumbered() -> None:
    """A learner is weeded out if it is not among the last two to finish, by its new number."""
    progress = ExchangeState(WeedOut(window=2), 3)
    for learner in (0, 2, 1, 2):
        progress.arrive(learner)
        progress.let_go()
    progress.leave(1)
    assert progress.state()["finishers"] == [1, 1]
    progress.join(0)
    assert progress.state()["finishers"] == [2, 2]


def test_masses_of_learners_that_leave_and_join() -> None:
    masses = Masses(4)
    masses.bring(3, masses.take(0, 0.5))
    assert masses.total == 1
    masses.leave(1)
    assert (masses.own, masses.coming) == ([0.125, 0.25, 0.25], [0, 0, 0.125])
    masses.scale(1 / masses.total)
    assert masses.total == pytest.approx(1)
    masses.scale(0.75)
    masses.join(1, 0.25)
    assert masses.total == pytest.approx(1)
    assert (masses.own[1], masses.coming[1]) == (0.25, 0)
