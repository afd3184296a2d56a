from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crossbow import MSRA, ConfigurationError
from crossbow.ops import Conv, Dropout, InnerProduct
from models.wide_resnet import SCRIPT, main, wide_resnet
from tests.models.zoo import check_export, check_kernels, check_learning, help_of, kernels, parameters, shapes

CIFAR = (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("depth", "width", "classes", "published"),
    # The paper's tables 4 and 5, in millions: 2.7 (16-4: 2.75 in the authors' list), 36.5.
    [(16, 4, 10, 2_748_890), (28, 10, 10, 36_479_194), (28, 10, 100, 36_536_884)],
)
def test_number_of_parameters(depth: int, width: int, classes: int, published: int) -> None:
    assert parameters(wide_resnet(depth, width, number_of_outputs=classes), CIFAR) == published


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 4), (28, 10)])
def test_shapes(depth: int, width: int) -> None:
    found = shapes(wide_resnet(depth, width), CIFAR)
    units = (depth - 4) // 6
    for stage, (features, size) in enumerate([(16, 32), (32, 16), (64, 8)], start=1):
        for unit in range(1, units + 1):
            assert found[f"unit{stage}-{unit}-sum"] == (2, features * width, size, size)
        assert f"unit{stage}-{units + 1}-sum" not in found
    assert found["ip"] == (2, 10)


def test_layers() -> None:
    """Normalisation and ReLU come before the convolutions; the shortcuts of changed widths are convolutions."""
    found = kernels(wide_resnet(16, 4, dropout=0.3))
    assert [name for name in found if name.startswith("unit1-1")] == [
        "unit1-1-norm1", "unit1-1-relu1", "unit1-1-conv1", "unit1-1-norm2", "unit1-1-relu2", "unit1-1-dropout",
        "unit1-1-conv2", "unit1-1-shortcut", "unit1-1-sum",
    ]  # fmt: skip
    assert [name for name in found if "shortcut" in name] == [f"unit{stage}-1-shortcut" for stage in (1, 2, 3)]
    layers = [kernel for name, kernel in found.items() if isinstance(kernel, Conv | InnerProduct)]
    assert len(layers) == 16 + 1, "the depth counts convolutions"
    assert {layer.weight_initialiser for layer in layers} == {MSRA()}
    assert sum(isinstance(kernel, Dropout) for kernel in found.values()) == 6
    assert not any(isinstance(kernel, Dropout) for kernel in check_kernels(wide_resnet(dropout=0.3)))
    assert not any(isinstance(kernel, Dropout) for kernel in kernels(wide_resnet()).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 20}, "depth must be 6n + 4, at least 10: 16, 22, 28, 40, …. Received: 20"),
        ({"depth": 4}, "Received: 4"),
        ({"width": 0}, "width must be an integer ≥ 1. Received: 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        wide_resnet(**options)
    assert message in str(error.value)


@pytest.mark.slow
def test_it_learns() -> None:
    check_learning(wide_resnet(10, 2, number_of_outputs=2), (3, 16, 16), learning_rate=0.02, epochs=10)


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    check_export(wide_resnet(number_of_outputs=2), (3, 16, 16), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("(default: 60,120,160)", "(default: nesterov with sgd", "(default: 0.0005)", "(default: 128)"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--depth 10 --width 2 --dataset synthetic --image-shape 3,16,16 --classes 4 --training-examples 16"
    more = f"--test-examples 8 --batch-size 8 --epochs 1 --learners 1 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    assert "wide_resnet (10-2), " in capsys.readouterr().out
