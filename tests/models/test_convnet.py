from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import ConfigurationError, Gaussian
from crossbow.ops import LRN, Conv, DataTransform, InnerProduct, Pool
from models.convnet import SCRIPT, convnet, main
from tests.models.zoo import (
    check_descent,
    check_export,
    check_kernels,
    check_learning,
    help_of,
    kernels,
    parameters,
    python_calls,
    shapes,
)
from tests.support import NEEDS_ONEDNN

CIFAR = (2, 3, 32, 32)


def test_number_of_parameters() -> None:
    """Caffe's layers: 2,432 + 25,632 + 51,264 + 65,600 + 650."""
    assert parameters(convnet(), CIFAR) == 145_578


def test_number_of_parameters_of_full() -> None:
    """Caffe's layers: 2,432 + 25,632 + 51,264 + 10,250."""
    assert parameters(convnet("full"), CIFAR) == 89_578


def test_full() -> None:
    """The layers, windows, initial values and learning rates of cifar10_full_train_test.prototxt."""
    found = kernels(convnet("full"))
    assert list(found)[:12] == [
        "conv1", "pool1", "relu1", "norm1", "conv2", "relu2", "pool2", "norm2", "conv3", "relu3", "pool3", "ip1",
    ]  # fmt: skip
    norms = [kernel for kernel in found.values() if isinstance(kernel, LRN)]
    assert norms == [LRN(size=3, alpha=5e-5, beta=0.75, region="within_channel")] * 2
    layers = [kernel for kernel in found.values() if isinstance(kernel, Conv | InnerProduct)]
    assert [layer.weight_initialiser for layer in layers] == [Gaussian(std=std) for std in (0.0001, 0.01, 0.01, 0.01)]
    assert [layer.bias_learning_rate_multiplier for layer in layers] == [2.0, 2.0, 1.0, 2.0]
    assert shapes(convnet("full"), CIFAR)["pool3"] == (2, 64, 4, 4)


def test_unknown_variant() -> None:
    with pytest.raises(ConfigurationError, match=r"variant must be one of quick, full\. Received: 'slow'"):
        convnet("slow")


@pytest.mark.parametrize("variant", ["quick", "full"])
def test_export(variant: str, tmp_path: Path) -> None:
    transform = DataTransform(mean=0.5, scale=255.0)
    check_export(convnet(variant, number_of_outputs=2, transform=transform), (3, 32, 32), tmp_path)


def test_shapes() -> None:
    found = shapes(convnet(), CIFAR)
    assert [found[name][1:] for name in ("conv1", "pool1", "conv2", "pool2", "conv3", "pool3")] == [
        (32, 32, 32),
        (32, 16, 16),
        (32, 16, 16),
        (32, 8, 8),
        (64, 8, 8),
        (64, 4, 4),
    ]
    assert (found["ip1"], found["ip2"]) == ((2, 64), (2, 10))


def test_order_and_pooling_of_caffes() -> None:
    found = kernels(convnet())
    assert list(found)[:12] == [
        "conv1", "pool1", "relu1", "conv2", "relu2", "pool2", "conv3", "relu3", "pool3", "ip1", "ip2", "softmax",
    ]  # fmt: skip
    pools = [kernel for kernel in found.values() if isinstance(kernel, Pool)]
    assert [pool.method for pool in pools] == ["max", "average", "average"]
    assert {(pool.kernel_size, pool.stride, pool.padding) for pool in pools} == {(3, 2, 0)}


def test_initial_values_and_learning_rates() -> None:
    layers = [kernel for kernel in kernels(convnet()).values() if isinstance(kernel, Conv | InnerProduct)]
    assert [layer.weight_initialiser for layer in layers] == [
        Gaussian(std=std) for std in (0.0001, 0.01, 0.01, 0.1, 0.1)
    ]
    assert {layer.weight_learning_rate_multiplier for layer in layers} == {1.0}
    assert {layer.bias_learning_rate_multiplier for layer in layers} == {2.0}


def test_it_can_be_described() -> None:
    text = convnet(number_of_outputs=3, transform=DataTransform(mean=0.5, scale=255.0)).describe(CIFAR)
    assert "ip2.gradient" in text
    assert "2×3" in text


def test_the_check_dataflow() -> None:
    assert not any("Gradient" in type(kernel).__name__ for kernel in check_kernels(convnet()))


@pytest.mark.slow
def test_it_learns() -> None:
    transform = DataTransform(mean=0.5, scale=255.0)
    check_learning(convnet(number_of_outputs=2, transform=transform), (3, 32, 32), learning_rate=0.001, epochs=30)


@pytest.mark.slow
def test_full_learns() -> None:
    dataflow = convnet("full", number_of_outputs=2, transform=DataTransform(mean=0.5, scale=255.0))
    check_descent(dataflow, (3, 32, 32), learning_rate=0.005, tasks=30, fraction=0.5)


@NEEDS_ONEDNN
def test_a_task_is_one_native_call() -> None:
    transform = DataTransform(padding=4, mirror=True, mean=0.5, scale=2.0)
    assert python_calls(convnet(number_of_outputs=2, transform=transform), (3, 32, 32)) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    assert "(default: 120,130)" in help_of(SCRIPT, ["--variant", "full"], capsys)
    for part in ("(default: 10 with cifar10, 3 with synthetic)", "(default: 128)", "(default: 0.004)", "(default: 8)"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --training-examples 16 --test-examples 4 --batch-size 8 --epochs 1 --learners 1"
    assert main([*arguments.split(), "--output-directory", str(tmp_path)]) == 0
    assert "convnet (quick), 145,578 parameters" in capsys.readouterr().out
