"""What requests of losses and metrics declare."""

from __future__ import annotations

import numpy as np

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests import (
    EuclideanLossForward,
    FactorisationBackward,
    FactorisationForward,
    FactorisationPrediction,
    LabelAccuracy,
    SoftmaxLossBackward,
    SoftmaxLossForward,
    Targets,
)
from crossbow.types import Tensor

P, LABELS = Tensor((2, 3), np.dtype(np.float32)), Tensor((2,), np.dtype(np.int32))
TABLE = Variable((5, 3), np.dtype(np.float32))


def test_with_logits_the_probabilities_are_not_read() -> None:
    alone, better = (SoftmaxLossForward(P, LABELS, None, "batch", logits) for logits in (None, P))
    assert (alone.reads, alone.label) == (("input0", "labels", "state"), "softmax_loss_forward")
    assert (better.reads, better.label) == (("logits", "labels", "state"), "softmax_loss_forward of logits")
    assert SoftmaxLossBackward(P, LABELS, P, None, "batch").reads == ("input0", "labels", "state")


def test_everything_depends_on_the_number_of_examples() -> None:
    """So nothing may be in place: padding of the batch is read as well."""
    for request in (
        EuclideanLossForward(P, P),
        LabelAccuracy(P, LABELS, 1, None),
        FactorisationForward(P, LABELS, TABLE, TABLE, 0.0),
        FactorisationBackward(P, LABELS, TABLE, TABLE, 0.0),
        FactorisationPrediction(P, TABLE, TABLE, LABELS),
    ):
        assert "state" in request.reads
        assert request.in_place is request.alias is None


def test_a_factorisation_writes_whole_tables() -> None:
    request = FactorisationBackward(P, LABELS, TABLE, TABLE, 0.0)
    assert request.reads == ("input0", "labels", "state", "users", "items")
    assert request.writes == ("users_gradient", "items_gradient")


def test_targets_are_a_part_of_the_label() -> None:
    """So that listings tell which kernel computes them."""
    request = SoftmaxLossForward(P, LABELS, None, "batch", P, Targets(0.1))
    assert request.label == "softmax_loss_forward of logits and targets"
    assert request.reads == ("logits", "labels", "state")
    assert Targets(0.1).weights(3).tolist() == [1, 1, 1]
    assert Targets(0.0, (0.5, 2)).weights(2).tolist() == [0.5, 2]
