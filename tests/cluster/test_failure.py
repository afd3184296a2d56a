"""A rank that fails ends all."""

from __future__ import annotations

import sys

import pytest

from crossbow.cluster import failure
from crossbow.cluster.failure import FAILED, end_all, end_all_on_exception, end_with_others
from crossbow.cluster.members import RankFailedError
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.support import until


def test_an_exception_ends_all_after_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = FakeNetwork(2)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    end_all_on_exception(network.ranks()[0])
    assert not network.aborted
    error = ValueError("on purpose")
    sys.excepthook(ValueError, error, None)
    assert "ValueError: on purpose" in capsys.readouterr().err
    assert network.aborted == [(0, FAILED)]


def test_the_failure_of_another_rank_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = FakeNetwork(2)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(failure, "SECONDS_BEFORE_ERRORS", 0.0)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # is as before after the test
    end_all_on_exception(network.ranks()[1])
    print("a warning", file=sys.stderr)
    sys.excepthook(RankFailedError, RankFailedError("rank 0 (host0) failed"), None)
    assert capsys.readouterr().err == "a warning\n[rank 1 host1] error: rank 0 (host0) failed\n"
    assert network.aborted == [(1, FAILED)]


def test_programs_end_together() -> None:
    first, second = FakeNetwork(2).ranks()
    order = []

    def end_late() -> None:
        until(second.all_have_ended)
        order.append("late")
        end_with_others(second)

    def end_first() -> None:
        end_with_others(first)
        order.append("first")

    at_once([end_first, end_late])
    assert order == ["late", "first"]


def test_all_end_with_the_status() -> None:
    network = FakeNetwork(2)
    end_all(network.transports()[0], 2)
    assert network.aborted == [(0, 2)]
