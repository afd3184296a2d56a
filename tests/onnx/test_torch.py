"""A network from PyTorch, through ONNX: the same outputs, and training goes on."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import Dataflow, DataflowNode, ExecutionContext, ModelConf, Operator, SolverConf, SubGraph, SystemConf
from crossbow.onnx import load, save
from crossbow.ops import BatchNorm, Conv, ElementWiseOp, Flatten, InnerProduct, Pool, SoftMax, SoftMaxLoss
from crossbow.types import Shape
from tests.onnx.models import draw, run_onnx
from tests.support import KERNELS, pictures

torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")


def residual_network() -> Any:
    """Convolutions with normalisation, a shortcut, both kinds of pooling, a view."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(channels)
            self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(channels)

        def forward(self, x: Any) -> Any:
            y = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
            return torch.relu(x + y)

    class Network(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(2)
            )
            self.block = Block(8)
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.classifier = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            y = self.pool(self.block(self.stem(x)))
            return self.classifier(y.view(y.size(0), -1))

    torch.manual_seed(1)
    network = Network()
    network(torch.randn(64, 1, 16, 16))  # running statistics of its own
    return network.eval()


def exported(network: Any, *, fold: bool = False, shape: Shape = (2, 1, 16, 16)) -> onnx.ModelProto:
    """By the exporter that needs no further package. `fold=False` keeps the normalisations apart."""
    file, mode = io.BytesIO(), torch.onnx.TrainingMode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is the old one
        torch.onnx.export(
            network,
            (torch.zeros(shape),),
            file,
            dynamo=False,
            input_names=["images"],
            dynamic_axes={"images": {0: "N"}},
            training=mode.EVAL if fold else mode.PRESERVE,
            do_constant_folding=fold,
        )
    return onnx.load_from_string(file.getvalue())


@pytest.mark.slow
@KERNELS
@pytest.mark.parametrize("fold", [False, True])
def test_a_network_from_pytorch_predicts_the_same_and_trains_on(tmp_path: Path, kernels: str, fold: bool) -> None:
    theirs = residual_network()
    network = load(exported(theirs, fold=fold))
    kinds = [type(node.operator.kernel) for node in network.nodes]
    assert [kinds.count(kind) for kind in (Conv, BatchNorm, ElementWiseOp, Pool, Flatten, InnerProduct)] == [
        3,
        0 if fold else 3,
        1,
        2,
        1,
        1,
    ]
    softmax, loss = DataflowNode(Operator("softmax", SoftMax())), DataflowNode(Operator("loss", SoftMaxLoss()))
    network.tail.connect_to(softmax).connect_to(loss)
    dataflow, data = Dataflow(SubGraph(network.head)), pictures(examples=40, size=16)
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=8),
        solver=SolverConf(learning_rate=0.05),
        system=SystemConf(learners_per_device=1, threads_per_learner=1, kernels=kernels),
    ) as context:
        x = data.check.images  # type: ignore[union-attr]
        with torch.no_grad():
            expected = torch.softmax(theirs(torch.from_numpy(x.astype(np.float32) / 255)), 1).numpy()
        np.testing.assert_allclose(context.predict(x), expected, rtol=1e-5, atol=1e-6)
        before = context.test().loss
        history = context.train(5)
        assert context.test().loss < before
        assert history.records[-1].loss < history.records[0].loss
        save(context, tmp_path / "tuned.onnx")
        tuned = run_onnx(onnx.load(tmp_path / "tuned.onnx"), input=x.astype(np.float32) / 255)
        np.testing.assert_allclose(tuned, context.predict(x), rtol=1e-5, atol=1e-6)


def test_layers_one_by_one() -> None:
    """What else PyTorch's exporter writes."""
    nn = torch.nn
    from tests.onnx.models import run_crossbow

    layers = [
        nn.Conv2d(1, 3, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 8, 3, groups=4, padding="same")),
        nn.ConvTranspose2d(1, 4, 3, stride=2, padding=1, output_padding=1),
        nn.Sequential(nn.Conv2d(1, 4, 1), nn.ConvTranspose2d(4, 6, (2, 4), stride=(2, 1), groups=2, bias=False)),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=(2.0, 1.5), mode="bilinear"),
        nn.Upsample(size=(24, 40), mode="bilinear", align_corners=True),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1, dilation=2),
        nn.AdaptiveMaxPool2d(1),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.Softmax(1)),
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(256), nn.LeakyReLU(0.2), nn.Dropout(0.3)),
        nn.Sigmoid(),
        nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(1, 3, 3, padding=1)),
        nn.Sequential(nn.Conv2d(1, 3, 1), nn.PReLU(3)),
        nn.PReLU(),
        nn.Hardsigmoid(),
        nn.Hardswish(),
        nn.SiLU(),
        nn.GELU(),
        nn.GELU(approximate="tanh"),
    ]
    x = draw(3, 1, 16, 16)
    for layer in layers:
        layer.eval()
        with torch.no_grad():
            expected = layer(torch.from_numpy(x)).numpy()
        received = run_crossbow(load(exported(layer)), x)
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5, err_msg=str(layer))
