from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.torch_network import NoEquivalentError, torch_network
from crossbow import Dataflow, ExecutionContext, ModelConf, Sequential, SolverConf, SystemConf
from crossbow.data import synthetic
from crossbow.dataflow.graph import build
from crossbow.ops import LRN, Concat, Conv, ElementWiseOp, InnerProduct, Pool, ReLU
from models.googlenet import googlenet
from models.layers import add, classifier, head_of, same_convolution
from models.matrix_factorisation import matrix_factorisation
from models.mlp import mlp
from models.mobilenet import mobilenet
from models.resnet import resnet
from tests.support import Array

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and "CROSSBOW_REQUIRE_TORCH" not in os.environ,
    reason="PyTorch is not installed",
)
CLASSES = 10
PARTS = {"weights": "weight", "bias": "bias", "running_mean": "running_mean", "running_variance": "running_var"}


def residual() -> Dataflow:
    """A small network with a sum, a join of channels, and normalisation."""
    first = same_convolution("conv", 4, 3)
    total = add("sum", ElementWiseOp(), same_convolution("unit", 4, 3, first, activation=None), first)
    joined = add("concat", Concat(axis=1), add("relu", ReLU(), total), first)
    pooled = add("pool", Pool(method="average", global_pooling=True), joined)
    return classifier(head_of(first), add("ip", InnerProduct(number_of_outputs=CLASSES), pooled))


NETWORKS: dict[str, tuple[Callable[[], Dataflow], tuple[int, ...]]] = {
    "residual": (residual, (3, 8, 8)),
    "resnet, option A": (lambda: resnet(20), (3, 32, 32)),
    "mlp": (lambda: mlp((12, 8)), (1, 4, 4)),
    "googlenet": (lambda: googlenet(number_of_outputs=CLASSES), (3, 65, 65)),
    "googlenet, auxiliary": (lambda: googlenet(number_of_outputs=CLASSES, auxiliary=True), (3, 65, 65)),
    "mobilenet": (lambda: mobilenet(number_of_outputs=CLASSES), (3, 64, 64)),
}
FAST = ("mlp",)


def load(module: Any, variables: dict[str, Array]) -> None:
    """Copy Crossbow's variables to the layers of the same names."""
    import torch

    for name, value in variables.items():
        operator, _, part = name.rpartition(".")
        layer = module.layers[operator]
        layer = layer[-1] if isinstance(layer, torch.nn.Sequential) else layer
        with torch.no_grad():
            getattr(layer, PARTS[part]).copy_(torch.from_numpy(value.copy()))


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
def test_it_predicts_the_same(name: str) -> None:
    import torch

    make, shape = NETWORKS[name]
    dataflow = make()
    data = synthetic(shape, CLASSES, training=16, check=4)
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=4),
        solver=SolverConf(learning_rate=0.01),
        system=SystemConf(learners_per_device=1),
    ) as context:
        context.train(1)  # moves the running statistics
        expected = context.predict(data.check.images)
        module = torch_network(dataflow, shape)
        load(module, context.variables)
    images = torch.from_numpy(data.check.images.astype(np.float32) / 255)
    (logits, *_) = module.eval()(images.contiguous(memory_format=torch.channels_last))
    found = torch.softmax(logits.flatten(1), 1).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_its_layers_have_gradients_and_their_time_is_taken() -> None:
    import torch

    called: list[str] = []
    dataflow = residual()
    module = torch_network(dataflow, (3, 8, 8), lambda name, y: called.append(name))
    (y,) = module(torch.rand(2, 3, 8, 8))
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    names = [vertex.name for vertex in build(dataflow.subgraph.nodes)]
    assert called == [name for name in names if name != "loss"]


def test_weights_of_losses() -> None:
    module = torch_network(googlenet(auxiliary=True), (3, 65, 65))
    assert module.weights == (1.0, 0.3, 0.3)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (LRN(region="within_channel"), "LRN"),
        (Pool(method="stochastic"), "stochastic"),
        (Pool(method="max", kernel_size=3, padding=((1, 0), (0, 1))), "the same padding on both sides"),
        (ElementWiseOp(type="sum", coefficients=(0.5,)), "coefficients of 1"),
        (InnerProduct(number_of_outputs=2, axis=2), "InnerProduct"),
    ],
)
def test_what_pytorch_does_not_have_is_named(layer: Any, message: str) -> None:
    network = Sequential(("conv", Conv(number_of_outputs=2)), ("odd", layer))
    with pytest.raises(NoEquivalentError, match=message):
        torch_network(classifier(network.head, network.tail), (3, 8, 8))


def test_a_matrix_factorisation_has_no_equivalent() -> None:
    with pytest.raises(NoEquivalentError, match="MatFact"):
        torch_network(matrix_factorisation(5, 5), (2,))
