"""`crossbow graph`, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import cli
from crossbow.scripts.graph_command import script_of


def test_options_stand_before_and_after_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.dot", tmp_path / "second.dot"
    assert cli.main(["graph", "-o", str(first), "models.lenet", "--variant", "caffe", "--batch-size", "4"]) == 0
    assert cli.main(["graph", "models.lenet", "--variant", "caffe", "--batch-size", "4", "-o", str(second)]) == 0
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    assert "weights 50×20×5×5" in text
    assert capsys.readouterr().out.splitlines()[0] == f"{first}: 431,080 parameters, batches of 4×1×28×28"


def test_the_compiled_network(tmp_path: Path) -> None:
    path = tmp_path / "net.dot"
    small = ["graph", "models.mlp", "--hidden", "8", "-o", str(path)]
    assert cli.main([*small, "--kernels", "reference", "--compiled"]) == 0
    text = path.read_text(encoding="utf-8")
    assert "inner_product_forward" in text
    assert "arena+" in text
    assert "Gradient" not in text
    assert cli.main([*small, "--gradients"]) == 0
    assert "InnerProductGradient" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_numbers_instead_of_classes_are_compiled(tmp_path: Path) -> None:
    path = tmp_path / "net.dot"
    assert cli.main(["graph", "models.matrix_factorisation", "--compiled", "-o", str(path)]) == 0
    assert "MatFact" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("models.resnt", "Received: 'models.resnt'. Did you mean models.resnet?"),
        ("lenet", "Received: 'lenet'. Did you mean models.lenet?"),
        ("json", "expected a module with a model script, as models.resnet. Received: 'json'"),
        ("..", "Received: '..'"),
    ],
)
def test_the_nearest_model_is_offered(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graph", name]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_scripts_are_found_by_module() -> None:
    assert script_of("models.resnet").name == "resnet"
