"""Who may use an engine: one thread at a time, and nobody before a failure is over."""

from __future__ import annotations

import os
from typing import Any

import pytest

from crossbow.cluster.members import ViewChangedError
from crossbow.runtime.usage import Usage
from crossbow.types import CrossbowError


class Recovering:
    """A recovery that succeeds or not, and the loader's `stop`."""

    def __init__(self, *succeeds: bool) -> None:
        self.succeeds, self.stopped = list(succeeds), 0
        self.lost: list[bool] = []
        self.trained: list[bool] = []

    def recover(self, *, trained: bool, lost: bool) -> bool:
        self.trained.append(trained)
        self.lost.append(lost)
        return self.succeeds.pop(0)

    def check_learners(self) -> None: ...

    def stop(self) -> None:
        self.stopped += 1


def usage(recovery: Any) -> Usage:
    return Usage(recovery)


def test_one_at_a_time() -> None:
    parts: Any = Recovering()
    guard = usage(parts)
    with guard.busy("training", parts), pytest.raises(CrossbowError, match="not possible while training"):
        guard.check_usable()
    guard.check_usable()
    assert parts.stopped == 1


def test_a_failure_is_recovered_from_before_anything_else() -> None:
    parts: Any = Recovering(False, False, True)
    guard = usage(parts)

    def fail() -> None:
        with guard.busy("testing", parts):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert parts.stopped == 1
    with pytest.raises(CrossbowError, match="while a learner is still in a task"):
        guard.check_usable()
    guard.check_usable()
    assert parts.succeeds == []
    guard.check_usable()  # once is enough


@pytest.mark.parametrize(
    ("doing", "error", "lost"),
    [("training", ViewChangedError, True), ("testing", ViewChangedError, False), ("training", KeyError, False)],
)
def test_only_training_loses_what_other_ranks_have_not_sent(doing: str, error: type[Exception], lost: bool) -> None:
    parts: Any = Recovering(False, True, True)
    guard = usage(parts)

    def fail(raised: type[Exception]) -> None:
        with guard.busy(doing, parts):
            raise raised("on purpose")

    with pytest.raises(error):
        fail(error)
    guard.check_usable()  # which tries again
    with pytest.raises(KeyError):
        fail(KeyError)
    assert parts.lost == [lost, lost, False]
    assert parts.trained == [doing == "training"] * 3


def test_another_process_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = Recovering()
    guard = usage(parts)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    assert guard.is_forked
    with pytest.raises(CrossbowError, match=f"the context belongs to process {own}; a forked process"):
        guard.check_usable()
