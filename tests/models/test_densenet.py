from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import MSRA, ConfigurationError
from crossbow.ops import Conv, InnerProduct
from models.densenet import NETWORKS, SCRIPT, densenet, main
from tests.models.zoo import check_descent, check_export, help_of, kernels, parameters, shapes

CIFAR, IMAGENET = (2, 3, 32, 32), (2, 3, 224, 224)


def test_number_of_parameters() -> None:
    """Table 2 of the paper: 0.8 million; torchvision's num_params."""
    assert parameters(densenet(), CIFAR) == 769_162
    assert parameters(densenet(121), IMAGENET) == 7_978_856


def test_shapes() -> None:
    found = shapes(densenet(), CIFAR)
    assert [found[f"layer{block}-16-concat"][1:] for block in (1, 2, 3)] == [(216, 32, 32), (300, 16, 16), (342, 8, 8)]
    assert [found[f"transition{number}-pool"][1:] for number in (1, 2)] == [(108, 16, 16), (150, 8, 8)]
    assert found["ip"] == (2, 10)


def test_shapes_for_imagenet() -> None:
    """Table 1 of the paper."""
    found = shapes(densenet(121), IMAGENET)
    assert (found["conv"], found["pool0"]) == ((2, 64, 112, 112), (2, 64, 56, 56))
    ends = [f"layer{block}-{layers}-concat" for block, layers in enumerate(NETWORKS[121].layers, start=1)]
    assert [found[name][1:] for name in ends] == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (1024, 7, 7)]
    assert found["ip"] == (2, 1000)


@pytest.mark.parametrize("depth", NETWORKS)
def test_layers(depth: int) -> None:
    found = kernels(densenet(depth))
    layers = [kernel for kernel in found.values() if isinstance(kernel, Conv | InnerProduct)]
    assert len(layers) == depth
    assert {layer.weight_initialiser for layer in layers if isinstance(layer, Conv)} == {MSRA()}
    assert [name for name in found if name.startswith("layer2-1-")] == [
        "layer2-1-norm1", "layer2-1-relu1", "layer2-1-conv1", "layer2-1-norm2", "layer2-1-relu2", "layer2-1-conv2",
        "layer2-1-concat",
    ]  # fmt: skip


def test_wrong_depth() -> None:
    with pytest.raises(ConfigurationError, match=r"depth must be one of 100, 121\. Received: 101"):
        densenet(101)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "size"), [(100, 16), (121, 32)])
def test_it_learns(depth: int, size: int) -> None:
    check_descent(densenet(depth, number_of_outputs=2), (3, size, size), learning_rate=0.02, tasks=8)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "size"), [(100, 16), (121, 64)])
def test_export(depth: int, size: int, tmp_path: Path) -> None:
    check_export(densenet(depth, number_of_outputs=2), (3, size, size), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for depth, parts in {
        "100": ("(default: 300 with cifar10", "(default: 64)", "(default: 150,225)", "(default: nesterov with sgd"),
        "121": ("(default: 3,224,224)", "(default: 256)", "(default: 30,60)", "(default: 1,000)"),
    }.items():
        text = help_of(SCRIPT, ["--depth", depth], capsys)
        assert [part for part in parts if part not in text] == []


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,16,16 --training-examples 16 --test-examples 8"
    assert main([*arguments.split(), *f"--batch-size 8 --epochs 1 --output-directory {tmp_path}".split()]) == 0
    assert "densenet (100, growth 12), 769,162 parameters" in capsys.readouterr().out
