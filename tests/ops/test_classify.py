from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, Phase, SubGraph
from crossbow.kernels import why_not_compiled
from crossbow.ops import Accuracy, Classify, InnerProduct, SoftMax, SoftMaxLoss
from crossbow.testing import run_operator
from crossbow.testing.arguments import library_of
from crossbow.testing.bench import Bench
from crossbow.types import ConfigurationError
from tests.support import KERNELS, blobs, chain, context

DEVICES = pytest.mark.parametrize(
    "device",
    [
        "reference",
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}"
            ),
        ),
    ],
)


def test_shapes() -> None:
    assert Classify().output_shape((8, 10)) == (8,)
    assert Classify().output_shape((8, 10, 4, 5)) == (8, 4, 5)
    assert Classify(axis=-1).output_shape((8, 10, 4, 5)) == (8, 10, 4)
    assert Classify().gradient() is None


@pytest.mark.parametrize(("axis", "shape"), [(1, (8,)), (3, (8, 2, 3)), (-2, (8, 3)), (1, ())])
def test_an_axis_that_is_not_there(axis: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"an input of shape \(N, …\) that has an axis={axis}\. Received: \("):
        Classify(axis=axis).output_shape(shape)


def test_more_classes_than_the_type_counts() -> None:
    with pytest.raises(ValueError, match=r"at most 16777216 classes\. Received: 16777217"):
        Classify().output_shape((1, 2**24 + 1))


@pytest.mark.parametrize("axis", [0, 1.5, None])
def test_bad_configurations(axis: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"axis must be an integer ≥ 1, or ≤ −1 to count from the end"):
        Classify(axis=axis)


@DEVICES
def test_the_first_of_equal_values(device: str) -> None:
    x = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [-2.0, -1.0, -1.0], [-np.inf, -np.inf, 0]])
    run = run_operator(Classify(), [x], device=device)
    assert run.outputs[0].dtype == np.float32
    assert run.outputs[0].tolist() == [1, 0, 1, 2]
    assert run.input_gradients == []


@DEVICES
def test_not_a_number_wins_as_in_numpy(device: str) -> None:
    x = np.array([[1.0, np.nan, 9.0, np.nan], [np.nan, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, np.nan]], np.float32)
    bench = Bench(Classify(), library_of(device, np.dtype(np.float32)), np.dtype(np.float32), [x.shape], None)
    bench.load([x], {}, task=0, examples=len(x))
    assert bench.forward().tolist() == np.argmax(x, axis=1).tolist() == [1, 0, 3]


@KERNELS
def test_a_check_dataflow_that_ends_in_it_predicts_classes(kernels: str) -> None:
    data = blobs()
    scores, *_ = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    again = scores.shallow_copy()
    again.connect_to(*chain(Classify()))
    predictions = []
    for check in (None, Dataflow(SubGraph(again)).set_phase(Phase.CHECK)):
        with context(Dataflow(SubGraph(scores)), check=check, data=data, kernels=kernels) as run:
            run.train(3)
            predictions.append(run.predict(data.train.images))
    np.testing.assert_array_equal(predictions[0].argmax(axis=1), predictions[1])


@KERNELS
def test_beside_the_loss_it_is_the_prediction_and_changes_no_training(kernels: str) -> None:
    data, results = blobs(), []
    for beside in ([], [Classify()]):
        scores, softmax, _ = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
        for kernel in (Accuracy(), *beside):
            softmax.connect_to(*chain(kernel))
        with context(Dataflow(SubGraph(scores)), data=data, kernels=kernels) as run:
            history = run.train_and_test(2)
            results.append((history.loss, run.test().accuracy, run.predict(data.train.images)))
    assert results[0][:2] == results[1][:2]
    np.testing.assert_array_equal(results[0][2].argmax(axis=1), results[1][2])


@DEVICES
def test_the_last_of_equal_values(device: str) -> None:
    x = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [-2.0, -1.0, -1.0]])
    assert run_operator(Classify(ties="last"), [x], device=device).outputs[0].tolist() == [1, 2, 2]
    with pytest.raises(ConfigurationError, match="ties must be one of 'first', 'last'"):
        Classify(ties="any")


@DEVICES
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_an_axis_that_is_kept(device: str, axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    kept = run_operator(Classify(axis=axis, keep_axis=True), [x], device=device).outputs[0]
    np.testing.assert_array_equal(kept, x.argmax(axis, keepdims=True))
