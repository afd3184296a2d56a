from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import Gaussian
from crossbow.ops import Conv, DataTransform, Dropout, InnerProduct
from models.overfeat import SCRIPT, main, overfeat
from tests.models.zoo import check_descent, check_export, check_kernels, help_of, kernels, parameters, shapes

IMAGENET = (2, 3, 231, 231)


def test_number_of_parameters() -> None:
    assert parameters(overfeat(), IMAGENET) == 145_920_872


def test_shapes() -> None:
    """Table 1 of the paper: 24, 12, 12, 12 and 12 pixels go into layers 2 to 6, the last after pooling."""
    found = shapes(overfeat(), IMAGENET)
    assert [found[f"conv{number}"][1:] for number in range(1, 6)] == [
        (96, 56, 56), (256, 24, 24), (512, 12, 12), (1024, 12, 12), (1024, 12, 12),
    ]  # fmt: skip
    assert found["pool5"] == (2, 1024, 6, 6)
    assert [found[f"ip{number}"] for number in (6, 7, 8)] == [(2, 3072), (2, 4096), (2, 1000)]


def test_layers() -> None:
    found = kernels(overfeat())
    layers = [kernel for kernel in found.values() if isinstance(kernel, Conv | InnerProduct)]
    assert [layer.weight_initialiser for layer in layers] == [Gaussian(std=0.01)] * 8
    assert [name for name in found if "drop" in name] == ["dropout6", "dropout7"]
    assert "dropout6" not in kernels(overfeat(dropout=0))
    assert not any(isinstance(kernel, Dropout) for kernel in check_kernels(overfeat()))


@pytest.mark.slow
def test_it_learns() -> None:
    dataflow = overfeat(dropout=0, number_of_outputs=2, transform=DataTransform(mean=0.5, scale=255.0))
    check_descent(dataflow, (3, 71, 71), learning_rate=0.003, tasks=8, fraction=0.996)


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    dataflow = overfeat(number_of_outputs=2, transform=DataTransform(mean=0.5, scale=255.0))
    check_export(dataflow, (3, 71, 71), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "(default: 3,231,231)",
        "images are resized (default: 231)",
        "(default: 128)",
        "(default: 0.05 with sgd",
        "(default: 30,50,60,70,80)",
        "1e-05",
    ):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,71,71 --classes 4 --training-examples 8 --test-examples 4"
    more = f"--batch-size 4 --epochs 1 --learners 1 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    assert "overfeat, 31,739,780 parameters" in capsys.readouterr().out
