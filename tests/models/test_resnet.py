from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow import (
    ConfigurationError,
    Dataflow,
    Dataset,
    ExecutionContext,
    Gaussian,
    ModelConf,
    SolverConf,
    SystemConf,
    TrainingUnit,
    Xavier,
)
from crossbow.ops import BatchNorm, Conv, DataTransform, InnerProduct
from crossbow.types import Shape
from models.resnet import BOTTLENECK_DEPTHS, CIFAR_DEPTHS, DEPTHS, IMAGENET_UNITS, SCRIPT, main, resnet
from tests.combinations import one_in
from tests.compile.checker import check_memory
from tests.compile.execution import compile_network
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

PUBLISHED = {
    # He et al. 2015, table 6, in millions: 0.27, 0.46, 0.66, 0.85, 1.7.
    20: 269_722,
    32: 464_154,
    44: 658_586,
    56: 853_018,
    110: 1_727_962,
    # torchvision's documentation, num_params.
    18: 11_689_512,
    34: 21_797_672,
    50: 25_557_032,
    101: 44_549_160,
    152: 60_192_808,
}
VERSION_2 = {
    110: 1_727_962,  # He et al. 2016, table 2: 1.7 million
    # The model cards of timm's resnetv2_50 and resnetv2_101: 25.5 and 44.5 million.
    50: 25_549_352,
    101: 44_541_480,
}


def batch(depth: int) -> Shape:
    return CIFAR if depth in CIFAR_DEPTHS else IMAGENET


@pytest.mark.parametrize("depth", PUBLISHED)
def test_number_of_parameters(depth: int) -> None:
    assert parameters(resnet(depth), batch(depth)) == PUBLISHED[depth]


@pytest.mark.parametrize("depth", VERSION_2)
def test_number_of_parameters_of_version_2(depth: int) -> None:
    assert parameters(resnet(depth, version=2), batch(depth)) == VERSION_2[depth]


@pytest.mark.parametrize(("version", "expected"), [(1, 1_704_154), (2, 1_703_258)])
def test_number_of_parameters_of_164_layers(version: int, expected: int) -> None:
    """He et al. 2016, table 2: 1.7 million."""
    assert parameters(resnet(164, version=version, shortcut="projection"), CIFAR) == expected


@pytest.mark.parametrize("depth", [depth for depth in CIFAR_DEPTHS if depth not in BOTTLENECK_DEPTHS])
def test_projections_have_parameters(depth: int) -> None:
    """1×1 convolutions from 16 to 32 and from 32 to 64 channels, and in version 1 their normalisations."""
    convolutions, norms = 16 * 32 + 32 * 64, 2 * (32 + 64)
    first, second = (resnet(depth, version=version, shortcut="projection") for version in (1, 2))
    assert parameters(first, CIFAR) == PUBLISHED[depth] + convolutions + norms
    assert parameters(second, CIFAR) == PUBLISHED[depth] + convolutions


@pytest.mark.parametrize("depth", DEPTHS)
def test_depth_counts_layers_with_weights(depth: int) -> None:
    """Convolutions, shortcuts apart, and the inner product."""
    for version in (1, 2):
        found = kernels(resnet(depth, version=version))
        layers = [k for name, k in found.items() if isinstance(k, Conv | InnerProduct) and "shortcut" not in name]
        assert len(layers) == depth


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("shortcut", ["identity", "projection"])
def test_shapes_for_cifar(version: int, shortcut: str) -> None:
    found = shapes(resnet(20, version=version, shortcut=shortcut), CIFAR)
    for stage, (width, size) in enumerate([(16, 32), (32, 16), (64, 8)], start=1):
        for unit in (1, 2, 3):
            assert found[f"unit{stage}-{unit}-sum"] == (2, width, size, size)
    assert found["pool"] == (2, 64, 1, 1)
    assert found["ip"] == (2, 10)


def test_shapes_of_164_layers() -> None:
    found = shapes(resnet(164), CIFAR)
    for stage, (width, size) in enumerate([(64, 32), (128, 16), (256, 8)], start=1):
        assert found[f"unit{stage}-18-sum"] == (2, width, size, size)
    assert "unit3-19-sum" not in found


