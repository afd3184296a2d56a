"""The comparison of predictions: all predict the same, and the table says what is met."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import inference
from benchmarks.inference import CROSSBOW, ONNXRUNTIME, PYTORCH, CrossbowRunner, OnnxRunner, row, save_models

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.mark.slow
def test_both_predict_with_the_same_model(tmp_path: Path) -> None:
    ours, theirs = map(str, save_models("lenet", tmp_path))
    first, second = CrossbowRunner((1, 28, 28), ours), OnnxRunner((1, 28, 28), theirs)
    try:
        for runner in (first, second):
            runner.use(5)
        (expected,) = second.session.run(None, {second.name: second.images})
        np.testing.assert_allclose(first.predictor(first.images), expected, rtol=1e-4, atol=1e-5)
        assert len({tuple(image) for image in expected.round(6).tolist()}) == 5
        assert min(runner.run(0, 0) for runner in (first, second)) > 0
    finally:
        first.close()


def test_a_row_compares_with_the_faster() -> None:
    rates = {CROSSBOW: [30.0, 10.0, 20.0], ONNXRUNTIME: [10.0, 10.0, 10.0], PYTORCH: [20.0, 20.0, 40.0]}
    assert row("net", 8, rates) == ["net", "8", "20", "10", "20", "0.50 (0.50–1.50) MISSED 1.0"]
    assert row("net", 1, rates | {PYTORCH: [1.0, 1.0, 1.0]})[-1] == "2.00 (1.00–3.00) met"
    assert row("net", 4, rates)[-1] == "0.50 (0.50–1.50)"
    assert row("net", 4, {CROSSBOW: [1.0]}) == ["net", "4", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "resnet-32", "resnet-50"])
def test_pytorch_has_the_same_network(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if name == "resnet-50":
        pytest.importorskip("PIL", reason="torchvision needs Pillow")
        try:
            module = inference.MEASURED[name].torch()
        except ModuleNotFoundError:
            pytest.skip("torchvision is not installed")
    else:
        module = inference.MEASURED[name].torch()
    network = inference.MEASURED[name]
    parameters = sum(parameter.numel() for parameter in module.parameters())
    assert parameters == network.build().parameters((1, *network.image_shape))


@pytest.mark.slow
def test_the_whole_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--networks", "lenet", "--batches", "1", "8", "--rounds", "1", "--seconds", "0.05"]
    inference.main([*options, "--json", str(tmp_path / "x.json")])
    assert "| lenet   | 8     |" in capsys.readouterr().out
    assert (tmp_path / "x.json").is_file()
