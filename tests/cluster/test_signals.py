"""Signals to a launcher. What they do while Ray starts: ray/test_head.py."""

from __future__ import annotations

import os
import signal
import time

import pytest

from crossbow.cluster.signals import deferred, terminable
from crossbow.types import ConfigurationError
from tests.cluster.fake_network import at_once


def test_sigterm_ends_what_was_started() -> None:
    def receive() -> None:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(SystemExit) as ended:
        receive()
    assert ended.value.code == 143


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def receive() -> None:
        with deferred():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)  # for the handler
            assert ended == [143]

    with pytest.raises(SystemExit):
        receive()


def test_a_signal_is_not_lost_if_the_work_fails() -> None:
    def receive() -> None:
        with deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)  # for the handler
            raise ConfigurationError("it did not start")

    with pytest.raises(SystemExit) as ended:
        receive()
    assert ended.value.code == 143


def test_without_a_signal_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable(), deferred():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_replaces_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> bool:
        with deferred():
            return signal.getsignal(signal.SIGTERM) is before

    assert at_once([work]) == [True]
