from __future__ import annotations

from pathlib import Path

import pytest

from crossbow.ops import Conv, Dropout, ElementWiseOp, ReLU
from models.mobilenet import SCRIPT, STAGES, main, mobilenet
from tests.models.zoo import check_descent, check_export, check_kernels, help_of, kernels, parameters, shapes

IMAGENET = (2, 3, 224, 224)


def test_number_of_parameters() -> None:
    """torchvision's num_params; the paper's table 4: 3.4 million."""
    assert parameters(mobilenet(), IMAGENET) == 3_504_872


def test_shapes() -> None:
    """Table 2 of the paper."""
    found = shapes(mobilenet(), IMAGENET)
    assert found["conv"] == (2, 32, 112, 112)
    for stage, ((_, outputs, units, _), size) in enumerate(zip(STAGES, (112, 56, 28, 14, 14, 7, 7), strict=True), 1):
        assert found[f"unit{stage}-{units}-narrow"] == (2, outputs, size, size)
    assert found["last"] == (2, 1280, 7, 7)
    assert found["ip"] == (2, 1000)


def test_layers() -> None:
    found = kernels(mobilenet())
    assert {kernel for kernel in found.values() if isinstance(kernel, ReLU)} == {ReLU(mode="clipped", ceiling=6.0)}
    assert not any("narrow-relu" in name for name in found)
    depthwise = [kernel for name, kernel in found.items() if name.endswith("depthwise")]
    assert all(isinstance(kernel, Conv) and kernel.groups == kernel.number_of_outputs for kernel in depthwise)
    assert len(depthwise) == 17
    # A sum in every unit but the first of a stage.
    assert sum(isinstance(kernel, ElementWiseOp) for kernel in found.values()) == 17 - 7
    assert not any(isinstance(kernel, Dropout) for kernel in check_kernels(mobilenet()))
    assert "dropout" not in kernels(mobilenet(dropout=0))


@pytest.mark.slow
def test_it_learns() -> None:
    check_descent(mobilenet(dropout=0, number_of_outputs=2), (3, 64, 64), learning_rate=0.02, tasks=10)


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    check_export(mobilenet(number_of_outputs=2), (3, 64, 64), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("(default: 3,224,224)", "(default: 96)", "(default: 0.045 with sgd", "4e-05"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,32,32 --classes 4 --training-examples 16 --test-examples 8"
    assert main([*arguments.split(), *f"--batch-size 8 --epochs 1 --output-directory {tmp_path}".split()]) == 0
    assert f"mobilenet, {3_504_872 - 996 * 1281:,} parameters" in capsys.readouterr().out
