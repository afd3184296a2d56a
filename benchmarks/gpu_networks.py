"""Networks measured on a GPU, in Crossbow and in PyTorch, and the order of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.networks import NETWORKS, Network
from models.resnet import EXPANSION, IMAGENET_UNITS, resnet

CLASSES_OF_IMAGENET = 1000


@dataclass(frozen=True)
class GpuNetwork:
    """A network measured on a GPU."""

    network: Network
    """The network; its batches and targets are those of the CPU."""
    most_images: int
    """Maximum number of images in the batches of all learners together. More would take too much memory next to the
    other contestants, and make a tick longer than a turn."""
    targets: Mapping[int, tuple[float, float]]
    """By batch: target speed of the best number of learners relative to one learner with CUDA graphs, and to PyTorch
    with CUDA graphs."""


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


GPU_NETWORKS: dict[str, GpuNetwork] = {
    "resnet-32": GpuNetwork(NETWORKS["resnet-32"], 2048, dict.fromkeys((16, 32, 64), (2.0, 1.5))),
    "lenet": GpuNetwork(NETWORKS["lenet-original"], 4096, {}),
    "resnet-50": GpuNetwork(
        Network(
            parameters=25_557_032,
            image_shape=(3, 224, 224),
            examples=4096,
            build=lambda: resnet(50),
            torch=torch_resnet50,
            batches=(),
            targets={},
        ),
        256,
        {},
    ),
}
"""The networks by name."""

CASES: tuple[tuple[str, int], ...] = (
    *(("resnet-32", 16), ("resnet-32", 32), ("resnet-32", 64)),
    *(("resnet-50", 16), ("lenet", 16), ("lenet", 64), ("resnet-32", 8), ("resnet-32", 128)),
    *(("resnet-50", 32), ("lenet", 4), ("lenet", 256), ("resnet-32", 4), ("resnet-32", 256)),
    *(("resnet-50", 4), ("resnet-50", 64), ("resnet-32", 1), ("lenet", 1), ("resnet-50", 1)),
)
"""Network and batch, the most important first."""
