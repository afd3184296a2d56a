"""A rank that fails ends all."""

from __future__ import annotations

import sys

import pytest

from crossbow.cluster.failure import FAILED, end_all, end_all_on_exception
from tests.cluster.fake_network import FakeNetwork


def test_an_exception_ends_all_after_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = FakeNetwork(2)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    end_all_on_exception(network.transports()[1])
    assert not network.aborted
    error = ValueError("on purpose")
    sys.excepthook(ValueError, error, None)
    assert "ValueError: on purpose" in capsys.readouterr().err
    assert network.aborted == [(1, FAILED)]


def test_all_end_with_the_status() -> None:
    network = FakeNetwork(2)
    end_all(network.transports()[0], 2)
    assert network.aborted == [(0, 2)]
