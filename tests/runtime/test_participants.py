"""Updates of the vectors that learners exchange: of all of z, of a range, and of vectors that begin within z."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.runtime.participants import Participants
from crossbow.solver import Pace, Update
from crossbow.synch import EASGD
from tests.support import context, perceptron

DOUBLE = Update((("base", {"base": 2.0}),))


@pytest.mark.parametrize(
    ("place", "start", "changed"),
    [
        (None, 0, slice(None)),
        (slice(16, 48), 0, slice(16, 48)),
        (slice(16, 48), 16, slice(0, 32)),
        (slice(32, 32), 0, slice(0, 0)),
    ],
)
def test_an_update_changes_its_place(place: slice | None, start: int, changed: slice) -> None:
    """start: where in z the vector begins."""
    with context(perceptron(), rule=EASGD(), learners=2) as running:
        engine: Any = running.engine
        participants: Participants = engine.coordination.exchange._participants
        vector = np.ones_like(participants.base.buffers[0])
        expected = vector.copy()
        expected[changed] = 2
        made = participants.bind("double", lambda pace, _: DOUBLE, None, {"base": vector}, place=place, start=start)
        made.run(Pace(0.0, 0.0), None)
        np.testing.assert_array_equal(vector, expected)
