from __future__ import annotations

from pathlib import Path

from models.logistic_regression import logistic_regression
from tests.models.zoo import check_export, check_learning, parameters, shapes

MNIST = (2, 1, 28, 28)


def test_number_of_parameters() -> None:
    assert parameters(logistic_regression(), MNIST) == 7_850


def test_shapes() -> None:
    assert shapes(logistic_regression(), MNIST)["InnerProduct"] == (2, 10)


def test_it_learns() -> None:
    check_learning(logistic_regression(number_of_outputs=2), MNIST[1:], learning_rate=0.01, epochs=10)


def test_export(tmp_path: Path) -> None:
    check_export(logistic_regression(number_of_outputs=2), MNIST[1:], tmp_path)
