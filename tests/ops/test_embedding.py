from __future__ import annotations

import numpy as np
import pytest

from crossbow import (
    ConfigurationError,
    DataError,
    Dataset,
    ExecutionContext,
    GraphError,
    ModelConf,
    Sequential,
    TaskError,
)
from crossbow.ops import Embedding, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.testing import run_operator


def test_rows_by_hand() -> None:
    weights = np.array([[1.0, 2], [3, 4], [5, 6]])
    dy = np.array([[[1.0, 0], [0, 1], [2, 2]]])
    done = run_operator(Embedding(3, 2), [[[2.0, 0, 2]]], variables={"weights": weights}, output_gradient=dy)
    np.testing.assert_array_equal(done.outputs[0], [[[5, 6], [1, 2], [5, 6]]])
    np.testing.assert_array_equal(done.variable_gradients["weights"], [[0, 1], [0, 0], [3, 2]])


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"expected indices of shape \(N, T\)\. Received: \(2, 3, 4\)"):
        Embedding(3, 2).output_shape((2, 3, 4))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2), "number_of_rows must be"),
        ((2**24 + 1, 2), "number_of_rows must be at most 16777216"),
        ((2, 0), "number_of_outputs must be"),
    ],
)
def test_wrong_sizes(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Embedding(*sizes)


def test_the_most_rows() -> None:
    (weights,) = Embedding(2**24, 1).variables((2, 3))
    assert weights.shape == (2**24, 1)
    assert Embedding(2**24, 5).output_shape((2, 3)) == (2, 3, 5)


def test_frozen() -> None:
    assert Embedding(2, 2, weight_learning_rate_multiplier=0).is_frozen
    assert not Embedding(2, 2).is_frozen


def context(*layers: object, largest: int = 4) -> ExecutionContext:
    """Four indices from 0 to `largest`; the class is whether the first is the last."""
    x = np.random.default_rng(0).integers(0, largest + 1, (64, 4)).astype(np.int32)
    x[0] = largest
    data = Dataset((x, (x[:, 0] == x[:, 3]).astype(np.int32)))
    network = Sequential(*layers, InnerProduct(2), SoftMax(), SoftMaxLoss())  # type: ignore[arg-type]
    return ExecutionContext(network, data=data, model=ModelConf(batch_size=8))


@pytest.mark.slow
def test_integers_train_and_predict() -> None:
    with context(Embedding(5, 8)) as trained:
        losses = [record.loss for record in trained.train(30).records]
        assert losses[-1] < losses[0]
        predicted = trained.predict(np.array([[0, 1, 2, 3]], np.int32))
    assert predicted.shape == (1, 2)


def test_an_index_that_is_not_a_row() -> None:
    with context(Embedding(4, 8)) as trained, pytest.raises(TaskError) as error:
        trained.train(1)
    assert isinstance(error.value.__cause__, DataError)
    assert "expected a whole number from 0 to 3 for every index. Received: 4," in str(error.value.__cause__)


def test_bytes_are_no_indices() -> None:
    """A data set of uint8 has pixels, which are scaled."""
    data = Dataset((np.ones((16, 4), np.uint8), np.arange(16) % 2))
    network = Sequential(Embedding(5, 8), InnerProduct(2), SoftMax(), SoftMaxLoss())
    message = (
        r"node 'embedding1' \(Embedding\): expected indices of a type that is not scaled to \[0, 1\]: "
        r"convert the examples with \.astype\(np\.int32\)\. Received: uint8"
    )
    with pytest.raises(GraphError, match=message):
        ExecutionContext(network, data=data, model=ModelConf(batch_size=8))


def test_indices_are_the_batch() -> None:
    with pytest.raises(GraphError), context(InnerProduct(4), ReLU(), Embedding(5, 8)):
        pass