@pytest.mark.parametrize(("depth", "expansion"), [(18, 1), (34, 1), (50, 4), (101, 4)])
@pytest.mark.parametrize("version", [1, 2])
def test_shapes_for_imagenet(depth: int, expansion: int, version: int) -> None:
    found = shapes(resnet(depth, version=version), IMAGENET)
    assert found["conv"] == (2, 64, 112, 112)
    assert found["pool1"] == (2, 64, 56, 56)
    for stage, (units, size) in enumerate(zip(IMAGENET_UNITS[depth], (56, 28, 14, 7), strict=True), start=1):
        for unit in range(1, units + 1):
            assert found[f"unit{stage}-{unit}-sum"] == (2, expansion * 64 * 2 ** (stage - 1), size, size)
        assert f"unit{stage}-{units + 1}-sum" not in found
    assert found["ip"] == (2, 1000)


def test_which_convolution_of_a_bottleneck_has_the_stride() -> None:
    for options, strides in (({}, [2, 1, 1]), ({"bottleneck_stride": "3x3"}, [1, 2, 1])):
        found = kernels(resnet(50, **options))  # type: ignore[arg-type]
        assert [found[f"unit2-1-conv{number}"].stride for number in (1, 2, 3)] == strides  # type: ignore[attr-defined]
        assert [found[f"unit1-1-conv{number}"].stride for number in (1, 2, 3)] == [1, 1, 1]  # type: ignore[attr-defined]
    same = {name: parameters(resnet(50, bottleneck_stride=name), IMAGENET) for name in ("1x1", "3x3")}
    assert set(same.values()) == {PUBLISHED[50]}


def test_initial_values() -> None:
    for name, kernel in kernels(resnet(20, shortcut="projection")).items():
        if isinstance(kernel, Conv | InnerProduct):
            assert kernel.weight_initialiser == Xavier(), name
    for name, kernel in kernels(resnet(18)).items():
        if isinstance(kernel, Conv):
            assert kernel.weight_initialiser == Xavier(norm="average"), name
        if isinstance(kernel, InnerProduct):
            assert kernel.weight_initialiser == Gaussian(std=0.0221, truncate=True)
        if isinstance(kernel, BatchNorm):
            assert (kernel.epsilon, kernel.moving_average_fraction) == (1e-5, 0.9)


@pytest.mark.parametrize("depth", [20, 50])
@pytest.mark.parametrize("version", [1, 2])
def test_it_can_be_described(depth: int, version: int) -> None:
    text = resnet(depth, version=version).describe(batch(depth))
    assert len(text.splitlines()) > 100
    assert "unit1-1-conv1.gradient" in text
    assert "optimiser" in text


def test_the_check_dataflow_has_no_gradients() -> None:
    found = check_kernels(resnet(20, transform=DataTransform(padding=4, mirror=True)))
    assert isinstance(found[0], DataTransform)
    assert not any("Gradient" in type(kernel).__name__ for kernel in found)


def test_local_variables_of_batch_normalisation_have_norm_in_their_names() -> None:
    """docs/rules.md and `--local-variables`'s help say `*norm*`."""
    found = kernels(resnet(20))
    assert [name for name in found if "norm" in name] == [n for n, each in found.items() if isinstance(each, BatchNorm)]


def test_number_of_outputs() -> None:
    assert shapes(resnet(20, number_of_outputs=7), CIFAR)["ip"] == (2, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 33}, "depth must be one of 18, 20, 32, 34, 44, 50, 56, 101, 110, 152, 164. Received: 33"),
        ({"depth": 32.0}, "depth must be one of 18, 20,"),
        ({"depth": np.array([20, 32])}, "Received: an array of shape (2,), int64"),
        (
            {"shortcut": np.array(["identity", "none"])},
            "shortcut must be one of identity, projection. Received: an array",
        ),
        ({"depth": "20"}, "depth must be one of 18, 20,"),
        ({"version": 3}, "version must be one of 1, 2. Received: 3"),
        ({"version": True}, "version must be one of 1, 2. Received: True"),
        ({"shortcut": "none"}, "shortcut must be one of identity, projection. Received: 'none'"),
        ({"depth": 50, "bottleneck_stride": "7x7"}, "bottleneck_stride must be one of 1x1, 3x3. Received: '7x7'"),
        ({"bottleneck_stride": "3x3"}, "belongs to the depths 50, 101, 152, 164. Received: '3x3' with depth=32"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        resnet(**options)


@pytest.mark.parametrize("version", [1, 2])
def test_it_learns(version: int) -> None:
    check_learning(resnet(20, version=version, number_of_outputs=2), (3, 16, 16), learning_rate=0.05, epochs=8)


@NEEDS_ONEDNN
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"version": 2, "shortcut": "projection"},
        pytest.param({"depth": 50, "shortcut": "identity"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_task_is_one_native_call(options: dict[str, Any]) -> None:
    transform = DataTransform(padding=4, mirror=True, mean=0.5, scale=2.0)
    network = resnet(**{"depth": 20, "number_of_outputs": 2, "transform": transform, **options})
    assert python_calls(network, (3, 32, 32)) == []


@pytest.mark.slow
@NEEDS_ONEDNN
@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(None, marks=pytest.mark.slow, id="plain"),
        pytest.param(DataTransform(padding=4, mirror=True), id="augmented"),
    ],
)
def test_training_needs_little_more_memory_than_its_fullest_step(transform: DataTransform | None) -> None:
    from crossbow.kernels.cpu.library import Cpu

    graph = resnet(32, transform=transform).graph
    program = compile_network(graph, (16, *CIFAR[1:]), library=Cpu(), dtype=np.float32)
    check_memory(program)
    plan = program.plan
    assert plan.lower_bound <= plan.arena <= 1.15 * plan.lower_bound
    assert plan.arena < plan.without_reuse


