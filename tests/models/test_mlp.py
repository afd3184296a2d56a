from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import ConfigurationError, Xavier
from crossbow.ops import InnerProduct, ReLU
from models.mlp import SCRIPT, main, mlp
from tests.models.zoo import check_export, check_learning, help_of, kernels, parameters, shapes

MNIST = (2, 1, 28, 28)


def test_number_of_parameters() -> None:
    assert parameters(mlp(), MNIST) == 14_205_962
    assert parameters(mlp((512, 512)), MNIST) == 669_706
    assert parameters(mlp(()), MNIST) == 7_850


def test_shapes() -> None:
    found = shapes(mlp(), MNIST)
    assert [found[f"ip{number}"] for number in (1, 2, 3, 4)] == [(2, 2048), (2, 4096), (2, 1024), (2, 10)]


def test_activations() -> None:
    for activation in ("sigmoid", "relu", "tanh"):
        found = kernels(mlp((8, 8), activation=activation)).values()
        assert [kernel.mode for kernel in found if isinstance(kernel, ReLU)] == [activation] * 2
        assert sum(isinstance(kernel, InnerProduct) for kernel in found) == 3


def test_initial_values() -> None:
    """Sigmoids have the slope 1/4 at 0."""
    for activation, gain in (("sigmoid", 4.0), ("relu", 2**0.5), ("tanh", 1.0)):
        found = kernels(mlp((8, 8), activation=activation)).values()
        layers = [kernel.weight_initialiser for kernel in found if isinstance(kernel, InnerProduct)]
        assert layers == [Xavier(norm="average", gain=gain)] * 2 + [Xavier(norm="average")]


@pytest.mark.slow
def test_the_defaults_learn(tmp_path: Path) -> None:
    """Four sigmoids in a row, with the original's learning rate and momentum."""
    assert main(f"--dataset digits --epochs 5 --learners 2 --output-directory {tmp_path}".split()) == 0
    lines = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert max(json.loads(line)["test_accuracy"] for line in lines[1:]) > 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (8, 0)}, r"hidden must be integers ≥ 1\. Received: \(8, 0\)"),
        ({"activation": "step"}, r"activation must be one of sigmoid, relu, tanh\. Received: 'step'"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mlp(**options)  # type: ignore[arg-type]


def test_it_learns() -> None:
    check_learning(mlp((64, 32), number_of_outputs=2), (1, 12, 12), learning_rate=0.03, epochs=20)


def test_export(tmp_path: Path) -> None:
    check_export(mlp((64, 32), number_of_outputs=2), (1, 12, 12), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("(default: 2048,4096,1024)", "(default: 64)", "(default: 0.1)", "(default: sigmoid)"):
        assert part in text


def test_wrong_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--hidden", "512,x"])
    assert end.value.code == 2
    assert "expected integers ≥ 1, as 512,512. Received: '512,x'" in capsys.readouterr().err


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--hidden 512,512 --dataset synthetic --training-examples 32 --test-examples 8 --epochs 1 --learners 1"
    assert main([*arguments.split(), "--batch-size", "8", "--output-directory", str(tmp_path)]) == 0
    assert "mlp (512-512), 669,706 parameters" in capsys.readouterr().out
