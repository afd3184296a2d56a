"""What losses share: the weight, and how labels that are numbers fit an input."""

from __future__ import annotations

import pytest

from crossbow import ConfigurationError
from crossbow.ops import EuclideanLoss, SigmoidLoss, SoftMaxLoss
from crossbow.ops.loss import LabelLoss, ValueLoss
from crossbow.types import LabelRange, Shape

LOSSES: tuple[type[LabelLoss], ...] = (EuclideanLoss, SigmoidLoss, SoftMaxLoss)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_weight_of_a_loss(loss: type[LabelLoss]) -> None:
    assert (loss().loss_weight, loss().is_auxiliary) == (1.0, False)
    made = loss(weight=0.3, auxiliary=True)
    assert (made.loss_weight, made.is_auxiliary) == (0.3, True)
    for weight in (0, -1, float("inf"), "1"):
        with pytest.raises(ConfigurationError, match=rf"{loss.__name__}: weight must be a finite number > 0"):
            loss(weight=weight)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=rf"{loss.__name__}: auxiliary must be True or False"):
        loss(auxiliary=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [EuclideanLoss, SigmoidLoss])
def test_losses_of_values_take_any_shape_but_a_number(loss: type[ValueLoss]) -> None:
    assert loss().output_shape((3, 4, 5)) == loss().output_shape((3,)) == (1,)
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, …\)\. Received: \(\)"):
        loss().output_shape(())


@pytest.mark.parametrize(
    ("shape", "labels", "expected"),
    [
        ((8, 2), (8, 2), True),
        ((8, 1, 1), (8,), True),
        ((8, 1, 1), (8, 1), False),
        ((8, 2), (8,), False),
        ((8, 2), (8, 3), False),
    ],
)
def test_labels_that_fit(shape: Shape, labels: Shape, expected: bool) -> None:
    assert ValueLoss.are_values(LabelRange(labels, False, 0, 1), shape) == expected
    assert not ValueLoss.are_values(LabelRange(labels, True, 0, 1), shape)
