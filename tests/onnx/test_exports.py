"""Networks that users try first, exported by PyTorch in three ways: they predict as onnxruntime does, train, and are
saved again."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import SSGD, Dataflow, DataflowNode, Dataset, Operator, Predictor, SubGraph, SystemConf
from crossbow.onnx import load, save
from crossbow.ops import BatchNorm, SoftMax, SoftMaxLoss
from tests.combinations import one_in
from tests.onnx.models import Array, draw, run_crossbow, run_onnx
from tests.support import KERNELS, context

torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
nn = torch.nn
CLASSES = 3
SHAPE = (3, 12, 12)


class Shuffled(nn.Module):  # type: ignore[name-defined,misc]
    """A unit of ShuffleNet's second version: half of the channels pass, and all are mixed."""

    def __init__(self, channels: int, *, normalised: bool = True) -> None:
        super().__init__()
        half, norm = channels // 2, nn.BatchNorm2d if normalised else nn.Identity
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            norm(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            norm(half),
            nn.Conv2d(half, half, 1, bias=False),
            norm(half),
            nn.ReLU(),
        )

    def forward(self, x: Any) -> Any:
        kept, changed = x.chunk(2, dim=1)
        y = torch.cat((kept, self.branch(changed)), dim=1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class Means(nn.Module):  # type: ignore[name-defined,misc]
    def forward(self, x: Any) -> Any:
        return x.mean([2, 3])


class Branches(nn.Module):  # type: ignore[name-defined,misc]
    """A block of GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [
                nn.Conv2d(8, 4, 1),
                nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 1)),
            ]
        )

    def forward(self, x: Any) -> Any:
        return torch.relu(torch.cat([part(x) for part in self.parts], 1))


class Shortcut(nn.Module):  # type: ignore[name-defined,misc]
    """Every second pixel, and channels of zeros: the shortcut of the first ResNets for CIFAR."""

    def forward(self, x: Any) -> Any:
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))


def head(channels: int) -> list[Any]:
    return [Means(), nn.Linear(channels, CLASSES)]


NETWORKS = {
    "ShuffleNet": lambda: [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), Shuffled(8), Shuffled(8), *head(8)],
    "AlexNet": lambda: [nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(5, 1e-2, 0.7, 2.0), nn.MaxPool2d(2), *head(8)],
    "LocalResponseNorm(2)": lambda: [nn.Conv2d(3, 7, 3), nn.LocalResponseNorm(2, 0.5), *head(7)],
    "LocalResponseNorm(4)": lambda: [nn.Conv2d(3, 7, 3), nn.LocalResponseNorm(4, 0.5, k=0.5), *head(7)],
    "LocalResponseNorm(3), alpha 1": lambda: [nn.Conv2d(3, 7, 3), nn.LocalResponseNorm(3, 1.0), *head(7)],
    "GoogLeNet": lambda: [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.LocalResponseNorm(3), Branches(), *head(12)],
    "LogSoftmax": lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(), *head(4), nn.LogSoftmax(1)],
    "no factors": lambda: [nn.BatchNorm2d(3, affine=False), nn.ReLU(), nn.Conv2d(3, 4, 1), *head(4)],
    "a shortcut": lambda: [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), Shortcut(), *head(8)],
    "a border": lambda: [nn.ConstantPad2d((1, 0, 2, 1), 0.5), nn.MaxPool2d(3, 2), nn.Conv2d(3, 4, 1), *head(4)],
}
PLAIN = {
    "a shuffle": lambda: [nn.Conv2d(3, 8, 3), Shuffled(8, normalised=False), *head(8)],
    "LocalResponseNorm(2)": NETWORKS["LocalResponseNorm(2)"],
    "a shortcut": NETWORKS["a shortcut"],
    "a border": NETWORKS["a border"],
}
"""Without normalisations, which observe the batch in training."""
FIXED, LATER, DYNAMO = "TorchScript", "TorchScript, training on", "dynamo"


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def exported(network: Any, way: str) -> onnx.ModelProto:
    file, options = io.BytesIO(), {}
    if way == DYNAMO:
        pytest.importorskip("onnxscript", reason="onnxscript, with which PyTorch exports, is not installed")
        options = {"dynamo": True, "dynamic_shapes": ({0: "N"},), "input_names": ["x"], "verbose": False}
    else:
        options = {"dynamo": False, "dynamic_axes": {"x": {0: "N"}}, "input_names": ["x"]}
    if way == LATER:
        options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (torch.zeros(2, *SHAPE),), file, **options)
    return onnx.load_from_string(file.getvalue())


def made(name: str) -> Any:
    torch.manual_seed(3)
    network = nn.Sequential(*(NETWORKS | PLAIN)[name]())
    network(torch.randn(32, *SHAPE))  # running statistics of its own
    return network.eval()


def data() -> tuple[Array, Array, Dataset]:
    x = draw(24, *SHAPE)
    y = np.argmax(x.mean((2, 3)), 1)
    return x, y, Dataset((x, y))


def trainable(network: SubGraph) -> Dataflow:
    softmax, loss = DataflowNode(Operator("softmax", SoftMax())), DataflowNode(Operator("loss", SoftMaxLoss()))
    network.tail.connect_to(softmax).connect_to(loss)
    return Dataflow(SubGraph(network.head))


EXPORTS = [
    *((name, FIXED) for name in NETWORKS),
    *((name, LATER) for name in ("ShuffleNet", "AlexNet", "no factors")),
    # dynamo omits the multiplication by 1.
    ("LocalResponseNorm(3), alpha 1", DYNAMO),
    *(
        pytest.param(name, DYNAMO, marks=pytest.mark.slow)
        for name in ("ShuffleNet", "AlexNet", "LocalResponseNorm(2)", "LogSoftmax", "no factors", "a border")
    ),
]


@one_in(4)
@pytest.mark.parametrize(("name", "way"), EXPORTS)
def test_it_predicts_trains_and_is_saved(name: str, way: str, tmp_path: Path) -> None:
    proto = exported(made(name), way)
    x, _, examples = data()
    np.testing.assert_allclose(run_crossbow(load(proto), x), run_onnx(proto, x=x), rtol=1e-5, atol=1e-5)
    dataflow = trainable(load(proto))
    with context(dataflow, data=examples, kernels="reference", learners=1) as run:
        history = run.train(6)
        assert history.records[-1].loss < history.records[0].loss
        save(run, tmp_path / "tuned.onnx")
        tuned = run_onnx(onnx.load(tmp_path / "tuned.onnx"), input=x)
        np.testing.assert_allclose(tuned, run.predict(x), rtol=1e-4, atol=1e-5)
    again = load(tmp_path / "tuned.onnx")
    np.testing.assert_allclose(run_crossbow(again, x), tuned, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("name", PLAIN)
def test_a_step_of_gradient_descent_is_pytorchs(name: str, kernels: str) -> None:
    theirs, (x, y, _) = made(name), data()
    dataflow = trainable(load(exported(theirs, LATER)))
    options = {"kernels": kernels, "learners": 1, "batch_size": 8, "rule": SSGD()}
    with context(dataflow, data=Dataset((x[:8], y[:8])), **options) as run:
        run.train(1)
        after = run.predict(x)
    nn.functional.cross_entropy(theirs(torch.from_numpy(x[:8])), torch.from_numpy(y[:8])).backward()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter -= 0.1 * parameter.grad
        expected = torch.softmax(theirs(torch.from_numpy(x)), 1).numpy()
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [FIXED, LATER, pytest.param(DYNAMO, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_factors_that_are_no_parameters_do_not_train(affine: bool, fresh: bool, way: str) -> None:
    """Two normalisations, because the newer exporter merges tensors of equal numbers."""
    network = nn.Sequential(nn.BatchNorm2d(3, affine=affine), nn.ReLU(), nn.BatchNorm2d(3, affine=affine), Means())
    if not fresh:
        network(torch.randn(16, *SHAPE))
    found = load(exported(network.eval(), way))
    kernels = [node.operator.kernel for node in found.nodes if isinstance(node.operator.kernel, BatchNorm)]
    assert len(kernels) == 2
    for kernel in kernels:
        rates = kernel.weight_learning_rate_multiplier, kernel.bias_learning_rate_multiplier
        assert rates == ((1.0, 1.0) if affine else (0.0, 0.0))


def test_they_keep_their_values() -> None:
    network = load(exported(made("no factors"), FIXED))
    _, _, examples = data()
    with context(trainable(network), data=examples, kernels="reference") as run:
        run.train(3)
        (weights,) = (value for name, value in run.variables.items() if value.shape == (3,) and "weights" in name)
        assert (weights == 1).all()


@KERNELS
def test_a_network_without_variables(kernels: str) -> None:
    proto = exported(nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), Means()).eval(), FIXED)
    x, _, _ = data()
    with Predictor(load(proto), system=SystemConf(kernels=kernels)) as predictor:
        np.testing.assert_allclose(predictor.predict(x), run_onnx(proto, x=x), rtol=1e-6)
