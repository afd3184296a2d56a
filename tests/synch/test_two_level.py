"""Two rules at once: which ones may be combined."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from crossbow import SMA, SSGD, ConfigurationError
from crossbow.synch import EASGD, DiLoCo, ModelAveraging, TwoLevel, two_level


def test_examples() -> None:
    assert doctest.testmod(two_level).failed == 0


def test_defaults() -> None:
    assert TwoLevel() == TwoLevel(within=SMA(), between=ModelAveraging(tau=64))
    assert TwoLevel(SMA(tau=3), DiLoCo(tau=5)).tau == 15


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"within": EASGD()}, r"TwoLevel: within must be a rule with a barrier, as SMA\(\). Received: within=EASGD"),
        ({"within": "sma"}, "within must be a rule with a barrier"),
        ({"between": EASGD()}, r"between must be a rule with a barrier, as SMA\(\). Received: between=EASGD"),
        ({"between": SSGD()}, r"between must be a rule whose learners send weights, as ModelAveraging\(tau=64\). Rec"),
    ],
)
def test_other_rules_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        TwoLevel(**values)
