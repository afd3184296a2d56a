"""A stretch counts images and seconds."""

from __future__ import annotations

from crossbow.runtime.stretch import Stretch


def test_pauses_add_up() -> None:
    stretch = Stretch(first=8, learning_rate=0.1, arrivals=None)
    stretch.count(16)
    stretch.count(8)
    stretch.extend(1.5, 0.1, one_engine=True)
    stretch.extend(0.5, 0.05, one_engine=False)
    stretch.extend(1.0, 0.02, one_engine=True)
    assert (stretch.images, stretch.seconds, stretch.one_engine) == (24, 3.0, False)
    assert stretch.learning_rate == 0.02
