"""`crossbow export`."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import Predictor, SubGraph, cli
from crossbow.onnx import save
from crossbow.ops import ReLU
from tests.onnx.models import run_onnx
from tests.scripts.saved_models import run
from tests.support import chain


def test_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another runtime predicts the same."""
    run(tmp_path)
    out = tmp_path / "deep" / "network.onnx"
    assert cli.main(["export", str(tmp_path), "--onnx", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    pixels = np.load(tmp_path / "images.npy").astype(np.float32) / np.float32(255)
    received = run_onnx(onnx.load(out), input=pixels)
    np.testing.assert_allclose(received, np.load(tmp_path / "predictions.npy"), rtol=1e-5, atol=1e-6)


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    assert cli.main(["export", str(tmp_path / "none"), "--onnx", str(tmp_path / "x.onnx")]) == 2
    assert "expected a saved model. Received: no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["export", str(tmp_path), "--onnx", str(tmp_path)])
    assert "expected the name of a file to write. Received: a directory" in capsys.readouterr().err


def test_without_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    before = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "crossbow.onnx":
            raise ModuleNotFoundError(name)
        return before(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert cli.main(["export", str(tmp_path), "--onnx", str(tmp_path / "x.onnx")]) == 2
    assert "--onnx needs the package onnx: pip install 'crossbow[onnx]'" in capsys.readouterr().err


def test_a_predictor_without_a_file(tmp_path: Path) -> None:
    with Predictor(SubGraph(chain(ReLU())[0])) as predictor, pytest.raises(TypeError, match="with a model from a file"):
        save(predictor, tmp_path / "x.onnx")
