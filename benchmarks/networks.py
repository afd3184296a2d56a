"""The measured networks by name, in Crossbow and in PyTorch, on data of their shape and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.torch_network import torch_network
from crossbow import Dataflow, Dataset, Sequential
from crossbow.data import topics
from crossbow.ops import BatchNorm, Conv, InnerProduct, Pool, ReLU
from crossbow.types import Shape
from models.layers import classifier
from models.lenet import lenet
from models.resnet import EXPANSION, IMAGENET_UNITS, resnet
from models.transformer import transformer
from models.vit import vit

CLASSES = 10
CLASSES_OF_IMAGENET = 1000
LEARNING_RATE, MOMENTUM = 0.002, 0.9


@dataclass(frozen=True)
class Network:
    """A measured network."""

    parameters: int
    image_shape: Shape
    examples: int
    """Number of training examples, as in MNIST or CIFAR-10."""
    build: Callable[[], Dataflow]
    torch: Callable[[], Any]
    """The same network as a PyTorch module."""
    batches: tuple[int, ...]
    targets: Mapping[int, tuple[float, float]]
    """By batch: target speed of Crossbow's two learners relative to PyTorch with one model on two threads, and with two
    models. At other batches: 1."""
    seconds: float = 1.0
    """Length of a turn, relative to that of a small network, whose tasks take a millisecond."""
    data: Callable[[], Dataset] | None = None
    """Function that creates the data set; None uses the images of `dataset`."""
    large: bool = False
    """Whether all contestants together would need too much memory. The contestants that average rarely or run in a bare
    loop are then omitted."""


def dataset(network: Network, seed: int = 0) -> Dataset:
    """uint8 images of the network's shape in 10 classes, with one pixel in five not black.

    Each image is the image of its class, darkened at random. One label in ten is random, so that gradients do not
    become denormal numbers, which are slow.
    """
    generator, examples = np.random.default_rng(seed), network.examples
    pictures = generator.integers(0, 256, (CLASSES, *network.image_shape), dtype=np.uint8)
    pictures[generator.random(pictures.shape) > 0.2] = 0
    labels: NDArray[np.int32] = generator.integers(0, CLASSES, examples, dtype=np.int32)
    images = np.minimum(pictures[labels], generator.integers(0, 256, (examples, *network.image_shape), dtype=np.uint8))
    wrong = generator.random(examples) < 0.1
    labels[wrong] = generator.integers(0, CLASSES, int(wrong.sum()), dtype=np.int32)
    return Dataset((images, labels), number_of_classes=CLASSES)


def vgg_block() -> Dataflow:
    """Two stages of a VGG for CIFAR, each with two 3×3 convolutions, ReLU and BatchNorm, and a pooling."""
    layers = [
        layer
        for stage, width in enumerate((64, 128))
        for layer in (
            (f"conv{stage}a", Conv(number_of_outputs=width, kernel_size=3, padding=1)),
            (f"relu{stage}a", ReLU()),
            (f"norm{stage}a", BatchNorm()),
            (f"conv{stage}b", Conv(number_of_outputs=width, kernel_size=3, padding=1)),
            (f"relu{stage}b", ReLU()),
            (f"norm{stage}b", BatchNorm()),
            (f"pool{stage}", Pool(method="max", kernel_size=2, stride=2)),
        )
    ]
    network = Sequential(*layers, ("ip", InnerProduct(number_of_outputs=CLASSES)))
    return classifier(network.head, network.tail)


# The networks in PyTorch, which is imported in the functions, because the benchmark also runs without it.


def _torch_lenet(variant: str) -> Any:
    from torch import nn

    if variant == "original":
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.4), nn.Linear(1024, CLASSES)),
        )
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)),
    )


def _torch_vgg_block() -> Any:
    from torch import nn

    layers: list[Any] = []
    for channels, width in ((3, 64), (64, 128)):
        for inputs in (channels, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(width)]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 8 * 8, CLASSES))


def torch_resnet(depth: int, *, projection: bool) -> Any:
    """`models.resnet.resnet` of the given depth for CIFAR, version 1.

    projection: whether shape changes use a 1×1 convolution, instead of every second pixel and channels of zeros.
    """
    import torch
    from torch import nn

    class Subsample(nn.Module):
        """Every second pixel, followed by as many channels of zeros."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = x[:, :, ::2, ::2]
            return torch.cat([half, torch.zeros_like(half)], 1)

    class Unit(nn.Module):
        """Two convolutions, whose output is added to the input, which is projected if its shape changes."""

        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
            )
            self.shortcut: nn.Module = nn.Identity()
            if inputs != width and not projection:
                self.shortcut = Subsample()
            elif inputs != width:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = self.body(x).add_(self.shortcut(x))
            return torch.relu_(total)

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for stage, width in enumerate((16, 32, 64)):
        for unit in range((depth - 2) // 6):
            layers.append(Unit(channels, width, 2 if stage and unit == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def torch_resnet50() -> Any:
    """`models.resnet.resnet(50)`: the stride of a bottleneck is in its first convolution, and the first pooling has no
    padding and rounds up."""
    import torch
    from torch import nn

    def convolution(inputs: int, outputs: int, size: int, stride: int) -> list[Any]:
        return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        """Three convolutions, whose output is added to the input, which is projected if its shape changes."""

        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = EXPANSION * width
            self.body = nn.Sequential(
                *(*convolution(inputs, width, 1, stride), nn.ReLU(inplace=True)),
                *(*convolution(width, width, 3, 1), nn.ReLU(inplace=True)),
                *convolution(width, outputs, 1, 1),
            )
            same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = self.body(x).add_(self.shortcut(x))
            return torch.relu_(total)

    layers: list[Any] = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True)]
    channels = 64
    for stage, count in enumerate(IMAGENET_UNITS[50]):
        for unit in range(count):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage and unit == 0 else 1))
            channels = EXPANSION * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES_OF_IMAGENET))


