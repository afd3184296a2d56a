"""`--initial-model` and `--except` of the scripts."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import pytest

from crossbow import DataflowNode, Operator, SubGraph
from crossbow.data import synthetic
from crossbow.dataflow import Dataflow
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.scripts.initial_model import digest_of_initial_model
from models.logistic_regression import SCRIPT
from tests.support import context

pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'crossbow[zoo]'")


def saved(path: Path, size: int) -> Path:
    """A model with the script's operator, for images of another size, and with another classifier."""
    head = DataflowNode(Operator("InnerProduct", InnerProduct(number_of_outputs=10)))
    node = head.connect_to(DataflowNode(Operator("SoftMax", SoftMax())))
    node.connect_to(DataflowNode(Operator("Loss", SoftMaxLoss())))
    with context(Dataflow(SubGraph(head)), data=synthetic((1, size, size), 10, training=20, check=10)) as running:
        running.save(path)
    return path


def run(directory: Path, *options: str) -> int:
    fixed = ["--epochs", "1", "--kernels", "reference", "--learners", "1", "--overwrite"]
    return SCRIPT.main([*fixed, "--output-directory", str(directory / "out"), *options])


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines about the initial model."""
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("initial"))
    return lines[first : lines.index("", first)]


@pytest.mark.slow
def test_what_fits_is_taken_and_the_rest_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, other = saved(tmp_path / "same", 28), saved(tmp_path / "other", 8)
    assert run(tmp_path, "--initial-model", str(same)) == 0
    assert printed(capsys) == [f"initial  2 of 2 variables from {same}"]
    assert run(tmp_path, "--initial-model", str(other)) == 0
    weights = "InnerProduct.weights: the model (10, 784), the file (10, 64)"
    assert printed(capsys) == [f"initial  1 of 2 variables from {other}", f"         not {weights}"]
    assert run(tmp_path, "--initial-model", str(same), "--except", "*.bias", "--except", "zero*") == 2
    assert "Received: 'zero*', which matches none" in capsys.readouterr().err
    assert run(tmp_path, "--initial-model", str(same), "--except", "*.bias") == 0
    bias = "InnerProduct.bias: the model (10,), the file (10,) (excluded by '*.bias')"
    assert printed(capsys) == [f"initial  1 of 2 variables from {same}", f"         not {bias}"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--except", "ip*"], "--except does nothing without --initial-model. Received: --except ip*"),
        (["--initial-model", "none"], "none: expected a saved model. Received: no such file"),
        (["--initial-model", "."], "expected the directory of a run, with best.safetensors or model.safetensors"),
    ],
)
def test_bad_input(
    options: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, *options) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_training_begins_with_these_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script's own model, trained on: the first loss is lower than that of a new one."""
    assert run(tmp_path) == 0
    first = capsys.readouterr().out
    from crossbow import ExecutionContext, ModelConf, SolverConf, SystemConf
    from crossbow.data import digits

    head = DataflowNode(Operator("InnerProduct", InnerProduct(number_of_outputs=10)))
    node = head.connect_to(DataflowNode(Operator("SoftMax", SoftMax())))
    node.connect_to(DataflowNode(Operator("Loss", SoftMaxLoss())))
    with ExecutionContext(
        [Dataflow(SubGraph(head)), None],
        data=digits(),
        model=ModelConf(batch_size=8),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(learners_per_device=1, kernels="reference"),
    ) as running:
        running.train(3, verbose=0)
        running.save(tmp_path / "trained")
    assert run(tmp_path, "--initial-model", str(tmp_path / "trained")) == 0
    second = capsys.readouterr().out
    assert loss_of(second) < 0.8 * loss_of(first)


def loss_of(text: str) -> float:
    """The training loss of the first epoch."""
    line = next(line for line in text.splitlines() if line.startswith("epoch 1"))
    return float(line.split("  loss ")[1].split()[0])


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    """By which ranks see that they begin with the same model."""

    def digest(path: Path | None) -> str | None:
        return digest_of_initial_model(argparse.Namespace(initial_model=path))

    (tmp_path / "best.safetensors").write_bytes(b"model")
    (tmp_path / "other").write_bytes(b"another")
    in_directory = digest(tmp_path)
    assert in_directory == digest(tmp_path / "best.safetensors") == hashlib.sha256(b"model").hexdigest()[:16]
    assert in_directory != digest(tmp_path / "other")
    assert digest(tmp_path / "nowhere") == "unreadable"
    assert digest(None) is None
