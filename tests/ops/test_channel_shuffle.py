from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.ops import ChannelShuffle
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError


def test_the_first_of_every_group_then_the_second() -> None:
    x = np.arange(6.0)[None, :, None, None] * np.ones((2, 6, 1, 2))
    (y,) = run_operator(ChannelShuffle(groups=3), [x]).outputs
    assert y[0, :, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"channels are a multiple of groups=4\. Received: \(2, 6, 3, 3\)"):
        ChannelShuffle(groups=4).output_shape((2, 6, 3, 3))


@pytest.mark.parametrize("groups", [0, -1, 1.5, None])
def test_bad_groups(groups: Any) -> None:
    with pytest.raises(ConfigurationError, match="groups must be an integer ≥ 1"):
        ChannelShuffle(groups=groups)
