"""A graph with an auxiliary loss: trained as PyTorch trains the weighted sum, on processors and GPUs, and left out of
tests, prediction and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import SMA, SSGD, ConfigurationError, Dataflow, SolverConf, SubGraph, TrainingUnit
from crossbow.onnx import save
from crossbow.ops import Accuracy, Conv, EuclideanLoss, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.scripts import Defaults, ModelScript
from models.layers import add
from tests.kernels.cuda.fake import fake_cuda
from tests.models.zoo import python_calls
from tests.onnx.models import run_onnx
from tests.support import FAST, NEEDS_ONEDNN, Array, context, pictures

WEIGHT = 0.3
STEPS = 12
DATA = pictures()


def network(weight: float = WEIGHT) -> Dataflow:
    """A convolution that two classifiers read. The auxiliary one is first, with an accuracy that is not reported."""
    head = add("conv", Conv(number_of_outputs=4, kernel_size=3))
    trunk = add("relu", ReLU(), head)
    early = add("aux-softmax", SoftMax(), add("aux-ip", InnerProduct(number_of_outputs=3), trunk))
    add("aux-accuracy", Accuracy(top_k=3), early)
    add("aux-loss", SoftMaxLoss(weight=weight, auxiliary=True), early)
    late = add("ip1", InnerProduct(number_of_outputs=6), add("conv2", Conv(number_of_outputs=4, kernel_size=3), trunk))
    softmax = add("softmax", SoftMax(), add("ip2", InnerProduct(number_of_outputs=3), late))
    add("loss", SoftMaxLoss(), softmax)
    add("accuracy", Accuracy(), softmax)
    return Dataflow(SubGraph(head))


def trajectory(
    tmp_path: Path | None = None, **options: Any
) -> tuple[list[float], list[float | None], dict[str, Array]]:
    """Losses and accuracies of all steps of one learner, and the last variables."""
    solver = SolverConf(learning_rate=0.1, momentum=0.9, weight_decay=1e-3)
    with context(network(), data=DATA, solver=solver, rule=SSGD(), learners=1, batch_size=24, **options) as running:
        records = [running.train(1, TrainingUnit.TASKS).records[-1] for _ in range(STEPS)]
        return [r.loss for r in records], [r.accuracy for r in records], running.variables


def by_pytorch(
    start: dict[str, Array], weight: float, double: bool
) -> tuple[list[float], list[float], dict[str, Array]]:
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    f, dtype = torch.nn.functional, torch.float64 if double else torch.float32
    w = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in start.items()}
    images = torch.tensor(np.asarray(DATA.train.images) / 255.0, dtype=dtype)
    labels = torch.tensor(np.asarray(DATA.train.labels), dtype=torch.int64)
    optimiser = torch.optim.SGD(w.values(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    losses, accuracies = [], []
    for _ in range(STEPS):
        trunk = torch.relu(f.conv2d(images, w["conv.weights"], w["conv.bias"]))
        early = f.linear(trunk.flatten(1), w["aux-ip.weights"], w["aux-ip.bias"])
        late = f.conv2d(trunk, w["conv2.weights"], w["conv2.bias"]).flatten(1)
        late = f.linear(f.linear(late, w["ip1.weights"], w["ip1.bias"]), w["ip2.weights"], w["ip2.bias"])
        loss = f.cross_entropy(late, labels) + weight * f.cross_entropy(early, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        accuracies.append((late.argmax(1) == labels).double().mean().item())
    return losses, accuracies, {name: value.detach().numpy() for name, value in w.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "precision", "tolerance"),
    [("reference", "float64", 1e-9), pytest.param("onednn", "float32", 1e-4, marks=FAST.marks)],
)
def test_pytorch_takes_the_same_steps(kernels: str, precision: str, tolerance: float) -> None:
    with context(network(), data=DATA, learners=1, batch_size=24, kernels=kernels, precision=precision) as running:
        start = running.variables
    losses, accuracies, weights = trajectory(kernels=kernels, precision=precision)
    expected_losses, expected_accuracies, expected = by_pytorch(start, WEIGHT, precision == "float64")
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    np.testing.assert_allclose(accuracies, expected_accuracies)  # type: ignore[arg-type]
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
    assert losses[-1] < losses[0]
    others = by_pytorch(start, 1.0, precision == "float64")[2]
    assert np.abs(others["conv.weights"] - expected["conv.weights"]).max() > 100 * tolerance, "the weight matters"


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("float16", 2e-3)])
def test_gpus_take_the_same_steps(precision: str, tolerance: float) -> None:
    """With float16, the weighted gradients are scaled, too."""
    losses, accuracies, expected = trajectory()
    with fake_cuda(1, 0):
        received = trajectory(devices="cuda:0", kernels="auto", threads=None, precision=precision)
    np.testing.assert_allclose(received[0], losses, rtol=tolerance)
    np.testing.assert_allclose(received[1], accuracies)  # type: ignore[arg-type]
    for name, value in expected.items():
        np.testing.assert_allclose(received[2][name], value, rtol=tolerance, atol=tolerance / 4, err_msg=name)


def test_tests_and_predictions_are_of_the_main_classifier(tmp_path: Path) -> None:
    with context(network(), data=DATA, rule=SMA(), learners=2, kernels="reference") as running:
        record = running.train_and_test(4).records[-1]
        test = running.test()
        assert DATA.check is not None
        images, labels = np.asarray(DATA.check.images), np.asarray(DATA.check.labels)
        predicted = running.predict(images)
        save(running, tmp_path / "network.onnx")
        assert "aux-ip.weights" in running.variables
    assert record.test == test
    assert test.accuracy == pytest.approx((predicted.argmax(axis=1) == labels).mean())
    assert test.loss == pytest.approx(-np.log(predicted[np.arange(len(labels)), labels]).mean(), rel=1e-4)
    proto = onnx.load(tmp_path / "network.onnx")
    assert not any("aux" in node.name for node in proto.graph.node)
    received = run_onnx(proto, input=images.astype(np.float32) / np.float32(255))
    np.testing.assert_allclose(received, predicted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_loss_of_weight_one_half_takes_half_the_step(learners: int) -> None:
    """Of the solver: the loss that is reported is half, in training and tests."""

    def run(weight: float, learning_rate: float) -> tuple[float, float, dict[str, Array]]:
        head = add("ip", InnerProduct(number_of_outputs=3))
        add("loss", SoftMaxLoss(weight=weight), add("softmax", SoftMax(), head))
        solver = SolverConf(learning_rate=learning_rate)
        with context(
            Dataflow(SubGraph(head)), data=DATA, learners=learners, solver=solver, precision="float64"
        ) as running:
            record = running.train_and_test(2).records[-1]
            assert record.test is not None
            return record.loss, record.test.loss, running.variables

    first, second = run(0.5, 0.2), run(1.0, 0.1)
    assert first[0] == pytest.approx(second[0] / 2)
    assert first[1] == pytest.approx(second[1] / 2)
    for name, value in second[2].items():
        np.testing.assert_allclose(first[2][name], value, rtol=1e-9)


@pytest.mark.parametrize("loss", [SoftMaxLoss, EuclideanLoss])
def test_weights_are_above_0(loss: Any) -> None:
    assert (loss().loss_weight, loss().is_auxiliary) == (1.0, False)
    assert (loss(weight=2, auxiliary=True).loss_weight, loss(auxiliary=True).is_auxiliary) == (2.0, True)
    for weight in (0, -1.0, float("inf"), "0.3"):
        with pytest.raises(ConfigurationError, match=r"weight must be .*> 0"):
            loss(weight=weight)
    with pytest.raises(ConfigurationError, match="auxiliary must be"):
        loss(auxiliary=1)


@NEEDS_ONEDNN
def test_a_task_is_one_native_call() -> None:
    head = add("conv", Conv(number_of_outputs=4, kernel_size=3))
    for name, auxiliary in (("early", True), ("late", False)):
        softmax = add(f"{name}-softmax", SoftMax(), add(f"{name}-ip", InnerProduct(number_of_outputs=2), head))
        add(f"{name}-loss", SoftMaxLoss(weight=0.3, auxiliary=auxiliary), softmax)
    assert python_calls(Dataflow(SubGraph(head)), (1, 6, 6)) == []


@pytest.mark.slow
def test_a_script_says_what_its_loss_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = ModelScript(
        name="two",
        title="Trains two classifiers.",
        build=lambda options: network(),
        defaults=Defaults(epochs={"synthetic": 1}, batch_size=8, solver=SolverConf(), image_shape=(1, 8, 8)),
    )
    arguments = "--classes 3 --training-examples 16 --test-examples 8 --learners 1 --kernels reference"
    assert script.main([*arguments.split(), "--output-directory", str(tmp_path)]) == 0
    assert "loss     loss + 0.3 × aux-loss; in tests loss\n" in capsys.readouterr().out
    header = json.loads((tmp_path / "log.jsonl").read_text("utf-8").splitlines()[0])["run"]
    assert header["losses"] == {"loss": 1.0, "aux-loss": 0.3}
