"""The command `crossbow foreign`."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from crossbow.cli import main

CONFIG = "RULE=BSP\nMODELFILE=tests.foreign.small_models\nMODELCLASS=Regression\nDEVICES=cpu,cpu\n"


def test_a_training_by_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, saved = tmp_path / "bsp.cfg", tmp_path / "model.safetensors"
    config.write_text(CONFIG)
    assert main(["foreign", "--config", str(config), "--save", str(saved)]) == 0
    assert "epoch 2/2 " in capsys.readouterr().out
    shapes = {name: array.shape for name, array in load_file(saved).items()}
    assert shapes == {"model.params0": (3, 6), "model.params1": (3,)}


def test_a_fault_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "bsp.cfg"
    config.write_text(CONFIG.replace("BSP", "ASGD"))
    assert main(["foreign", "--config", str(config)]) == 2
    assert capsys.readouterr().err == "crossbow: error: RULE must be one of BSP, EASGD, GOSGD. Received: ASGD\n"