# The same in PyTorch, written out from the papers.

Weights = Mapping[str, NDArray[Any]]


class Outside:
    """A ResNet that has been trained, run in evaluation mode by PyTorch."""

    def __init__(self, weights: Weights, depth: int, version: int, shortcut: str, stride_at: int) -> None:
        import torch

        self.torch, self.f = torch, torch.nn.functional
        self.weights = {name: torch.from_numpy(value) for name, value in weights.items()}
        self.depth, self.version, self.shortcut, self.stride_at = depth, version, shortcut, stride_at

    def conv(self, name: str, x: Any, stride: int = 1) -> Any:
        w = self.weights[f"{name}.weights"]
        return self.f.conv2d(x, w, stride=stride, padding=(w.shape[-1] - 1) // 2)

    def norm(self, name: str, x: Any) -> Any:
        mean, variance, weights, bias = (
            self.weights[f"{name}.{part}"] for part in ("running_mean", "running_variance", "weights", "bias")
        )
        return self.f.batch_norm(x, mean, variance, weights, bias, training=False, eps=1e-5)

    def logits(self, images: NDArray[Any]) -> Any:
        relu = self.torch.relu
        x = self.torch.from_numpy(images)
        if self.depth in CIFAR_DEPTHS:
            x = relu(self.norm("norm", self.conv("conv", x)))
            units = [(self.depth - 2) // (9 if self.depth in BOTTLENECK_DEPTHS else 6)] * 3
        else:
            x = relu(self.norm("norm", self.conv("conv", x, stride=2)))
            x = self.f.max_pool2d(x, 3, 2, ceil_mode=True)
            units = list(IMAGENET_UNITS[self.depth])
        for stage, count in enumerate(units, start=1):
            for unit in range(1, count + 1):
                stride = 2 if (unit == 1 and stage > 1) else 1
                x = (self.unit_1 if self.version == 1 else self.unit_2)(f"unit{stage}-{unit}", x, stride)
        if self.version == 2:
            x = relu(self.norm("norm2", x))
        return self.f.linear(x.mean(dim=(2, 3)), self.weights["ip.weights"], self.weights["ip.bias"])

    def strides(self, stride: int) -> dict[int, int]:
        if self.depth in BOTTLENECK_DEPTHS:
            return {1: 1, 2: 1, 3: 1} | {self.stride_at: stride}
        return {1: stride, 2: 1}

    def unit_1(self, name: str, x: Any, stride: int) -> Any:
        y = x
        strides = self.strides(stride)
        for number, step in strides.items():
            y = self.norm(f"{name}-norm{number}", self.conv(f"{name}-conv{number}", y, step))
            y = self.torch.relu(y) if number < len(strides) else y
        return self.torch.relu(y + self.skip(name, x, y, stride))

    def unit_2(self, name: str, x: Any, stride: int) -> Any:
        activated = x if name == "unit1-1" else self.torch.relu(self.norm(f"{name}-norm1", x))
        y = activated
        for number, step in self.strides(stride).items():
            if number > 1:
                y = self.torch.relu(self.norm(f"{name}-norm{number}", y))
            y = self.conv(f"{name}-conv{number}", y, step)
        return y + self.skip(name, x if y.shape == x.shape else activated, y, stride)

    def skip(self, name: str, x: Any, y: Any, stride: int) -> Any:
        if x.shape == y.shape:
            return x
        if self.shortcut == "identity":
            return self.f.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
        z = self.conv(f"{name}-shortcut-conv", x, stride)
        return self.norm(f"{name}-shortcut-norm", z) if self.version == 1 else z


@one_in(3)
@pytest.mark.parametrize(
    ("depth", "version", "shortcut", "bottleneck_stride"),
    [
        (20, 1, "identity", None),
        pytest.param(20, 1, "projection", None, marks=pytest.mark.slow),
        pytest.param(20, 2, "identity", None, marks=pytest.mark.slow),
        (20, 2, "projection", None),
        (18, 1, "projection", None),
        pytest.param(164, 2, "projection", None, marks=pytest.mark.slow),
        pytest.param(50, 1, "projection", "1x1", marks=pytest.mark.slow),
        pytest.param(50, 2, "identity", "3x3", marks=pytest.mark.slow),
    ],
)
def test_pytorch_computes_the_same(depth: int, version: int, shortcut: str, bottleneck_stride: str | None) -> None:
    """After two steps, so that no normalisation is as it was at first."""
    torch = pytest.importorskip("torch", reason="PyTorch, only for comparisons, is not installed")
    dataflow = resnet(
        depth, version=version, shortcut=shortcut, bottleneck_stride=bottleneck_stride, number_of_outputs=5
    )
    images = np.random.default_rng(0).normal(size=(6, 3, 36, 36)).astype(np.float32)
    weights, probabilities = trained(dataflow, images)
    outside = Outside(weights, depth, version, shortcut, 2 if bottleneck_stride == "3x3" else 1)
    expected = torch.softmax(outside.logits(images), dim=1).numpy()
    assert np.ptp(expected, axis=0).max() > 0.005, "the images are told apart"
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-5)


def trained(dataflow: Dataflow, images: NDArray[Any]) -> tuple[Weights, NDArray[Any]]:
    data = Dataset((images, np.arange(len(images)) % 5))
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=6),
        solver=SolverConf(learning_rate=0.01),
        system=SystemConf(learners_per_device=1, threads_per_learner=1),
    ) as context:
        context.train(2, TrainingUnit.TASKS)
        return context.variables, context.predict(images)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "version"), [(20, 1), (20, 2), (18, 1), (50, 1), (50, 2), (164, 2)])
