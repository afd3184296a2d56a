"""The example of transfer learning: on a small network, and on torchvision's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

import crossbow.onnx
from benchmarks.torchvision_import import import_torchvision
from crossbow import ExecutionContext, ModelConf, Sequential, SolverConf
from crossbow.data import synthetic
from crossbow.ops import Conv, Flatten, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
from examples.transfer_learning import main, train, with_new_head

MISSING = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]


def trained(path: Path) -> dict[str, Any]:
    """Train a network of five classes, whose nodes have the names of an export, and write it. Returns its variables."""
    network = Sequential(
        ("/conv", Conv(12, 5, stride=2)),
        ("/relu", ReLU()),
        ("/pool", Pool()),
        ("/Flatten", Flatten()),
        ("/fc", InnerProduct(5)),
        SoftMax(),
        SoftMaxLoss(),
    )
    data = synthetic((3, 32, 32), number_of_classes=5, training=160, check=40)
    solver = SolverConf(learning_rate=0.02)
    with ExecutionContext(network, data=data, model=ModelConf(batch_size=8), solver=solver, monitors=()) as context:
        context.train(3)
        crossbow.onnx.save(context, path)
        return context.variables


def test_the_head_is_new_and_the_features_are_the_imported_ones(tmp_path: Path) -> None:
    before = trained(tmp_path / "network.onnx")
    data = synthetic((3, 32, 32), training=160, check=40)
    network = with_new_head(crossbow.onnx.load(tmp_path / "network.onnx"), 10).freeze("/*")
    with ExecutionContext(network, data=data, model=ModelConf(batch_size=8), monitors=()) as context:
        first = context.variables
        context.train(1)
        after = context.variables
    for name in ("/conv.weights", "/conv.bias"):
        np.testing.assert_array_equal(after[name], before[name])
    assert first["head.weights"].shape == (10, 12 * 7 * 7)
    assert not np.array_equal(after["head.weights"], first["head.weights"])
    assert not any(name.startswith("/fc") for name in after)


def test_both_stages_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "network.onnx")
    imported = crossbow.onnx.load(tmp_path / "network.onnx")
    data = synthetic((3, 32, 32), training=320, check=100)
    assert train(imported, data, epochs=3, batch_size=8) > 0.5
    printed = capsys.readouterr().out
    assert "\n6,802 parameters (27.2 kB), 912 of them frozen; " in printed
    losses = [float(line.split()[3]) for line in printed.splitlines() if line.startswith("epoch")]
    assert len(losses) == 6
    assert losses[5] < losses[2] < losses[0]  # the second stage goes on where the first ended


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed, of torch and torchvision: {', '.join(MISSING)}")
def test_a_resnet_of_torchvision(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With random weights, as where nothing can be downloaded."""

    def unreachable(*arguments: Any, **more: Any) -> Any:
        raise URLError("unreachable")

    import_torchvision("models")
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    assert main(["--synthetic"]) == 0
    printed = capsys.readouterr().out
    assert "random weights, because the trained ones cannot be downloaded: <urlopen error unreachable>" in printed
    assert "11,181,642 parameters (44.7 MB), 11,176,512 of them frozen" in printed
    assert printed.count("\nepoch 1/1  ") == 2
    assert "\ntest accuracy " in printed
