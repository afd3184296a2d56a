"""The accuracy among the K most probable classes, from the option to the saved model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import Record, cli
from models import logistic_regression
from models.mlp import main


def test_it_is_reported_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--hidden", "16", "--dataset", "digits", "--epochs", "1", "--learners", "1"]
    options = ["--output-directory", str(tmp_path), *size, "--top-k", "3"]
    assert main(options) == 0
    test = Record.of_numbers(json.loads((tmp_path / "log.jsonl").read_text("utf-8").splitlines()[-1])).test
    assert test is not None
    assert test.accuracy is not None
    assert test.accuracy < test.metrics["top-3"] < 1
    assert f"  top-3 {test.metrics['top-3']:.4f}  " in capsys.readouterr().out
    assert cli.main(["test", str(tmp_path / "model.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(dict(test.metrics))
    assert main([*options[:-1], "11", "--overwrite"]) == 2
    assert "top-11' (Accuracy): expected at least top_k=11 classes. Received: 10" in capsys.readouterr().err
    assert logistic_regression.main(["--top-k", "3"]) == 2
    assert "--top-k: expected a network with an accuracy" in capsys.readouterr().err
