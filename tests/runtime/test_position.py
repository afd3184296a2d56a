"""How ticks, tasks and merges are counted."""

from __future__ import annotations

from crossbow.runtime.position import Place, Position


def test_ticks_have_a_number_of_tasks() -> None:
    position = Position(4)
    for _ in range(3):
        position.advance()
    assert (position.tick, position.tasks, position.ticks_of_phase) == (3, 12, 3)
    position.begin_phase()
    position.advance()
    assert (position.tick, position.tasks, position.ticks_of_phase) == (4, 16, 1)
    position.go_to(2)
    assert (position.tick, position.tasks) == (2, 8)


def test_a_position_is_restored() -> None:
    position, other = Position(4), Position(4)
    position.advance()
    position.begin_phase()
    position.continue_from(Place(3, 2, 20), merges=5, own_merges=3)
    other.restore(position.state())
    for each in (position, other):
        assert (each.tick, each.tasks, each.ticks_of_phase) == (3, 20, 2)
        assert (each.tasks_before, each.merges_before, each.tick_of_z) == (8, 2, 3)


def test_a_tick_of_z_ends_with_one_of_the_hosts() -> None:
    position = Position(4)
    position.advance()
    position.end_tick_of_z()
    position.advance()
    assert (position.tick_of_z, position.tick) == (1, 2)


def test_an_engine_counts_on_from_the_one_before() -> None:
    """Whose ticks had other numbers of tasks."""
    position = Position(3)
    position.advance()
    position.continue_from(Place(5, 4, 10), merges=7, own_merges=5)
    assert (position.tick, position.ticks_of_phase, position.tasks) == (5, 4, 10)
    assert (position.tasks_before, position.merges_before) == (-5, 2)
    position.advance()
    assert position.tasks == 13
    position.continue_from(Place(9, 9, 40), merges=9, own_merges=9)
    assert (position.tasks, position.merges_before) == (40, 0)
