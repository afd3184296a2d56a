"""The tick of a GPU's learners, in whatever order streams run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
)
from crossbow.synch import ModelAveraging, PolyakRuppert
from tests.runtime.cuda.test_training import train


@pytest.mark.parametrize(
    "rule",
    [
        SMA(tau=2),
        SSGD(),
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (SMA(), ModelAveraging(), PolyakRuppert(alpha=0.2))),
    ],
    ids=str,
)
def test_graphs_and_the_order_of_streams_change_no_bit(rule: Any) -> None:
    runs = [
        train("cuda:0", rule=rule, seed=seed, system={"graphs": graphs}) for seed in (0, 1) for graphs in (True, False)
    ]
    for other in runs[1:]:
        for name, value in runs[0].items():
            np.testing.assert_array_equal(other[name], value)
