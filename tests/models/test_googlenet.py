from __future__ import annotations

from pathlib import Path

import pytest

from crossbow.ops import LRN, Conv, Dropout, SoftMaxLoss
from models.googlenet import MODULES, SCRIPT, googlenet, main
from tests.models.zoo import check_descent, check_export, check_kernels, help_of, kernels, parameters, shapes

IMAGENET, SMALL = (2, 3, 224, 224), (3, 65, 65)


@pytest.mark.parametrize(("auxiliary", "expected"), [(False, 6_998_552), (True, 13_378_280)])
def test_number_of_parameters(auxiliary: bool, expected: int) -> None:
    assert parameters(googlenet(auxiliary=auxiliary), IMAGENET) == expected


def test_shapes() -> None:
    """Table 1 of the paper."""
    found = shapes(googlenet(auxiliary=True), IMAGENET)
    for name, shape in {
        "conv1": (64, 112, 112),
        "pool1": (64, 56, 56),
        "conv2": (192, 56, 56),
        "pool2": (192, 28, 28),
        "module3a-concat": (256, 28, 28),
        "module3b-concat": (480, 28, 28),
        "module4a-concat": (512, 14, 14),
        "module4d-concat": (528, 14, 14),
        "module4e-concat": (832, 14, 14),
        "module5b-concat": (1024, 7, 7),
        "auxiliary1-pool": (512, 4, 4),
        "auxiliary2-pool": (528, 4, 4),
        "auxiliary2-ip1": (1024,),
        "ip": (1000,),
    }.items():
        assert found[name][1:] == shape, name


def test_layers() -> None:
    """22 layers with weights deep: 3 + 2 a module + 1."""
    found = kernels(googlenet())
    assert [kernel for kernel in found.values() if isinstance(kernel, LRN)] == [LRN(size=5, alpha=1e-4, beta=0.75)] * 2
    assert sum(isinstance(kernel, Conv) for kernel in found.values()) == 3 + 6 * len(MODULES)
    assert not any("auxiliary" in name for name in found)
    assert not any(isinstance(kernel, Dropout) for kernel in kernels(googlenet(auxiliary=True, dropout=0)).values())


def test_auxiliary_classifiers_are_for_training_only() -> None:
    found = kernels(googlenet(auxiliary=True))
    losses = {name: kernel.weight for name, kernel in found.items() if isinstance(kernel, SoftMaxLoss)}
    assert losses == {"auxiliary1-loss": 0.3, "auxiliary2-loss": 0.3, "loss": 1.0}
    assert check_kernels(googlenet(auxiliary=True)) == check_kernels(googlenet())


@pytest.mark.slow
@pytest.mark.parametrize("auxiliary", [False, True])
def test_it_learns(auxiliary: bool) -> None:
    dataflow = googlenet(auxiliary=auxiliary, dropout=0, number_of_outputs=2)
    check_descent(dataflow, SMALL, learning_rate=0.01, tasks=10, fraction=0.99)


@pytest.mark.slow
@pytest.mark.parametrize("auxiliary", [False, True])
def test_export(auxiliary: bool, tmp_path: Path) -> None:
    check_export(googlenet(auxiliary=auxiliary, number_of_outputs=2), SMALL, tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("--auxiliary", "(default: 3,224,224)", "(default: 32)", "(default: 0.01)", "(default: 8)", "0.0002"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--auxiliary --dataset synthetic --image-shape 3,65,65 --classes 4 --training-examples 8"
    more = f"--test-examples 4 --batch-size 4 --epochs 1 --learners 1 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    outputs = 3 * 996 * 1025  # of the three classifiers, for 4 classes instead of 1,000
    smaller = 2 * 15 * 128 * 1024  # 1×1 elements before the auxiliary inner products instead of 4×4
    expected = f"{13_378_280 - outputs - smaller:,}"
    out = capsys.readouterr().out
    assert f"googlenet (auxiliary classifiers), {expected} parameters" in out
    assert "loss     loss + 0.3 × auxiliary1-loss + 0.3 × auxiliary2-loss; in tests loss\n" in out
