from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.random import keep_mask
from crossbow.ops import Dropout, DropoutGradient, InnerProduct
from crossbow.testing import check_gradients, run_operator
from crossbow.types import ConfigurationError, Phase
from tests.support import blobs, context, training

X = np.arange(1.0, 241.0).reshape(2, 3, 5, 8)


def test_what_it_is() -> None:
    assert Dropout.train_only
    assert Dropout().ratio == 0.5
    assert Dropout().output_shape((2, 3)) == (2, 3)
    assert Dropout().gradient() == DropoutGradient()


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_kept_elements_are_scaled_and_the_gradient_has_the_same_mask(ratio: float) -> None:
    run = run_operator(Dropout(ratio=ratio), [X], output_gradient=np.ones_like(X), dtype=np.float64, seed=3, task=5)
    mask = keep_mask(X.size, ratio, 3, 0, 5).reshape(X.shape)  # in NCHW order
    np.testing.assert_allclose(run.outputs[0], mask * X / (1 - ratio), rtol=1e-15)
    np.testing.assert_allclose(run.input_gradients[0], mask / (1 - ratio), rtol=1e-15)


def test_mask_depends_on_seed_and_task_alone() -> None:
    def output(**values: Any) -> Any:
        return run_operator(Dropout(), [X], **values).outputs[0].tolist()

    assert output(seed=1, task=2) == output(seed=1, task=2)
    assert output(seed=1, task=2) != output(seed=1, task=3)
    assert output(seed=1, task=2) != output(seed=2, task=2)


def test_check_phase_is_the_identity() -> None:
    np.testing.assert_array_equal(run_operator(Dropout(), [X], phase=Phase.CHECK).outputs[0], X)


def test_ratio_zero_is_the_identity() -> None:
    run = run_operator(Dropout(ratio=0), [X], output_gradient=X)
    np.testing.assert_array_equal(run.outputs[0], X)
    np.testing.assert_array_equal(run.input_gradients[0], X)


def test_the_gradient_of_ratio_zero_costs_nothing() -> None:
    layers = InnerProduct(number_of_outputs=4), Dropout(ratio=0), InnerProduct(number_of_outputs=3)
    with context(training(*layers), data=blobs(), kernels="reference") as made:
        _, gradient = [step for step in made.engine.parts.program.steps if step.operator.startswith("Dropout")]
    assert gradient.elided


def test_in_place() -> None:
    apart, together = (run_operator(Dropout(), [X], output_gradient=X + 1, in_place=p) for p in (False, True))
    np.testing.assert_array_equal(apart.outputs[0], together.outputs[0])
    np.testing.assert_array_equal(apart.input_gradients[0], together.input_gradients[0])


def test_gradients() -> None:
    check_gradients(Dropout(ratio=0.4), [(4, 9)])


@pytest.mark.parametrize("ratio", [-0.1, 1, 1.5, float("nan"), "half"])
def test_bad_configurations(ratio: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ratio must be a finite number ≥ 0 and < 1\. Received: ratio="):
        Dropout(ratio=ratio)
