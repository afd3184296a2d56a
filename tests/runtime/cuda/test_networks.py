"""Whole training steps of real networks on GPUs that are none: every call is checked, and the weights are the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import Dataflow, Dataset, ExecutionContext, ModelConf, SolverConf, SystemConf, TrainingUnit
from crossbow.ops import BatchNorm, Concat, Conv, Dropout, InnerProduct, Pool, ReLU
from crossbow.types import Shape
from models.layers import add, classifier
from models.lenet import lenet
from models.resnet import resnet
from tests.kernels.cuda.fake import fake_cuda
from tests.support import Array

BATCH = 2
TICKS = 3
"""Enough for graphs: with either parity, the first task is called, the second one captured."""


def inception() -> Dataflow:
    """A block of four branches (1×1, 3×3, 5×5, pooled) between a convolution and average pooling."""

    def convolution(name: str, outputs: int, size: int, x: Any) -> Any:
        x = add(f"{name}-conv", Conv(number_of_outputs=outputs, kernel_size=size, padding=size // 2, bias=False), x)
        return add(f"{name}-relu", ReLU(), add(f"{name}-norm", BatchNorm(), x))

    first = add("conv", Conv(number_of_outputs=4, kernel_size=3))
    x = add("relu", ReLU(), first)
    pooled = add("pool", Pool(method="max", kernel_size=3, stride=1, padding=1), x)
    branches = [
        convolution("1x1", 4, 1, x),
        convolution("3x3", 4, 3, convolution("3x3-reduce", 2, 1, x)),
        convolution("5x5", 2, 5, convolution("5x5-reduce", 2, 1, x)),
        convolution("pooled", 2, 1, pooled),
    ]
    x = add("average", Pool(method="average", kernel_size=2, stride=2), add("concat", Concat(axis=1), *branches))
    x = add("dropout", Dropout(ratio=0.3), x)
    return classifier(first, add("ip", InnerProduct(number_of_outputs=3), x))


NETWORKS: dict[str, tuple[Callable[[], Dataflow], Shape]] = {
    "lenet": (lenet, (1, 20, 20)),
    "lenet, caffe's": (lambda: lenet("caffe"), (1, 20, 20)),
    "inception": (inception, (3, 10, 10)),
    "resnet-20": (lambda: resnet(20), (3, 8, 8)),
}
PLACES = [(devices, learners) for devices in (1, 2) for learners in (1, 4)]


def data(shape: Shape) -> Dataset:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, *shape)).astype(np.uint8)
    return Dataset((images, generator.integers(0, 3, len(images))), None)


def train(name: str, devices: str, learners: int, tasks: int, precision: str) -> dict[str, Array]:
    """learners: of each device."""
    build, shape = NETWORKS[name]
    on_cpu: dict[str, Any] = {} if "cuda" in devices else {"kernels": "reference", "threads_per_learner": 1}
    with ExecutionContext(
        [build(), None],
        data=data(shape),
        model=ModelConf(batch_size=BATCH),
        solver=SolverConf(learning_rate=0.01, momentum=0.9),
        system=SystemConf(devices=devices, learners_per_device=learners, precision=precision, **on_cpu),
    ) as context:
        context.train(tasks, TrainingUnit.TASKS)
        return context.variables


def check(name: str, devices: int, learners: int, *, seeds: Sequence[int], precision: str = "float32") -> None:
    tasks = TICKS * devices * learners
    expected = train(name, "cpu" if devices == 1 else "cpu:0/2,cpu:1/2", learners, tasks, precision)
    for seed in seeds:
        with fake_cuda(devices, seed) as cuda:
            gpus = ",".join(f"cuda:{device}" for device in range(devices))
            received = train(name, gpus, learners, tasks, precision)
            assert cuda.runtime.counts["graphLaunch"]
        assert_same(received, expected)


def assert_same(received: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float = 1e-5) -> None:
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(np.abs(value).max()) + 1e-3
        assert float(np.abs(received[name] - value).max()) <= tolerance * scale, name


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "learners"), PLACES)
@pytest.mark.parametrize("name", ["lenet", "lenet, caffe's", "inception"])
def test_weights_are_those_of_the_cpu(name: str, devices: int, learners: int) -> None:
    check(name, devices, learners, seeds=(0, 1) if name == "inception" else (learners,))


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "learners"), PLACES)
def test_weights_of_a_resnet_are_those_of_the_cpu(devices: int, learners: int) -> None:
    """In double precision: twenty normalisations of two images make much of what is rounded in another order."""
    check("resnet-20", devices, learners, seeds=(learners,), precision="float64")
