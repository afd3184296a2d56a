"""One learner without averaging trains networks with BatchNorm step by step as PyTorch: weights and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow import SSGD, Dataflow, Operator, SolverConf, SubGraph, TrainingUnit
from crossbow.data.order import TrainingOrder
from crossbow.dataflow import DataflowNode
from crossbow.ops import BatchNorm, Conv, Gaussian, InnerProduct, Kernel, Pool, ReLU, SoftMax, SoftMaxLoss
from tests.combinations import in_turn
from tests.support import FAST, context, pictures

Array = NDArray[Any]
STEPS, BATCH_SIZE, EXAMPLES = 40, 6, 45
DATA = pictures(examples=EXAMPLES, check=9)
SOLVER = SolverConf(learning_rate=0.02, momentum=0.9, weight_decay=1e-3)
NAMES = {
    "weights": "weight",
    "bias": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
    "count": "num_batches_tracked",
}
"""Ours to PyTorch's."""


def conv(outputs: int, **more: Any) -> Conv:
    return Conv(number_of_outputs=outputs, kernel_size=3, bias_initialiser=Gaussian(std=0.1), **more)


def norm(**more: Any) -> BatchNorm:
    """Weights of both signs, or a ReLU behind would not be put to the test."""
    return BatchNorm(weight_initialiser=Gaussian(mean=0.5, std=0.7), bias_initialiser=Gaussian(std=0.3), **more)


SHARED = norm()
NETWORKS: dict[str, Callable[[], list[Kernel]]] = {
    "conv": lambda: [conv(5), norm(), ReLU(), InnerProduct(number_of_outputs=3)],
    "deep": lambda: [
        conv(16),
        norm(moving_average_fraction=0.7),
        ReLU(),
        conv(20, padding=1, stride=2),
        norm(epsilon=0.01),
        ReLU(),
        Pool(kernel_size=3, stride=2),
        InnerProduct(number_of_outputs=7),
        norm(),
        InnerProduct(number_of_outputs=3),
    ],
    "first": lambda: [norm(), ReLU(), InnerProduct(number_of_outputs=3)],
    "cma": lambda: [conv(5), norm(statistics="cma"), Pool(kernel_size=2), InnerProduct(number_of_outputs=3)],
    "shared": lambda: [
        InnerProduct(number_of_outputs=8),
        SHARED,
        ReLU(),
        InnerProduct(number_of_outputs=8),
        SHARED,
        ReLU(),
        InnerProduct(number_of_outputs=3),
    ],
}


def ours(kernels: list[Kernel]) -> tuple[Dataflow, list[str]]:
    """The dataflow, and the name of every layer's operator; a kernel that comes twice is one operator."""
    operators: dict[int, Operator] = {}
    nodes: list[DataflowNode] = []
    for number, kernel in enumerate([*kernels, SoftMax(), SoftMaxLoss()]):
        operator = operators.setdefault(id(kernel), Operator(f"layer{number}", kernel))
        nodes.append(DataflowNode(operator))
        if number:
            nodes[-2].connect_to(nodes[-1])
    return Dataflow(SubGraph(nodes[0])), [node.operator.name for node in nodes]


def theirs(kernels: list[Kernel], dtype: Any) -> list[Any]:
    """A PyTorch module for each operator."""
    from torch import nn

    modules: dict[int, Any] = {}
    shape: tuple[int, ...] = (BATCH_SIZE, 1, 8, 8)
    layers = []
    for kernel in kernels:
        module: Any = nn.ReLU()
        if isinstance(kernel, Conv):
            g = kernel.geometry(shape)
            padding = g.padding[0][0]
            module = nn.Conv2d(shape[1], kernel.number_of_outputs, g.kernel, g.stride, padding)
        elif isinstance(kernel, BatchNorm):
            momentum = None if kernel.statistics == "cma" else 1 - kernel.moving_average_fraction
            kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
            module = kind(shape[1], kernel.epsilon, momentum)
        elif isinstance(kernel, InnerProduct):
            module = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape[1:])), kernel.number_of_outputs))
        elif isinstance(kernel, Pool):
            g_pool = kernel.geometry(shape)
            module = nn.MaxPool2d(g_pool.kernel, g_pool.stride, ceil_mode=True)
        layers.append(modules.setdefault(id(kernel), module.to(dtype)))
        shape = kernel.output_shape(shape)
    return layers


def tensor_of(module: Any, variable: str) -> Any:
    """A module's tensor, by our name of the variable."""
    from torch import nn

    return getattr(module[1] if isinstance(module, nn.Sequential) else module, NAMES[variable])


@in_turn
@pytest.mark.parametrize(
    ("kernels", "precision", "tolerance"),
    [
        pytest.param("reference", "float64", 1e-10, id="reference-float64"),
        pytest.param("reference", "float32", 2e-4, id="reference-float32"),
        pytest.param("onednn", "float32", 2e-4, id="onednn-float32", marks=FAST.marks),
    ],
)
@pytest.mark.parametrize("network", NETWORKS)
def test_as_pytorch_computes_it(network: str, kernels: str, precision: str, tolerance: float) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    torch.set_num_threads(1)  # its idle threads would spin on the cores that Crossbow's learner needs
    layers = NETWORKS[network]()
    dataflow, names = ours(layers)
    modules = theirs(layers, torch.float64)
    by_name = dict(zip(names, modules, strict=False))
    model = torch.nn.Sequential(*modules)
    order, indices = TrainingOrder(EXAMPLES, BATCH_SIZE, 0), np.empty(BATCH_SIZE, np.intp)
    x, y = torch.from_numpy(DATA.train.images).double() / 255, torch.from_numpy(DATA.train.labels).long()
    with context(
        dataflow,
        data=DATA,
        rule=SSGD(),
        learners=1,
        batch_size=BATCH_SIZE,
        solver=SOLVER,
        kernels=kernels,
        precision=precision,
    ) as running:
        with torch.no_grad():
            for name, value in running.variables.items():
                layer, _, variable = name.partition(".")
                start = tensor_of(by_name[layer], variable)
                start.copy_(torch.from_numpy(value).reshape(start.shape))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3, foreach=False)
        for step in range(STEPS):
            received = running.train(1, TrainingUnit.TASKS).loss
            order.indices(step, indices)
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model.train()(x[indices]), y[indices])
            loss.backward()
            optimiser.step()
            assert received == pytest.approx(loss.item(), abs=tolerance), f"the loss of step {step}"
            for name, value in running.variables.items():
                layer, _, variable = name.partition(".")
                expected = tensor_of(by_name[layer], variable).detach().numpy()
                assert np.abs(value - expected).max() <= tolerance * max(1.0, np.abs(expected).max()), f"{name}, {step}"
        probabilities = torch.softmax(model.eval()(x), dim=1).detach().numpy()
        np.testing.assert_allclose(running.predict(DATA.train.images), probabilities, atol=10 * tolerance)
        assert loss.item() < 0.5  # it has led somewhere
