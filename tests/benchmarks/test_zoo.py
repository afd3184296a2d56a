from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import zoo
from benchmarks.contest import ContestError
from benchmarks.crossbow_runner import CrossbowRunner
from benchmarks.networks import NETWORKS, Network
from benchmarks.torch_network import torch_network
from benchmarks.torch_runner import TorchRunner
from benchmarks.zoo import MANY, ONE, TORCH, Row
from benchmarks.zoo_networks import EXAMPLES, LARGE_EXAMPLES, is_large, network_named, torch_problem
from crossbow import Dataflow
from crossbow.ops import Conv, InnerProduct
from crossbow.scripts import ModelDescription
from models.layers import add, auxiliary_classifier, classifier
from models.listing import descriptions
from tests.benchmarks.test_learners import TORCH as HAS_TORCH

SMALL = ModelDescription("mlp (8)", "python -m models.mlp --hidden 8", 6370, (1, 28, 28), "")
LARGE = ModelDescription("vgg (a)", "python -m models.vgg --variant a", 132_863_336, (3, 224, 224), "")
TEXT = ModelDescription("text", "python -m models.transformer", 437_856, (64,), "")
RATINGS = ModelDescription("ratings", "python -m models.matrix_factorisation --users 9", 50_090, (2,), "")


@pytest.mark.slow
def test_networks_are_found_by_their_command() -> None:
    assert network_named("lenet-caffe") is NETWORKS["lenet-caffe"]
    network = network_named(SMALL.command)
    assert (network.parameters, network.image_shape, network.examples) == (6370, (1, 28, 28), EXAMPLES)
    assert network.build().parameters((1, 1, 28, 28)) == 6370
    assert network_named(LARGE.command).examples == LARGE_EXAMPLES
    ratings = network_named(RATINGS.command)
    assert ratings.data is not None
    images = ratings.data().train.images
    assert images.shape[1:] == (2,)
    assert np.max(images[:, 0]) == 8  # of 9 users


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_networks_without_an_equivalent_are_named() -> None:
    assert torch_problem(SMALL) == ""
    assert "MatFact" in torch_problem(RATINGS)


def two_losses() -> Dataflow:
    """A classifier with an auxiliary one."""
    conv = add("conv", Conv(number_of_outputs=4, kernel_size=3))
    logits, others = (add(name, InnerProduct(number_of_outputs=10), conv) for name in ("ip", "other"))
    auxiliary_classifier("auxiliary", others, 0.25)
    return classifier(conv, logits)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_pytorch_trains_with_several_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, 8, 8)
    parameters = two_losses().parameters((1, *shape))
    network = Network(parameters, shape, 4, two_losses, lambda: torch_network(two_losses(), shape), (), {})
    monkeypatch.setitem(NETWORKS, "two", network)
    runner = TorchRunner("two", 4, 1, 1)
    now, model = time.monotonic(), runner.trainings[0].model
    before = [parameter.clone() for parameter in model.parameters()]
    assert runner.run(now, now + 0.01) > 0
    assert all(not old.equal(new) for old, new in zip(before, model.parameters(), strict=True))
    assert runner.peak_memory() is None or runner.peak_memory() > 1e7  # type: ignore[operator]


def test_crossbow_trains() -> None:
    runner = CrossbowRunner(RATINGS.command, 64, 1, 1, "reference")
    now = time.monotonic()
    assert runner.run(now, now + 0.01) > 0
    runner.close()


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], [SMALL.name, LARGE.name, RATINGS.name]),
        (["vgg"], [LARGE.name]),
        (["ratings", "mlp (8)"], [SMALL.name, RATINGS.name]),
        (["*(?)"], [SMALL.name, LARGE.name]),
    ],
)
def test_networks_are_chosen_by_name(patterns: Sequence[str], names: Sequence[str]) -> None:
    assert [model.name for model in zoo.chosen(patterns, [SMALL, LARGE, RATINGS])] == names


@pytest.mark.slow
def test_a_name_of_no_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"of mlp, vgg, ratings\. Received: 'lenett'"):
        zoo.chosen(["vgg", "lenett"], [SMALL, LARGE, RATINGS])
    with pytest.raises(SystemExit):
        zoo.main(["--networks", "lenett"])
    assert "--networks: expected a name of `crossbow models`" in capsys.readouterr().err


@pytest.mark.slow
def test_batches() -> None:
    options = zoo.parse(["--batch", "16", "--large-batch", "2"])
    assert [zoo.batch_of(described, options) for described in (SMALL, LARGE, RATINGS, TEXT)] == [16, 2, 4096, 16]
    assert len(options.networks) == len(descriptions())
    assert not is_large(SMALL)


@pytest.fixture
def row() -> Row:
    rates = {ONE: [10.0, 20.0, 30.0], MANY: [300.0, 200.0, 1200.0], TORCH: [100.0, 100.0, 300.0]}
    return zoo.row(SMALL, 16, rates, {ONE: 1, MANY: 250_000_000, TORCH: 400_000_000}, 0.05)


@pytest.fixture
def alone() -> Row:
    return zoo.row(RATINGS, 4096, {ONE: [5.0], MANY: [7.25]}, {ONE: None, MANY: None}, None)


def test_ratios_are_paired(row: Row, alone: Row) -> None:
    assert (row.one_learner, row.learners, row.pytorch, row.ratio) == (20.0, 300.0, 100.0, 3.0)  # of 3, 2 and 4
    assert (alone.pytorch, alone.ratio, alone.pytorch_memory) == (None, None, None)


def test_the_table_and_the_file(row: Row, alone: Row, tmp_path: Path) -> None:
    lines = zoo.table([row, alone]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert cells == [
        ["mlp (8)", "16", "6,370", "20.0", "300", "100", "3.00", "250 MB", "400 MB"],
        ["ratings", "4096", "50,090", "5.0", "7.2", "–", "–", "–", "–"],
    ]
    zoo.write_csv(tmp_path / "zoo.csv", [row, alone])
    with (tmp_path / "zoo.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read[0]["ratio"] == "3.0"
    assert read[1] | {"network": "ratings", "ratio": "", "memory": ""} == read[1]


@pytest.mark.slow
def test_a_network_that_fails_does_not_end_the_run(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(described: ModelDescription, *arguments: Any, **options: Any) -> Row:
        if described.name.startswith("lenet (caffe"):
            raise ContestError("no memory")
        return row

    monkeypatch.setattr(zoo, "measure", measure)
    path = tmp_path / "zoo.csv"
    assert zoo.main(["--networks", "lenet", "--no-torch", "--csv", str(path)]) == 1
    printed = capsys.readouterr()
    assert "lenet (caffe): not measured: no memory" in printed.err
    assert len(path.read_text().splitlines()) == 1 + 2
    assert zoo.main(["--networks", "mlp", "--no-torch"]) == 0


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zoo.csv"
    options = ["--networks", "logistic_regression", "--rounds", "1", "--seconds", "0.05", "--csv", str(path)]
    assert zoo.main(options) == 0
    assert "| logistic_regression | 32 " in capsys.readouterr().out
    with path.open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert float(found["learners"]) > 0
    assert bool(found["ratio"]) == HAS_TORCH
    assert not found["ratio"] or math.isfinite(float(found["ratio"]))
