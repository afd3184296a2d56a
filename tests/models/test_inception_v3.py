from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import Gaussian
from crossbow.ops import BatchNorm, Conv, SoftMaxLoss
from models.inception_v3 import SCRIPT, inception_v3, main
from tests.models.zoo import check_descent, check_export, check_kernels, help_of, kernels, parameters, shapes

IMAGENET, SMALL = (2, 3, 299, 299), (3, 75, 75)


@pytest.mark.parametrize(("auxiliary", "expected"), [(False, 23_834_568), (True, 27_161_264)])
def test_number_of_parameters(auxiliary: bool, expected: int) -> None:
    """The second is torchvision's num_params."""
    assert parameters(inception_v3(auxiliary=auxiliary), IMAGENET) == expected


def test_shapes() -> None:
    """Table 1 of the paper."""
    found = shapes(inception_v3(auxiliary=True), IMAGENET)
    for name, channels, size in (
        ("conv1", 32, 149),
        ("conv2", 32, 147),
        ("pool1", 64, 73),
        ("conv5", 192, 71),
        ("pool2", 192, 35),
        ("moduleA1-concat", 256, 35),
        ("moduleA3-concat", 288, 35),
        ("moduleB-concat", 768, 17),
        ("moduleC4-concat", 768, 17),
        ("auxiliary-pool", 768, 5),
        ("auxiliary-conv2", 768, 1),
        ("moduleD-concat", 1280, 8),
        ("moduleE1-concat", 2048, 8),
        ("moduleE2-concat", 2048, 8),
    ):
        assert found[name] == (2, channels, size, size), name
    assert found["ip"] == (2, 1000)


def test_layers() -> None:
    found = kernels(inception_v3())
    convolutions = {name: kernel for name, kernel in found.items() if isinstance(kernel, Conv)}
    assert len(convolutions) == 94
    for name, kernel in convolutions.items():
        assert (kernel.bias, kernel.weight_initialiser) == (False, Gaussian(std=0.1, truncate=True))
        assert found[f"{name}-norm"] == BatchNorm(epsilon=1e-3)


def test_the_auxiliary_classifier_is_for_training_only() -> None:
    found = kernels(inception_v3(auxiliary=True))
    losses = {name: kernel.weight for name, kernel in found.items() if isinstance(kernel, SoftMaxLoss)}
    assert losses == {"auxiliary-loss": 0.3, "loss": 1.0}
    assert check_kernels(inception_v3(auxiliary=True)) == check_kernels(inception_v3())


@pytest.mark.slow
def test_it_learns() -> None:
    check_descent(inception_v3(number_of_outputs=2), SMALL, learning_rate=0.01, tasks=8)


@pytest.mark.slow
def test_it_learns_with_the_auxiliary_classifier() -> None:
    """Which images of 299×299 are needed for. With four of them, weights that differ by 1e-6 have gradients that differ
    by 4 %, so the loss of the first ten tasks depends on a processor's rounding."""
    dataflow = inception_v3(auxiliary=True, number_of_outputs=2)
    check_descent(dataflow, IMAGENET[1:], learning_rate=0.003, tasks=20, fraction=0.9, batch=4)


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    """After enough tasks for the running statistics: without them, one class has all of the probability. The weights
    stay nearly as they are, because steps on such small images depend on a processor's rounding."""
    check_export(inception_v3(number_of_outputs=2), SMALL, tmp_path, tasks=50, learning_rate=1e-8)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "--auxiliary",
        "(default: 3,299,299)",
        "images are resized (default: 299)",
        "(default: 32)",
        "(default: 0.045 with sgd",
        "(default: 0.0001)",
    ):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,75,75 --classes 4 --training-examples 8 --test-examples 4"
    more = f"--batch-size 4 --epochs 1 --learners 1 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    assert f"inception_v3, {23_834_568 - 996 * 2049:,} parameters" in capsys.readouterr().out
