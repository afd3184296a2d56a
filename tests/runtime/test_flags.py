"""Flags: their beginning, and a restart."""

from __future__ import annotations

from crossbow.runtime.flags import Flags


def test_flags_start_with_nothing_done() -> None:
    flags = Flags(learners=3, parties=2)
    assert flags.ready.tolist() == flags.contributed.tolist() == [-1, -1, -1]
    assert flags.measured.tolist() == [-1, -1, -1]
    assert flags.merged.tolist() == [-1, -1]
    assert flags.abort.tolist() == [0]


def test_resetting_flags() -> None:
    flags = Flags(learners=2, parties=1)
    flags.abort[0] = flags.ready[1] = 1
    flags.reset(tick=7)
    every = [*flags.ready, *flags.contributed, *flags.measured, *flags.merged, *flags.abort]
    assert every == [6, 6, 6, 6, 6, 6, 6, 0]


def test_a_tick_is_whole_when_every_party_has_merged() -> None:
    flags = Flags(learners=2, parties=2)
    assert flags.whole_ticks == 0
    flags.merged[:] = (3, 2)
    assert flags.whole_ticks == 3
    assert not flags.aborted
    flags.raise_abort()
    assert flags.aborted
