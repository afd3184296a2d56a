from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import ConfigurationError, Constant, Gaussian
from crossbow.ops import LRN, Conv, DataTransform, Dropout, InnerProduct
from models.alexnet import SCRIPT, VARIANTS, alexnet, main
from tests.models.zoo import check_descent, check_export, check_kernels, help_of, kernels, parameters, shapes

PUBLISHED = {
    "one-tower": 61_100_840,  # torchvision's documentation, num_params
    "caffe": 60_965_224,
    "v2": 62_378_344,
}


@pytest.mark.parametrize("size", [224, 227])
@pytest.mark.parametrize("variant", VARIANTS)
def test_number_of_parameters(variant: str, size: int) -> None:
    assert parameters(alexnet(variant), (2, 3, size, size)) == PUBLISHED[variant]


@pytest.mark.parametrize(
    ("variant", "image", "sizes"),
    [("one-tower", 224, (55, 27, 13, 6)), ("caffe", 227, (55, 27, 13, 6)), ("v2", 224, (54, 27, 13, 6))],
)
def test_shapes(variant: str, image: int, sizes: tuple[int, ...]) -> None:
    found = shapes(alexnet(variant), (2, 3, image, image))
    widths = VARIANTS[variant].widths
    for name, width, size in zip(("conv1", "pool1", "pool2", "pool5"), (0, 0, 1, 4), sizes, strict=True):
        assert found[name] == (2, widths[width], size, size)
    assert [found[f"ip{number}"] for number in (6, 7, 8)] == [(2, 4096), (2, 4096), (2, 1000)]


def test_order_of_caffes() -> None:
    found = kernels(alexnet("caffe"))
    assert list(found)[:9] == ["conv1", "relu1", "norm1", "pool1", "conv2", "relu2", "norm2", "pool2", "conv3"]
    assert list(found)[15:22] == ["ip6", "relu6", "dropout6", "ip7", "relu7", "dropout7", "ip8"]
    assert [kernel for kernel in found.values() if isinstance(kernel, LRN)] == [LRN(size=5, alpha=1e-4, beta=0.75)] * 2
    assert [kernel.groups for kernel in found.values() if isinstance(kernel, Conv)] == [1, 2, 1, 2, 2]


def test_dropout() -> None:
    assert [name for name in kernels(alexnet()) if "drop" in name or "ip" in name] == [
        "dropout6", "ip6", "dropout7", "ip7", "ip8",
    ]  # fmt: skip
    for dataflow in (alexnet("v2"), alexnet(dropout=0), alexnet("caffe", dropout=0)):
        assert not any(isinstance(kernel, Dropout) for kernel in kernels(dataflow).values())
    assert not any(isinstance(kernel, Dropout) for kernel in check_kernels(alexnet()))


@pytest.mark.parametrize(("variant", "rate"), [("one-tower", 1.0), ("caffe", 2.0), ("v2", 1.0)])
def test_initial_values_and_learning_rates(variant: str, rate: float) -> None:
    found = kernels(alexnet(variant)).values()
    layers = [kernel for kernel in found if isinstance(kernel, Conv | InnerProduct)]
    stds, biases = (0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01), (0, 0.1, 0, 0.1, 0.1, 0.1, 0.1, 0)
    assert [layer.weight_initialiser for layer in layers] == [Gaussian(std=std) for std in stds]
    assert [layer.bias_initialiser for layer in layers] == [Constant(bias) for bias in biases]
    assert {layer.bias_learning_rate_multiplier for layer in layers} == {rate}


def test_unknown_variant() -> None:
    with pytest.raises(ConfigurationError, match=r"variant must be one of one-tower, caffe, v2\. Received: 'v3'"):
        alexnet("v3")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns(variant: str) -> None:
    """Slowly at first, because the initial weights are small."""
    dataflow = alexnet(variant, dropout=0, number_of_outputs=2, transform=DataTransform(mean=0.5, scale=255.0))
    check_descent(dataflow, (3, 63, 63), learning_rate=0.01, tasks=10, fraction=0.996)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_export(variant: str, tmp_path: Path) -> None:
    dataflow = alexnet(variant, number_of_outputs=2, transform=DataTransform(mean=0.5, scale=255.0))
    check_export(dataflow, (3, 63, 63), tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for variant, parts in {
        "one-tower": ("(default: 3,224,224)", "(default: 128)", "(default: 0.01)", "(default: 22,45,67)"),
        "caffe": (
            "(default: 3,227,227)",
            "images are resized (default: 227)",
            "(default: 256)",
            "(default: 0.0005)",
            "(default: 20,40,60,80)",
        ),
        "v2": ("(default: 0.1)", "(default: 82,122)", "(default: 0.0001)", "(default: 1,000)"),
    }.items():
        text = help_of(SCRIPT, ["--variant", variant], capsys)
        assert [part for part in parts if part not in text] == []


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --image-shape 3,63,63 --classes 4 --training-examples 8 --test-examples 4"
    more = f"--batch-size 4 --epochs 1 --learners 1 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    assert "alexnet (one-tower), 20,320,068 parameters" in capsys.readouterr().out
