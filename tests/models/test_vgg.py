from __future__ import annotations

from pathlib import Path

import pytest

from crossbow import ConfigurationError, Constant, Xavier
from crossbow.ops import BatchNorm, Conv, DataTransform, Dropout, InnerProduct, ReLU
from models.vgg import SCRIPT, VARIANTS, main, vgg
from tests.models.zoo import (
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

CIFAR, IMAGENET = (2, 3, 32, 32), (2, 3, 224, 224)


@pytest.mark.parametrize(
    ("variant", "classes", "published"),
    [
        # geifmany/cifar-vgg as Keras counts it: 15,001,418, of which 9,472 are running statistics.
        ("cifar", None, 14_991_946),
        ("cifar", 100, 14_991_946 + 90 * (512 + 1)),
        # torchvision's documentation, num_params; the paper's table 2: 138 million.
        ("imagenet", None, 138_357_544),
        ("a", None, 132_863_336),
        ("19", None, 143_667_240),
    ],
)
def test_number_of_parameters(variant: str, classes: int | None, published: int) -> None:
    batch = CIFAR if variant == "cifar" else IMAGENET
    assert parameters(vgg(variant, number_of_outputs=classes), batch) == published


def test_shapes_for_cifar() -> None:
    found = shapes(vgg(), CIFAR)
    for stage, (width, size) in enumerate([(64, 16), (128, 8), (256, 4), (512, 2), (512, 1)], start=1):
        assert found[f"conv{stage}-2"] == (2, width, 2 * size, 2 * size)
        assert found[f"pool{stage}"] == (2, width, size, size)
    assert (found["ip1"], found["ip2"]) == ((2, 512), (2, 10))


@pytest.mark.parametrize("variant", ["imagenet", "a", "19"])
def test_shapes_for_imagenet(variant: str) -> None:
    found = shapes(vgg(variant), IMAGENET)
    assert [found[f"pool{stage}"][1:] for stage in range(1, 6)] == [
        (64, 112, 112),
        (128, 56, 56),
        (256, 28, 28),
        (512, 14, 14),
        (512, 7, 7),
    ]
    assert [found[f"ip{number}"] for number in (1, 2, 3)] == [(2, 4096), (2, 4096), (2, 1000)]


@pytest.mark.parametrize(("variant", "layers"), [("cifar", 15), ("imagenet", 16), ("a", 11), ("19", 19)])
def test_layers_with_weights(variant: str, layers: int) -> None:
    """Of the three inner products of the paper's, the one for CIFAR has two."""
    found = [kernel for kernel in kernels(vgg(variant)).values() if isinstance(kernel, Conv | InnerProduct)]
    assert len(found) == layers
    for kernel in found:
        assert (kernel.weight_initialiser, kernel.bias_initialiser) == (Xavier(norm="average"), Constant(0.0))


def test_order_of_the_originals() -> None:
    """VGG.java, its stages 1, 2 and 3, and the end; R: ReLU, N: normalisation, P: pooling, and dropout's ratio."""
    letters = {"conv": "C", "relu": "R", "norm": "N", "pool": "P", "ip": "I"}
    words = []
    for name, kernel in kernels(vgg()).items():
        kind = name.rstrip("-0123456789")
        words.append(f"{kernel.ratio:g}" if isinstance(kernel, Dropout) else letters.get(kind, ""))
    text = " ".join(words).split(" P ")
    assert text[0] == "C R N 0.3 C R N"
    assert text[1] == "C R N 0.4 C R N"
    assert text[2] == text[3] == text[4] == "C R N 0.4 C R N 0.4 C R N"
    assert text[5].split() == ["0.5", "I", "R", "N", "0.5", "I"]
    norms = [kernel for kernel in kernels(vgg()).values() if isinstance(kernel, BatchNorm)]
    assert len(norms) == 14
    assert {(norm.epsilon, norm.moving_average_fraction) for norm in norms} == {(1e-3, 0.99)}


def test_order_of_the_papers() -> None:
    found = kernels(vgg("imagenet"))
    assert not any(isinstance(kernel, BatchNorm) for kernel in found.values())
    assert list(found)[:5] == ["conv1-1", "relu1-1", "conv1-2", "relu1-2", "pool1"]
    assert list(found)[-10:-3] == ["ip1", "relu1", "dropout1", "ip2", "relu2", "dropout2", "ip3"]
    assert sum(isinstance(kernel, ReLU) for kernel in found.values()) == 15


@pytest.mark.parametrize("variant", ["cifar", "imagenet"])
def test_dropout_is_for_training_only(variant: str) -> None:
    assert any(isinstance(kernel, Dropout) for kernel in kernels(vgg(variant)).values())
    assert not any(isinstance(kernel, Dropout) for kernel in check_kernels(vgg(variant)))


@pytest.mark.parametrize(("variant", "batch"), [("cifar", CIFAR), ("imagenet", IMAGENET)])
def test_it_can_be_described(variant: str, batch: tuple[int, ...]) -> None:
    text = vgg(variant, transform=DataTransform(mean=0.5)).describe(batch)
    assert "DataTransform" in text
    assert "conv5-3.gradient" in text


def test_local_variables_of_batch_normalisation_have_norm_in_their_names() -> None:
    """docs/rules.md and `--local-variables`'s help say `*norm*`."""
    found = kernels(vgg())
    assert [name for name in found if "norm" in name] == [n for n, each in found.items() if isinstance(each, BatchNorm)]


def test_unknown_variant() -> None:
    with pytest.raises(ConfigurationError, match=r"variant must be one of cifar, imagenet, a, 19\. Received: 'vgg19'"):
        vgg("vgg19")


@pytest.mark.slow
def test_it_learns() -> None:
    check_learning(vgg(number_of_outputs=2), (3, 16, 16), learning_rate=0.01, epochs=10)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_export(variant: str, tmp_path: Path) -> None:
    check_export(vgg(variant, number_of_outputs=2, transform=DataTransform(mean=0.5)), (3, 32, 32), tmp_path)


@pytest.mark.slow
@NEEDS_ONEDNN
def test_a_task_is_one_native_call() -> None:
    transform = DataTransform(padding=4, mirror=True, mean=0.5, scale=2.0)
    assert python_calls(vgg(number_of_outputs=2, transform=transform), (3, 32, 32)) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "(default: 250 with cifar10, 250 with cifar100, 250 with cifar100_coarse, 3 with synthetic)",
        "(default: 20,40,60,80,100,120,140,160,180,200,220,240)",
        "(default: 0.5 with multistep in epochs, else 0.1)",
        "(default: 128)",
        "(default: 0.0005)",
    ):
        assert part in text
    text = help_of(SCRIPT, ["--variant", "imagenet"], capsys)
    for part in ("(default: 3,224,224)", "(default: 0.001 with sgd", "(default: 1,000)"):
        assert part in text


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--dataset synthetic --training-examples 16 --test-examples 4 --batch-size 8 --epochs 1 --learners 1"
    assert main([*arguments.split(), "--output-directory", str(tmp_path)]) == 0
    assert "vgg (cifar), 14,991,946 parameters" in capsys.readouterr().out
