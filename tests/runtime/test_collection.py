"""The garbage collector is paused while a run is assembled, and enabled afterwards."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from crossbow import SMA
from crossbow.runtime import building, collection
from crossbow.runtime.collection import PausedCollection
from crossbow.synch import EASGD, Rule
from tests.support import context, perceptron


def test_it_goes_on_when_the_last_one_is_done() -> None:
    with PausedCollection():
        with pytest.raises(ZeroDivisionError), PausedCollection():
            _ = 1 / 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with PausedCollection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_pause_it_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one could take another's pause for the state before."""
    seen: list[tuple[str, bool]] = []

    class Collector:
        def __getattr__(self, name: str) -> Any:
            return lambda: seen.append((name, collection._lock.locked())) or True

    monkeypatch.setattr(collection, "gc", Collector())
    with PausedCollection(), PausedCollection():
        pass
    assert seen == [("isenabled", True), ("disable", True), ("disable", True), ("enable", True)]


@pytest.mark.parametrize("part", ["_assemble", "_coordination"])
@pytest.mark.parametrize("rule", [SMA(), EASGD()])
def test_it_is_paused_while_a_run_is_built(part: str, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled, built = [], getattr(building, part)

    def observed(*arguments: Any) -> Any:
        enabled.append(gc.isenabled())
        return built(*arguments)

    monkeypatch.setattr(building, part, observed)
    with context(perceptron(), rule=rule):
        assert gc.isenabled()
    assert enabled == [False]
