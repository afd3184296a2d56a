from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import MSRA
from crossbow.ops import Conv, InnerProduct
from models.resnext import OUTPUTS, SCRIPT, UNITS, WIDTHS, main, resnext
from tests.models.zoo import check_descent, check_export, help_of, kernels, parameters, shapes

IMAGENET = (2, 3, 224, 224)


def test_number_of_parameters() -> None:
    """torchvision's num_params; the paper's table 1: 25.0 million."""
    assert parameters(resnext(), IMAGENET) == 25_028_904


def test_shapes() -> None:
    found = shapes(resnext(), IMAGENET)
    assert (found["conv"], found["pool1"]) == ((2, 64, 112, 112), (2, 64, 56, 56))
    for stage, (units, width, outputs, size) in enumerate(zip(UNITS, WIDTHS, OUTPUTS, (56, 28, 14, 7), strict=True), 1):
        for unit in range(1, units + 1):
            assert found[f"unit{stage}-{unit}-conv2"] == (2, width, size, size)
            assert found[f"unit{stage}-{unit}-sum"] == (2, outputs, size, size)
    assert found["ip"] == (2, 1000)


def test_layers() -> None:
    found = kernels(resnext())
    layers = {name: kernel for name, kernel in found.items() if isinstance(kernel, Conv | InnerProduct)}
    assert len([name for name in layers if "shortcut" not in name]) == 50
    assert [name for name in layers if "shortcut" in name] == [f"unit{stage}-1-shortcut" for stage in (1, 2, 3, 4)]
    for name, kernel in layers.items():
        if isinstance(kernel, Conv):
            assert kernel.groups == (32 if "conv2" in name else 1)
            assert (kernel.bias, kernel.weight_initialiser) == (False, MSRA())
            strided = name in ("conv", *(f"unit{s}-1-{end}" for s in (2, 3, 4) for end in ("conv2", "shortcut")))
            assert kernel.stride == (2 if strided else 1), name


@pytest.mark.slow
def test_it_learns() -> None:
    check_descent(resnext(number_of_outputs=2), (3, 48, 48), learning_rate=0.001, tasks=8)


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    """After enough tasks for the running statistics: without them, the sums of many units are too large."""
    check_export(resnext(number_of_outputs=2), (3, 48, 48), tmp_path, tasks=25)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("(default: 3,224,224)", "(default: 256)", "(default: 30,60,90)", "(default: 0.0001)"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,32,32 --classes 4 --training-examples 8 --test-examples 4"
    assert main([*arguments.split(), *f"--batch-size 4 --epochs 1 --output-directory {tmp_path}".split()]) == 0
    assert f"resnext, {25_028_904 - 996 * 2049:,} parameters" in capsys.readouterr().out
