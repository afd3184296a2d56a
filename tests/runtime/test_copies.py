"""Which of the ranks' copies of z make the new one."""

from __future__ import annotations

from crossbow.runtime.copies import WHOLE, Copy, is_complete, newest

ITSELF, NEW, OLD, WEIGHTS = (Copy(0, 9, 1.0, 6, precedence) for precedence in (WHOLE, 6, 4, 0))


def test_z_itself_precedes_its_copies_and_new_ones_precede_old_ones() -> None:
    assert newest({0: NEW, 1: ITSELF, 2: OLD}) == {1: ITSELF}
    assert newest({0: OLD, 2: NEW}) == {2: NEW}
    assert newest({0: WEIGHTS, 2: WEIGHTS}) == {0: WEIGHTS, 2: WEIGHTS}


def test_all_of_z_is_there_if_some_rank_has_it_of_every_range() -> None:
    assert is_complete([[ITSELF, NEW], [OLD, ITSELF]])
    assert not is_complete([[ITSELF, NEW], [OLD, NEW]])
    assert not is_complete([[ITSELF, NEW]])
