"""Normalisations that convolutions include: which ones, the values by hand, and predictions that stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, DataflowNode, Operator, Phase, Predictor, SubGraph
from crossbow.dataflow.derive import derive_prediction
from crossbow.dataflow.graph import Graph
from crossbow.ops import BatchNorm, Conv, ElementWiseOp, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime.folding import Folding
from crossbow.types import DataError
from tests.kernels.cuda.fake import fake_cuda
from tests.support import Array, chain, context, pictures, training

CONV = Conv(number_of_outputs=4, kernel_size=3, padding=1, bias=False)


def graph_of(first: DataflowNode) -> Graph:
    return derive_prediction(Dataflow(SubGraph(first)).set_phase(Phase.CHECK).graph)


def kinds(graph: Graph) -> list[str]:
    return [type(vertex.kernel).__name__ for vertex in Folding(graph).graph]


def classified(*kernels: Any) -> DataflowNode:
    return chain(*kernels, InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())[0]


def test_a_convolution_includes_the_normalisation_after_it() -> None:
    graph = graph_of(classified(CONV, BatchNorm(), ReLU(), BatchNorm()))
    folding = Folding(graph)
    assert kinds(graph) == ["Conv", "ReLU", "BatchNorm", "InnerProduct", "SoftMax"]
    first, relu, *_ = folding.graph
    assert (first.name, first.inputs, relu.inputs) == (graph[0].name, (-1,), (0,))
    assert first.kernel == Conv(number_of_outputs=4, kernel_size=3, padding=1)
    assert first.operator is not graph[0].operator


def test_other_readers_and_shared_operators_keep_both() -> None:
    first, norm = DataflowNode(Operator("conv", CONV)), DataflowNode(Operator("norm", BatchNorm()))
    total = DataflowNode(Operator("sum", ElementWiseOp()))
    first.connect_to(norm)
    norm.connect_to(total)
    first.connect_to(total)
    total.connect_to(classified())
    assert "BatchNorm" in kinds(graph_of(first))
    shared = DataflowNode(Operator("conv", CONV))
    normalised = DataflowNode(Operator("norm", BatchNorm()))
    shared.connect_to(normalised)
    same = Operator("same", Conv(number_of_outputs=4, kernel_size=3, padding=1, bias=False))
    one, two = DataflowNode(same), DataflowNode(same)
    after = DataflowNode(Operator("after", BatchNorm()))
    normalised.connect_to(one)
    one.connect_to(two)
    two.connect_to(after)
    after.connect_to(classified())
    assert kinds(graph_of(shared)) == ["Conv", "Conv", "Conv", "BatchNorm", "InnerProduct", "SoftMax"]


@pytest.mark.parametrize("conv_bias", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values_by_hand(conv_bias: bool, bias: bool) -> None:
    """ε = 2: factors of 3 / √(7 + 2) = 1 and 8 / √(14 + 2) = 2."""
    conv = Conv(number_of_outputs=2, bias=conv_bias)
    graph = graph_of(classified(conv, BatchNorm(epsilon=2.0, bias=bias)))
    folding, (first, norm) = Folding(graph), (id(vertex.operator) for vertex in graph[:2])
    values: dict[tuple[int, str], Array] = {
        (first, "weights"): np.array([10.0, 20.0], np.float32).reshape(2, 1, 1, 1),
        (norm, "weights"): np.array([3.0, 8.0], np.float32),
        (norm, "running_mean"): np.array([1.0, 5.0], np.float32),
        (norm, "running_variance"): np.array([7.0, 14.0], np.float32),
    }
    expected = np.array([-1.0, -10.0])
    if conv_bias:
        values[first, "bias"] = np.array([100.0, 1000.0], np.float32)
        expected += [100.0, 2000.0]
    if bias:
        values[norm, "bias"] = np.array([0.5, 0.25], np.float32)
        expected += [0.5, 0.25]
    both = id(folding.graph[0].operator)
    received = folding.values(values, np.dtype(np.float32))
    np.testing.assert_array_equal(received[both, "weights"].ravel(), [10, 40])
    np.testing.assert_array_equal(received[both, "bias"], expected)


@pytest.mark.parametrize("statistics", ["fixed", "cma"])
def test_predictions_are_those_of_the_test(statistics: str, tmp_path: Path) -> None:
    """The class with the largest output has the accuracy of the test, which normalises apart."""
    network = training(
        Conv(number_of_outputs=8, kernel_size=3, bias=False),
        BatchNorm(statistics=statistics),
        ReLU(),
        Conv(number_of_outputs=8, kernel_size=3, groups=2),
        BatchNorm(bias=False),
        InnerProduct(number_of_outputs=3),
    )
    with context(network, data=pictures(), check_numerics=False) as running:
        running.train(3)
        check = running.data.check
        assert check is not None
        predicted = running.predict(check.images)
        right = predicted.argmax(axis=1) == check.labels
        assert right.mean() == pytest.approx(running.test().accuracy)
        running.save(tmp_path / "model.safetensors")
    with context(network, data=pictures(), check_numerics=True) as running:
        running.load(tmp_path / "model.safetensors")
        np.testing.assert_allclose(running.predict(check.images), predicted, rtol=1e-4, atol=1e-6)


def test_values_that_do_not_fit_are_named() -> None:
    graph = graph_of(classified(Conv(number_of_outputs=2, bias=False), BatchNorm()))
    first, norm, last = (id(vertex.operator) for vertex in graph[:3])
    values: dict[tuple[int, str], Array] = {(first, "weights"): np.ones((2, 1, 1, 1), np.float32)}
    values |= {(last, "weights"): np.ones((3, 32), np.float32), (last, "bias"): np.ones(3, np.float32)}
    values |= {(norm, name): np.ones(2, np.float32) for name in ("weights", "bias", "running_mean")}
    with pytest.raises(DataError, match=r"^f does not fit the model: .*running_variance: expected \(2,\)\. .*nothing"):
        Folding(graph).check(values, "f", (1, 1, 4, 4), np.dtype(np.float32))
    values[norm, "running_variance"] = np.array([1.0, -1.0], np.float32)
    with pytest.raises(DataError, match=r"expected numbers ≥ 0 .*Received: -1"):
        Folding(graph).check(values, "f", (1, 1, 4, 4), np.dtype(np.float32))
    values[norm, "running_variance"] = np.ones(3, np.float32)
    with pytest.raises(DataError, match=r"expected \(2,\)\. Received: \(3,\)"):
        Folding(graph).check(values, "f", (1, 1, 4, 4), np.dtype(np.float32))


def test_numbers_that_are_not_finite_cause_no_warning() -> None:
    graph = graph_of(classified(Conv(number_of_outputs=2, bias=False), BatchNorm()))
    first, norm = (id(vertex.operator) for vertex in graph[:2])
    values: dict[tuple[int, str], Array] = {(first, "weights"): np.full((2, 1, 1, 1), 3e38, np.float32)}
    values |= {(norm, name): np.full(2, np.inf) for name in ("weights", "bias", "running_mean", "running_variance")}
    folded = Folding(graph).values(values, np.dtype(np.float32))
    assert not any(np.isfinite(value).any() for key, value in folded.items() if key not in values)


def test_gpus_normalise_apart() -> None:
    """Their convolutions add a bias in a pass of its own."""
    network = training(CONV, BatchNorm(), InnerProduct(number_of_outputs=3))
    with (
        fake_cuda() as cuda,
        context(network, data=pictures(), devices="cuda:0", kernels="auto", threads=None) as running,
    ):
        running.predict(running.data.train.images[:5])
        assert "batch_norm_inference" in {call.name for call in cuda.calls}


def test_a_predictor_of_a_network_has_its_initial_values() -> None:
    network = training(CONV, BatchNorm(), InnerProduct(number_of_outputs=3))
    with context(network, data=pictures()) as running, Predictor(network.subgraph) as predictor:
        images = running.data.train.images[:5]
        np.testing.assert_allclose(predictor(images), running.predict(images), rtol=1e-5)
