from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crossbow import ConfigurationError
from models.vit import SCRIPT, main, vit
from tests.models.zoo import check_descent, check_export, help_of, parameters, python_calls, shapes
from tests.support import NEEDS_ONEDNN

CIFAR = (2, 3, 32, 32)


def test_number_of_parameters() -> None:
    assert parameters(vit(), CIFAR) == 817_290
    assert parameters(vit(number_of_outputs=100), CIFAR) == 817_290 + 90 * 129


def test_shapes() -> None:
    found = shapes(vit(), CIFAR)
    assert found["patches"] == (2, 128, 8, 8)
    assert found["positions"] == found["layer4-sum2"] == found["norm"] == (2, 64, 128)
    assert found["mean"] == (2, 128, 1, 1)
    assert found["logits"] == (2, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": 5}, "image_size must be a multiple of patch. Received: 32 and 5"),
        ({"layers": 0}, "layers must be an integer ≥ 1. Received: 0"),
        ({"width": 30}, "width must be a multiple of heads. Received: width 30, heads 4"),
    ],
)
def test_wrong_sizes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        vit(**options)


def test_it_learns() -> None:
    dataflow = vit(12, layers=1, width=16, heads=2, number_of_outputs=2)
    check_descent(dataflow, (1, 12, 12), learning_rate=0.01, tasks=20, fraction=0.9)


def test_export(tmp_path: Path) -> None:
    check_export(vit(12, layers=1, width=16, heads=2, number_of_outputs=2), (1, 12, 12), tmp_path, tasks=4)


@NEEDS_ONEDNN
def test_a_task_is_one_native_call() -> None:
    assert python_calls(vit(16, layers=1, width=32, heads=2), (3, 16, 16)) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in ("40 with cifar10", "(default: 4)", "(default: 128)", "with adam, adamw and rmsprop)"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--layers 1 --width 16 --heads 2 --image-shape 3,16,16 --training-examples 32 --test-examples 8"
    arguments = f"--dataset synthetic {sizes} --batch-size 8 --epochs 1 --learners 2 --output-directory {tmp_path}"
    assert main(arguments.split()) == 0
    assert "vit (patch 4, 1 layer, width 16)" in capsys.readouterr().out


def test_images_that_are_not_square(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dataset", "synthetic", "--image-shape", "3,8,16", "--output-directory", str(tmp_path)]) == 2
    assert "expected square images. Received: 8×16" in capsys.readouterr().err
