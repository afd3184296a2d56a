from __future__ import annotations

import numpy as np
import pytest

from crossbow.ops import EuclideanLoss, EuclideanLossGradient
from crossbow.testing import check_gradients, run_operator
from crossbow.types import LabelRange

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
LABELS = np.array([[1.0, 0.0], [2.0, 6.0], [5.0, 5.0]])


def test_what_it_is() -> None:
    assert EuclideanLoss.is_loss
    assert EuclideanLoss.takes_labels
    assert EuclideanLoss.gradient_past is None
    assert EuclideanLoss().gradient() == EuclideanLossGradient()
    assert EuclideanLoss().output_shape((8, 2)) == (1,)


def test_numbers_by_hand() -> None:
    run = run_operator(EuclideanLoss(), [X, LABELS], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [(0 + 4 + 1 + 4 + 0 + 1) / 6], rtol=1e-15)
    np.testing.assert_allclose(run.input_gradients[0], np.array([[0, 2], [1, -2], [0, 1]]) / 3, rtol=1e-15)


def test_padding_does_not_count() -> None:
    run = run_operator(EuclideanLoss(), [X, LABELS], examples=2, dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [9 / 4], rtol=1e-15)
    np.testing.assert_allclose(run.input_gradients[0], [[0.0, 1.0], [0.5, -1.0], [0.0, 0.0]], rtol=1e-15)


def test_one_value_per_example() -> None:
    run = run_operator(EuclideanLoss(), [X[:, :1], LABELS[:, 0]], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [1 / 6], rtol=1e-15)
    assert run.input_gradients[0].shape == (3, 1)


def test_images() -> None:
    x, labels = np.random.default_rng(0).standard_normal((2, 2, 3, 4, 5))
    run = run_operator(EuclideanLoss(), [x, labels], dtype=np.float64)
    np.testing.assert_allclose(run.outputs[0], [np.square(x - labels).sum() / 4], rtol=1e-14)
    np.testing.assert_allclose(run.input_gradients[0], (x - labels) / 2, rtol=1e-15)


def test_gradients() -> None:
    check_gradients(EuclideanLoss(), [(3, 4), (3, 4)])


@pytest.mark.parametrize(
    ("shape", "labels", "good"),
    [
        ((8, 2), LabelRange((8, 2), False, 0, 1), True),
        ((8, 1), LabelRange((8,), False, 0, 1), True),
        ((8, 1, 1, 1), LabelRange((8,), False, 0, 1), True),
        ((8, 2), LabelRange((8,), False, 0, 1), False),
        ((8, 2), LabelRange((8, 3), False, 0, 1), False),
        ((8, 1), LabelRange((8,), True, 0, 1), False),
    ],
)
def test_labels(shape: tuple[int, ...], labels: LabelRange, good: bool) -> None:
    if good:
        EuclideanLoss().check_labels(labels, shape)
    else:
        with pytest.raises(ValueError, match=r"expected floating-point labels of shape \(8, .*Received: "):
            EuclideanLoss().check_labels(labels, shape)
