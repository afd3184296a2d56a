from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossbow import (
    ConfigurationError,
    DataflowNode,
    ExecutionContext,
    Gaussian,
    ModelConf,
    Operator,
    Phase,
    SystemConf,
    Xavier,
)
from crossbow.dataflow.derive import derive_check
from crossbow.dataflow.graph import build
from crossbow.ops import Conv, Dropout, InnerProduct
from models.lenet import VARIANTS, lenet
from tests.models.zoo import check_export, check_learning
from tests.support import pictures

PARAMETERS = {"original": 1_111_946, "batch-norm": 1_112_138, "caffe": 431_080}


def kernels(variant: str, **options: float) -> dict[str, object]:
    return {node.operator.name: node.operator.kernel for node in lenet(variant, **options).subgraph.nodes}  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", PARAMETERS)
def test_number_of_parameters(variant: str) -> None:
    data = pictures(size=28, classes=10)
    with ExecutionContext([lenet(variant), None], data=data, model=ModelConf(batch_size=4)) as context:
        assert context.engine.program.model.parameters == PARAMETERS[variant]
        trained = [value.size for name, value in context.variables.items() if ".running_" not in name]
        assert sum(trained) == PARAMETERS[variant]


def test_shapes_of_the_original() -> None:
    rows = lenet().describe((32, 1, 28, 28)).splitlines()
    outputs = {row.split()[1]: row for row in rows[2:]}
    for name, shape in {
        "conv1": "32×32×24×24",
        "pool1": "32×32×12×12",
        "conv2": "32×64×8×8",
        "pool2": "32×64×4×4",
        "ip1": "32×1024",
        "ip2": "32×10",
    }.items():
        assert shape in outputs[name]


def test_order_of_the_original() -> None:
    assert list(kernels("original"))[:11] == [
        "conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "ip1", "relu3", "dropout", "ip2", "softmax",
    ]  # fmt: skip
    dropout = kernels("original")["dropout"]
    assert isinstance(dropout, Dropout)
    assert dropout.ratio == 0.4


def test_batch_normalisation_is_between_convolution_and_relu() -> None:
    found = list(kernels("batch-norm"))
    assert found[:8] == ["conv1", "norm1", "relu1", "pool1", "conv2", "norm2", "relu2", "pool2"]
    assert [name for name in found if "norm" not in name] == list(kernels("original"))


def test_batch_norm_learns() -> None:
    check_learning(lenet("batch-norm", number_of_outputs=2), (1, 28, 28), learning_rate=0.001, epochs=6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_export(variant: str, tmp_path: Path) -> None:
    check_export(lenet(variant, number_of_outputs=2), (1, 28, 28), tmp_path)


def test_order_of_caffes() -> None:
    names = ["conv1", "pool1", "conv2", "pool2", "ip1", "relu1", "ip2", "softmax"]
    found = kernels("caffe")
    assert list(found)[:8] == names
    sizes = [kernel.number_of_outputs for kernel in found.values() if isinstance(kernel, Conv | InnerProduct)]
    assert sizes == [20, 50, 500, 10]
    assert all(
        isinstance(kernel.weight_initialiser, Xavier)
        for kernel in found.values()
        if isinstance(kernel, Conv | InnerProduct)
    )


def test_initial_values_of_the_original() -> None:
    """Weights N(0, 0.1) truncated at 0.2; biases 0, 0.1, 0.1, 0.1."""
    assert all(
        kernel.weight_initialiser == Gaussian(std=0.1, truncate=True)
        for kernel in kernels("original").values()
        if isinstance(kernel, Conv | InnerProduct)
    )
    data = pictures(size=28, classes=10)
    with ExecutionContext([lenet(), None], data=data, model=ModelConf(batch_size=4)) as context:
        variables = context.variables
    assert list(variables) == [
        f"{name}.{kind}" for name in ("conv1", "conv2", "ip1", "ip2") for kind in ("weights", "bias")
    ]
    for name, bias in (("conv1", 0.0), ("conv2", 0.1), ("ip1", 0.1), ("ip2", 0.1)):
        np.testing.assert_array_equal(variables[f"{name}.bias"], np.float32(bias))
        assert np.abs(variables[f"{name}.weights"]).max() <= np.float32(0.2)
    # A standard normal that is truncated at ± 2 has the standard deviation 0.8796.
    assert variables["ip1.weights"].std() == pytest.approx(0.08796, rel=0.01)


def test_dropout_is_for_training_only() -> None:
    graph = derive_check(build(lenet().subgraph.nodes))
    assert not any(isinstance(vertex.kernel, Dropout) for vertex in graph)


def test_dropout_can_be_left_out() -> None:
    assert "dropout" not in kernels("original", dropout=0)


def test_number_of_outputs() -> None:
    data = pictures(size=28, classes=3)
    dataflow = lenet("caffe", number_of_outputs=3)
    assert dataflow.phase is Phase.TRAIN
    system = SystemConf(learners_per_device=1)
    with ExecutionContext([dataflow, None], data=data, model=ModelConf(batch_size=4), system=system) as context:
        assert context.predict(data.train.images[:5]).shape == (5, 3)


def test_unknown_variant() -> None:
    with pytest.raises(ConfigurationError, match=r"one of original, batch-norm, caffe\. Received: 'alexnet'"):
        lenet("alexnet")


def test_dataflows_share_nothing() -> None:
    """Two calls are two models, so that a benchmark can hold several."""
    first, second = lenet(), lenet()
    nodes: list[DataflowNode] = [*first.subgraph.nodes, *second.subgraph.nodes]
    operators: set[Operator] = {node.operator for node in nodes}
    assert len(operators) == len(nodes)