MNIST = {"image_shape": (1, 28, 28), "examples": 60_000, "batches": (4, 8, 16, 32, 64)}
CIFAR = {"image_shape": (3, 32, 32), "examples": 50_000, "batches": (8, 16, 32, 64, 128)}
LENET_TARGETS = {8: (2.3, 1.6), 16: (2.0, 1.6), 32: (2.0, 1.6)}

NETWORKS: dict[str, Network] = {
    "lenet-original": Network(
        parameters=1_111_946,
        build=lambda: lenet("original"),
        torch=lambda: _torch_lenet("original"),
        targets=LENET_TARGETS,
        **MNIST,  # type: ignore[arg-type]
    ),
    "lenet-caffe": Network(
        parameters=431_080,
        build=lambda: lenet("caffe"),
        torch=lambda: _torch_lenet("caffe"),
        targets=LENET_TARGETS,
        **MNIST,  # type: ignore[arg-type]
    ),
    "resnet-32": Network(
        parameters=466_906,
        build=lambda: resnet(32, shortcut="projection"),
        torch=lambda: torch_resnet(32, projection=True),
        targets=dict.fromkeys((16, 32, 64), (1.5, 1.15)),
        seconds=3.0,
        **CIFAR,  # type: ignore[arg-type]
    ),
    "resnet-50": Network(
        parameters=25_557_032,
        image_shape=(3, 224, 224),
        examples=256,
        build=lambda: resnet(50),
        torch=torch_resnet50,
        batches=(8, 16, 32),
        targets=dict.fromkeys((8, 16, 32), (1.3, 1.3)),
        seconds=15.0,
        large=True,
    ),
    "vgg-block": Network(
        parameters=342_858,
        build=vgg_block,
        torch=_torch_vgg_block,
        targets={},
        seconds=3.0,
        **CIFAR,  # type: ignore[arg-type]
    ),
    "transformer": Network(
        parameters=437_856,
        image_shape=(64,),
        examples=6_500,
        build=transformer,
        torch=lambda: torch_network(transformer(), (64,)),
        batches=(32,),
        targets={32: (1.2, 1.2)},
        seconds=3.0,
        data=topics,
    ),
    "vit": Network(
        parameters=817_290,
        image_shape=(3, 32, 32),
        examples=50_000,
        build=vit,
        torch=lambda: torch_network(vit(), (3, 32, 32)),
        batches=(32,),
        targets={32: (1.2, 1.2)},
        seconds=3.0,
    ),
}
"""The networks by name."""
