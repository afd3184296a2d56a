from __future__ import annotations

import numpy as np
import pytest

from crossbow.ops import Broadcast
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError, Shape


def test_a_value_for_every_channel() -> None:
    x = np.array([[[[2.0]], [[3.0]]]])
    run = run_operator(Broadcast(shape=(2, 1, 2)), [x], output_gradient=np.array([[[[1.0, 10.0]], [[100.0, 1000.0]]]]))
    assert run.outputs[0].tolist() == [[[[2, 2]], [[3, 3]]]]
    assert run.input_gradients[0].tolist() == [[[[11]], [[1100]]]]


@pytest.mark.parametrize("shape", [(0,), (2, -1), (1.5,), 3, "no"])
def test_sizes_are_positive_integers(shape: object) -> None:
    with pytest.raises(ConfigurationError, match="Broadcast: shape must be a tuple of integers ≥ 1"):
        Broadcast(shape=shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("x", [(2, 3), (2, 3, 4), (2,), (2, 3, 4, 1), (2, 2, 1)])
def test_inputs_that_do_not_fit_are_refused(x: Shape) -> None:
    with pytest.raises(ValueError, match=r"repeated to \(N, 3, 5\)\. Received: \(2"):
        Broadcast(shape=(3, 5)).output_shape(x)


def test_the_output_has_the_batch_and_the_shape() -> None:
    assert Broadcast(shape=(3, 5)).output_shape((2, 3, 1)) == (2, 3, 5)
    assert Broadcast(shape=[3, 5]) == Broadcast(shape=(3, 5))  # type: ignore[arg-type]
