from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import ConfigurationError
from crossbow.ops import BatchNorm, Conv, Pool
from models.inception_bn import SCRIPT, VARIANTS, inception_bn, main
from tests.models.zoo import check_descent, check_export, help_of, kernels, parameters, shapes

CIFAR, IMAGENET = (2, 3, 32, 32), (2, 3, 224, 224)
SMALL = {"imagenet": (3, 48, 48), "small": (3, 16, 16)}


def test_number_of_parameters() -> None:
    assert parameters(inception_bn(), IMAGENET) == 11_295_240
    assert parameters(inception_bn("small"), CIFAR) == 1_652_826


def test_shapes() -> None:
    """Figure 5 of the paper, whose modules 3c and 4e halve the image."""
    found = shapes(inception_bn(), IMAGENET)
    for name, channels, size in (
        ("pool1", 64, 56),
        ("pool2", 192, 28),
        ("module3a-concat", 256, 28),
        ("module3b-concat", 320, 28),
        ("module3c-concat", 576, 14),
        ("module4d-concat", 608, 14),
        ("module4e-concat", 1056, 7),
        ("module5b-concat", 1024, 7),
    ):
        assert found[name] == (2, channels, size, size)
    assert found["ip"] == (2, 1000)


def test_shapes_of_small() -> None:
    found = shapes(inception_bn("small"), CIFAR)
    for name, channels, size in (
        ("conv1", 96, 32),
        ("module3b-concat", 80, 32),
        ("module3c-concat", 160, 16),
        ("module4d-concat", 144, 16),
        ("module4e-concat", 240, 8),
        ("module5b-concat", 336, 8),
    ):
        assert found[name] == (2, channels, size, size)
    assert found["ip"] == (2, 10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers(variant: str) -> None:
    """As MXNet's, convolutions have a bias in spite of the normalisation after each."""
    found = kernels(inception_bn(variant))
    convolutions = [name for name, kernel in found.items() if isinstance(kernel, Conv)]
    assert all(found[name].bias for name in convolutions)  # type: ignore[attr-defined]
    assert [name for name, kernel in found.items() if isinstance(kernel, BatchNorm)] == [
        f"{name}-norm" for name in convolutions
    ]


def test_the_last_module_takes_the_maximum() -> None:
    found = kernels(inception_bn())
    pools = [kernel.method for name, kernel in found.items() if isinstance(kernel, Pool) and "module" in name]
    assert pools == ["average", "average", "max", "average", "average", "average", "average", "max", "average", "max"]


def test_unknown_variant() -> None:
    with pytest.raises(ConfigurationError, match=r"variant must be one of imagenet, small\. Received: 'large'"):
        inception_bn("large")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns(variant: str) -> None:
    check_descent(inception_bn(variant, number_of_outputs=2), SMALL[variant], learning_rate=0.01, tasks=8)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_export(variant: str, tmp_path: Path) -> None:
    check_export(inception_bn(variant, number_of_outputs=2), SMALL[variant], tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for variant, parts in {
        "imagenet": ("(default: 3,224,224)", "(default: 32)", "(default: 0.01)", "1e-05"),
        "small": ("(default: 20 with cifar10, 20 with cifar100", "(default: 128)", "(default: 0.05 with sgd"),
    }.items():
        text = help_of(SCRIPT, ["--variant", variant], capsys)
        assert [part for part in parts if part not in text] == []


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--variant small --dataset synthetic --image-shape 3,16,16 --training-examples 16 --test-examples 8"
    assert main([*arguments.split(), *f"--batch-size 8 --epochs 1 --output-directory {tmp_path}".split()]) == 0
    assert "inception_bn (small), 1,652,826 parameters" in capsys.readouterr().out
