from __future__ import annotations

import numpy as np
import pytest

from crossbow import ConfigurationError, Dataset, ExecutionContext, Sequential, SolverConf, SystemConf
from crossbow.ops import InnerProduct, SigmoidLoss, SigmoidLossGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import GraphError, LabelRange

LOG2 = np.log(2)


def test_what_it_is() -> None:
    assert SigmoidLoss.is_loss
    assert SigmoidLoss.takes_labels
    assert SigmoidLoss().gradient() == SigmoidLossGradient()
    assert SigmoidLoss().output_shape((8, 2)) == (1,)


def test_numbers_by_hand() -> None:
    """Logits of the probabilities ½ and ¾; −log ½ = log 2, −log ¾ = log 4 − log 3, −log ¼ = log 4."""
    x, labels = np.array([[0.0, np.log(3)], [0.0, np.log(3)]]), np.array([[1.0, 1.0], [0.5, 0.0]])
    losses = np.array([[LOG2, 2 * LOG2 - np.log(3)], [LOG2, 2 * LOG2]])
    gradients = np.array([[-0.5, -0.25], [0.0, 0.75]])
    for normalisation, divisor in (("full", 4), ("batch", 2), ("none", 1)):
        run = run_operator(SigmoidLoss(normalisation=normalisation), [x, labels], dtype=np.float64)
        np.testing.assert_allclose(run.outputs[0], [losses.sum() / divisor], rtol=1e-15)
        np.testing.assert_allclose(run.input_gradients[0], gradients / divisor, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("x", [1000.0, -1000.0])
def test_a_large_logit_costs_its_distance(x: float) -> None:
    """Where the probability is rounded to 0 or 1."""
    for label, expected in ((1.0, max(-x, 0)), (0.0, max(x, 0))):
        run = run_operator(SigmoidLoss(), [np.array([[x]]), np.array([[label]])], dtype=np.float64)
        assert run.outputs[0] == [expected]
        assert run.input_gradients[0] == [[float(x > 0) - label]]


def test_padding_does_not_count() -> None:
    x, labels = np.zeros((3, 2)), np.ones((3, 2))
    run = run_operator(SigmoidLoss(), [x, labels], examples=2, dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [LOG2], rtol=1e-15)
    assert run.input_gradients[0].tolist() == [[-0.125] * 2, [-0.125] * 2, [0.0] * 2]


def test_gradients() -> None:
    check_gradients(SigmoidLoss(), [(3, 4), (3, 4)], labels=np.random.default_rng(0).random((3, 4)))


@pytest.mark.parametrize(
    ("shape", "labels", "good"),
    [
        ((8, 2), LabelRange((8, 2), False, 0, 1), True),
        ((8, 1), LabelRange((8,), False, 0, 1), True),
        ((8, 2), LabelRange((8,), False, 0, 1), False),
        ((8, 2), LabelRange((8, 2), False, -0.1, 1), False),
        ((8, 2), LabelRange((8, 2), False, 0, 1.5), False),
        ((8, 1), LabelRange((8,), True, 0, 1), False),
    ],
)
def test_labels(shape: tuple[int, ...], labels: LabelRange, good: bool) -> None:
    if good:
        SigmoidLoss().check_labels(labels, shape)
    else:
        with pytest.raises(
            ValueError, match=r"expected floating-point labels of shape \(8, .*from 0 to 1\. Received: "
        ):
            SigmoidLoss().check_labels(labels, shape)


def test_bad_configurations() -> None:
    with pytest.raises(ConfigurationError, match="normalisation must be one of 'full', 'batch', 'none'"):
        SigmoidLoss(normalisation="valid")


def two_labels(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Whether the sum of two features, and whether their difference, is more than 0."""
    x = np.random.default_rng(0).standard_normal((count, 2)).astype(np.float32)
    return x, np.stack([x.sum(axis=1) > 0, x[:, 0] > x[:, 1]], axis=1).astype(np.float32)


def test_a_network_with_several_labels_trains() -> None:
    x, y = two_labels()
    with ExecutionContext(
        Sequential(InnerProduct(2), SigmoidLoss()),
        data=Dataset((x, y), (x, y)),
        solver=SolverConf(learning_rate=1.0, momentum=0.9),
        system=SystemConf(learners_per_device=2),
    ) as context:
        history = context.train_and_test(20, verbose=0)
        assert history.best.test.accuracy is None
        assert history.best.test.loss < 0.2
        assert ((context.predict(x) > 0) == (y > 0.5)).mean() > 0.95


def test_labels_out_of_range_are_refused() -> None:
    x, y = two_labels()
    with pytest.raises(GraphError, match=r"labels of shape .*, from 0 to 1\. Received: values"):
        ExecutionContext(Sequential(InnerProduct(2), SigmoidLoss()), data=Dataset((x, 2 * y)))
