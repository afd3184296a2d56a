"""Several engines, one of which trains: created, dropped, and closed."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow.runtime.engines import CLOSED, Engines
from crossbow.types import ConfigurationError, CrossbowError


class FakeEngine:
    """An engine that takes memory, and notes what is done with it."""

    def __init__(self, kind: int) -> None:
        self.kind, self.closed = kind, 0
        self.memory = {"weights": 100 * kind, "other": 1}
        self.continued: list[FakeEngine] = []
        self.error: Exception | None = None

    def continue_from(self, other: FakeEngine) -> None:
        if self.error is not None:
            raise self.error
        self.continued.append(other)

    def close(self) -> None:
        self.closed += 1


class Maker:
    """Creates engines, and notes the memory that others use."""

    def __init__(self) -> None:
        self.beside: list[int] = []
        self.made: dict[int, FakeEngine] = {}
        self.during: Any = lambda: None

    def __call__(self, kind: int, beside: int) -> Any:
        self.beside.append(beside)
        self.during()
        self.made[kind] = FakeEngine(kind)
        return self.made[kind]


def engines() -> tuple[Engines, FakeEngine, Maker]:
    first, make = FakeEngine(1), Maker()
    return Engines(1, first, make), first, make  # type: ignore[arg-type]


def test_a_new_engine_is_told_the_memory_of_all_others() -> None:
    several, first, make = engines()
    several.add(2)
    several.add(5)
    assert make.beside == [101, 302]
    assert several.kinds == {1, 2, 5}
    assert several.kind == 1
    assert several.now is first  # type: ignore[comparison-overlap]


def test_a_dropped_engine_is_closed_and_its_memory_free() -> None:
    several, first, make = engines()
    several.add(2)
    several.drop(2)
    assert (make.made[2].closed, first.closed, several.kinds) == (1, 0, {1})
    several.add(3)
    assert make.beside[-1] == 101


def test_an_engine_continues_from_the_current_one() -> None:
    several, first, make = engines()
    several.add(2)
    several.add(3)
    several.go_on_with(3)
    several.go_on_with(2)
    assert (several.kind, several.now) == (2, make.made[2])
    assert make.made[3].continued == [first]
    assert make.made[2].continued == [make.made[3]]


def test_a_change_that_fails_changes_nothing() -> None:
    several, first, make = engines()
    several.add(2)
    make.made[2].error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        several.go_on_with(2)
    assert several.kind == 1

    def refuse() -> None:
        raise ConfigurationError("too large")

    make.during = refuse
    with pytest.raises(ConfigurationError):
        several.add(3)
    assert several.kinds == {1, 2}
    assert first.closed == 0


def test_all_engines_are_closed() -> None:
    several, first, make = engines()
    several.add(2)
    several.close()
    assert (first.closed, make.made[2].closed) == (1, 1)
    with pytest.raises(CrossbowError, match=CLOSED):
        several.go_on_with(2)


def test_an_engine_that_is_made_while_others_are_closed_is_closed_too() -> None:
    several, first, make = engines()
    make.during = several.close
    with pytest.raises(CrossbowError, match=CLOSED):
        several.add(2)
    assert make.made[2].closed == 1
    assert first.closed >= 1
