from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import convnet
from benchmarks.convnet import CROSSBOW, TORCH, Outcome
from benchmarks.convnet_runners import NETWORKS, CrossbowRunner, Network, TorchRunner, Turn, bare, layer_names
from crossbow import Dataflow, Sequential
from crossbow.dataflow.graph import build
from crossbow.ops import LRN, Conv, Dropout, EuclideanLoss, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
from models.layers import classifier
from tests.benchmarks.test_learners import TORCH as HAS_TORCH

NAME = "small"
LAYERS = ("conv1", "norm1", "pool1", "ip1", "ip2")


def small() -> Dataflow:
    """A network with each kind of layer of the benchmarks' chains."""
    layers = [
        ("conv1", Conv(number_of_outputs=8, kernel_size=3)),
        ("relu1", ReLU()),
        ("norm1", LRN()),
        ("pool1", Pool(kernel_size=3, stride=2)),
        ("ip1", InnerProduct(number_of_outputs=16)),
        ("relu2", ReLU()),
        ("dropout", Dropout()),
        ("ip2", InnerProduct(number_of_outputs=1000)),
    ]
    network = Sequential(*layers)
    return classifier(network.head, network.tail)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, NAME, Network(small, (3, 12, 12), 4, 0.5))


def test_dropout_and_softmax_are_left_out() -> None:
    dataflow = bare(small())
    kernels = [type(vertex.kernel) for vertex in build(dataflow.subgraph.nodes)]
    assert kernels == [Conv, ReLU, LRN, Pool, InnerProduct, ReLU, InnerProduct, EuclideanLoss]
    names = layer_names(dataflow)
    assert (names["relu1"], names["relu2"], names["ip2"]) == ("conv1", "ip1", "ip2")


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_networks_keep_their_layers(name: str) -> None:
    network = NETWORKS[name]
    full, left = (
        [type(vertex.kernel) for vertex in build(dataflow.subgraph.nodes)]
        for dataflow in (network.build(), bare(network.build()))
    )
    assert [kind for kind in full if kind in (Conv, InnerProduct, LRN, Pool)] == [
        kind for kind in left if kind in (Conv, InnerProduct, LRN, Pool)
    ]
    assert not {Dropout, SoftMax, SoftMaxLoss}.intersection(left)
    shape = (2, *network.image_shape)
    assert bare(network.build()).parameters(shape) == network.build().parameters(shape)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("learners", [1, 2])
def test_crossbow_times_every_layer(learners: int) -> None:
    runner = CrossbowRunner(NAME, 4, learners, 1)
    try:
        turn = runner.turn(0.0)
        assert runner.peak_memory() is None or runner.peak_memory() > 1e7  # type: ignore[operator]
    finally:
        runner.close()
    assert tuple(turn.layers) == ("batch", *LAYERS, "loss")
    assert all(turn.layers[name][part] > 0 for name in LAYERS for part in (0, 1))
    forward, backward = (sum(times[part] for times in turn.layers.values()) for part in (0, 1))
    assert 0 < forward <= turn.forward
    assert 0 < backward <= turn.backward


@pytest.mark.usefixtures("network")
def test_a_batch_that_learners_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a multiple of 2, the learners\. Received: 3"):
        CrossbowRunner(NAME, 3, 2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("network")
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_pytorch_times_every_layer() -> None:
    turn = TorchRunner(NAME, 4, 1).turn(0.0)
    assert tuple(turn.layers) == (*LAYERS, "loss")
    assert all(turn.layers[name][part] > 0 for name in LAYERS for part in (0, 1))
    for part, whole in enumerate((turn.forward, turn.backward)):
        assert sum(times[part] for times in turn.layers.values()) == pytest.approx(whole, rel=0.2)


def turns(*pairs: tuple[float, float], layers: Mapping[str, tuple[float, float]] | None = None) -> list[Turn]:
    return [Turn(forward, backward, layers or {}) for forward, backward in pairs]


@pytest.fixture
def outcome() -> Outcome:
    ours = turns((1.0, 2.0), (1.0, 1.0), (2.0, 2.0), layers={"batch": (0.5, 0.0), "conv1": (0.25, 0.5)})
    theirs = turns((2.0, 4.0), (1.0, 3.0), (2.0, 3.0), layers={"conv1": (0.5, 1.0), "other": (0.0, 0.125)})
    return Outcome("vgg-a", 64, {CROSSBOW: ours, TORCH: theirs}, {CROSSBOW: 3_200_000_000, TORCH: None})


def test_ratios_are_paired(outcome: Outcome) -> None:
    assert outcome.ratio("total").median == pytest.approx(0.5)  # of 3/6, 2/4 and 4/5
    assert outcome.ratio("total").high == pytest.approx(0.8)
    assert outcome.ratio("forward").median == 1.0  # of 1/2, 1 and 1
    assert outcome.seconds(TORCH, "backward").median == 3.0


def test_targets(outcome: Outcome) -> None:
    assert convnet.verdicts([outcome]) == ["met: vgg-a, batch 64: 0.50 of PyTorch's time (target: at most 0.7)"]
    slower = Outcome("vgg-a", 8, {CROSSBOW: turns((3.0, 5.0)), TORCH: turns((5.0, 5.0))}, {})
    assert convnet.verdicts([slower]) == [
        "MISSED: vgg-a, batch 8: 0.80 of PyTorch's time (target: at most 0.7; it is for batch 64)"
    ]
    assert convnet.verdicts([Outcome("vgg-a", 64, {CROSSBOW: turns((3.0, 5.0))}, {})]) == []


def test_tables(outcome: Outcome) -> None:
    totals = convnet.totals_table([outcome]).splitlines()
    assert [cell.strip() for cell in totals[-1].split("|")[1:-1]] == [
        *("vgg-a", "64", "total", "3,000 (2,000–4,000)", "5,000 (4,000–6,000)", "0.50 (0.50–0.80)"),
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in convnet.layers_table(outcome).splitlines()[2:]]
    assert rows == [
        ["vgg-a", "batch", "500.0", "0.0", "0.0", "0.0", "–"],
        ["vgg-a", "conv1", "250.0", "500.0", "500.0", "1,000.0", "0.50"],
        ["vgg-a", "other", "0.0", "0.0", "0.0", "125.0", "–"],
    ]


def test_memory(outcome: Outcome) -> None:
    assert convnet.memory_line(outcome) == "- vgg-a: Crossbow 3.2 GB"
    assert convnet.memory_line(Outcome("vgg-a", 64, {}, {})) == "- vgg-a: unknown"


def test_without_pytorch_the_tables_have_no_ratio() -> None:
    alone = Outcome("alexnet", 4, {CROSSBOW: turns((1.0, 1.0), layers={"conv1": (1.0, 1.0)})}, {})
    report = convnet.text([alone])
    assert "Targets" not in report
    assert report.count("–") >= 3


@pytest.mark.parametrize(
    "options",
    [["--batch", "0"], ["--rounds", "x"], ["--networks", "lenet"], ["--seconds", "-1"], ["--learners", "3"]],
)
def test_bad_options(options: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        convnet.main(options)
    assert options[0] in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "measured.json"
    assert convnet.main(["--networks", "alexnet", "--batch", "2", "--rounds", "1", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "| alexnet | 2 " in printed
    (outcome,) = json.loads(path.read_text())["outcomes"]
    assert outcome["turns"][CROSSBOW][0]["forward"] > 0
    assert ("met: alexnet" in printed or "MISSED: alexnet" in printed) == HAS_TORCH