def test_export(depth: int, version: int, tmp_path: Path) -> None:
    size = 16 if depth in CIFAR_DEPTHS else 48
    check_export(resnet(depth, version=version, number_of_outputs=2), (3, size, size), tmp_path, tasks=15)


# The script


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "Without options: CIFAR-10",
        "(default: 160 with cifar10, 160 with cifar100, 160 with cifar100_coarse, 3 with synthetic)",
        "--depth {18,20,32,34,44,50,56,101,110,152,164}",
        "(default: 80,120)",
        "(default: epochs with multistep, epochs with cosine and linear, else tasks)",
        "--no-augmentation",
        "(default: 0.0001)",
    ):
        assert part in text


def test_help_for_imagenet(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, ["--depth", "50"], capsys)
    for part in ("(default: 3,224,224)", "number of classes (default: 1,000)", "(default: 30,60,80)", "(default: 16)"):
        assert part in text


def test_wrong_depth(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--depth", "33"])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "argument --depth: invalid choice: 33 (choose from 18, 20, 32," in lines[-1].replace("'", "")


def test_an_option_that_would_do_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--dataset", "synthetic", "--bottleneck-stride", "3x3", "--output-directory", str(tmp_path)]
    assert main(arguments) == 2
    assert "bottleneck_stride belongs to the depths 50, 101, 152, 164" in capsys.readouterr().err


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--depth 20 --version 2 --dataset synthetic --image-shape 3,16,16 --classes 4 --training-examples 32"
    more = f"--test-examples 8 --batch-size 8 --epochs 1 --learners 2 --output-directory {tmp_path}"
    assert main([*arguments.split(), *more.split()]) == 0
    out = capsys.readouterr().out
    assert "resnet (20, version 2), 269,332 parameters" in out
    assert "learning rate 0.1 (multistep gamma 0.1 at 80, 120 in epochs), momentum 0.9, weight decay 0.0001" in out
