from __future__ import annotations

import doctest

import pytest

from crossbow import Dataflow, GraphError, Operator, Sequential, SubGraph
from crossbow.dataflow import dataflow as dataflow_module
from crossbow.dataflow import sequential, subgraph
from crossbow.dataflow.summary import LayerSummary
from crossbow.ops import Conv, InnerProduct, MatMul, Pool, ReLU, SoftMax, SoftMaxLoss
from models.resnet import resnet
from models.vgg import vgg
from tests.dataflow.networks import node
from tests.support import context, pictures


def test_doctests() -> None:
    """That of `Dataflow.summary` shows a table; those of the modules for building use it on small networks."""
    for module in (dataflow_module, sequential, subgraph):
        assert doctest.testmod(module).attempted > 0
        assert doctest.testmod(module).failed == 0


def test_layers_have_shapes_parameters_multiply_adds_and_memory() -> None:
    network = Sequential(Conv(6, (3, 5), stride=2, groups=2), Pool(), InnerProduct(10), SoftMax(), SoftMaxLoss())
    summary = Dataflow(network).summary((4, 9, 11))
    assert summary.layers == (
        LayerSummary("conv1", "Conv", (6, 4, 4), 6 * 2 * 15 + 6, 0, 6 * 16 * 2 * 15, 4 * 96),
        LayerSummary("pool1", "Pool", (6, 2, 2), 0, 0, 0, 4 * 24),
        LayerSummary("innerproduct1", "InnerProduct", (10,), 250, 0, 240, 40),
        LayerSummary("softmax1", "SoftMax", (10,), 0, 0, 0, 40),
        LayerSummary("softmaxloss1", "SoftMaxLoss", (), 0, 0, 0, 4),
    )
    assert (summary.parameters, summary.multiply_adds, summary.activation_bytes) == (436, 3120, 564)


@pytest.mark.parametrize(
    ("dataflow", "parameters", "billions"),
    [
        (lambda: resnet(18), 11_689_512, 1.8),
        (lambda: resnet(50), 25_557_032, 3.8),
        (lambda: resnet(152), 60_192_808, 11.3),
        (lambda: vgg("imagenet", number_of_outputs=1000), 138_357_544, 15.3),
    ],
    ids=["resnet-18", "resnet-50", "resnet-152", "vgg-16"],
)
def test_sums_are_those_of_the_papers(dataflow: object, parameters: int, billions: float) -> None:
    """He et al., Deep Residual Learning for Image Recognition, table 1 and section 3.3, which say 15.3 of VGG-16."""
    summary = dataflow().summary((3, 224, 224))  # type: ignore[operator]
    assert summary.parameters == parameters
    assert summary.multiply_adds / 1e9 == pytest.approx(billions, rel=0.025)


def test_the_sums_are_those_of_a_context() -> None:
    network = Sequential(Conv(5, 3), ReLU(), Pool(), InnerProduct(3), SoftMax(), SoftMaxLoss())
    data = pictures()
    summary = Dataflow(network).summary(data.image_shape)
    with context(Dataflow(network), data=data) as running:
        assert running.summary().parameters == summary.parameters


def test_products_of_matrices_count_by_their_sizes() -> None:
    first, second, product = node("a", ReLU()), node("b", ReLU()), node("c", MatMul(transpose_b=True))
    first.connect_to(second)
    first.connect_to(product)
    second.connect_to(product)
    summary = Dataflow(SubGraph(first)).summary((7, 5))
    assert summary.layers[-1].multiply_adds == summary.multiply_adds == 7 * 7 * 5


def test_a_shared_operator_counts_once_and_computes_twice() -> None:
    shared = Operator("shared", InnerProduct(4))
    first, second = Dataflow(Sequential(shared, shared)).summary((4,)).layers
    assert (first.parameters, second.parameters) == (20, 0)
    assert first.multiply_adds == second.multiply_adds == 16


def test_frozen_parameters_are_named() -> None:
    network = Sequential(Conv(4, 3), InnerProduct(3)).freeze("conv1.weights")
    summary = Dataflow(network).summary((1, 8, 8))
    assert (summary.frozen, summary.layers[0].frozen) == (36, 36)
    assert "\n475 parameters (1.9 kB), 36 of them frozen; " in str(summary)


@pytest.mark.parametrize("shape", [3, (3, 0, 8), (3, "8"), None, (True,), ()])
def test_a_shape_that_is_none_is_rejected(shape: object) -> None:
    with pytest.raises(GraphError, match=r"summary: expected the shape of an example, as .*\. Received: "):
        Dataflow(Sequential(Conv(4, 3))).summary(shape)  # type: ignore[arg-type]


def test_a_shape_that_does_not_fit_is_rejected() -> None:
    with pytest.raises(GraphError, match=r"node 'conv1' \(Conv\): expected an input at least as large as the kernel"):
        Dataflow(Sequential(Conv(4, 3))).summary((1, 2, 2))
