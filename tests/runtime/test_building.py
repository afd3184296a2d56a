"""Options that cannot be combined are refused, and what is refused leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from crossbow import SMA, TrainingUnit
from crossbow.types import ConfigurationError
from tests.runtime.test_engine import FIXED, assert_equal, logistic, simulate


def test_wpc_gives_tau() -> None:
    with logistic(rule=SMA(alpha=0.3), wpc=6, learners=2) as running:
        expected = simulate(running, 2, FIXED)
        running.train(4 * 6, TrainingUnit.TASKS)
        for _ in range(4):
            expected.sma_tick(0.3, 3, 0.0)
        assert_equal(running, expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wpc": 5}, "multiple of the number of learners, 2"),
        ({"wpc": 8, "rule": SMA(tau=3)}, "means tau=4"),
        ({"rule": SMA(alpha=0.9)}, r"alpha must be < 2/\(k \+ 1\) = 0.6667 with k = 2 learners"),
        ({"slack": 1}, "slack must be 0 under a rule with a barrier"),
        ({"batch_size": 31}, "batch_size must be at most the number of training examples, 30. Received: batch_size=31"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        logistic(**options)
