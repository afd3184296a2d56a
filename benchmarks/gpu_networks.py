"""Networks measured on a GPU, in Crossbow and in PyTorch, and the order of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.networks import NETWORKS, Network


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


GPU_NETWORKS: dict[str, GpuNetwork] = {
    "resnet-32": GpuNetwork(NETWORKS["resnet-32"], 2048, dict.fromkeys((16, 32, 64), (2.0, 1.5))),
    "lenet": GpuNetwork(NETWORKS["lenet-original"], 4096, {}),
    "resnet-50": GpuNetwork(replace(NETWORKS["resnet-50"], examples=4096), 256, {}),
}
"""The networks by name."""

CASES: tuple[tuple[str, int], ...] = (
    *(("resnet-32", 16), ("resnet-32", 32), ("resnet-32", 64)),
    *(("resnet-50", 16), ("lenet", 16), ("lenet", 64), ("resnet-32", 8), ("resnet-32", 128)),
    *(("resnet-50", 32), ("lenet", 4), ("lenet", 256), ("resnet-32", 4), ("resnet-32", 256)),
    *(("resnet-50", 4), ("resnet-50", 64), ("resnet-32", 1), ("lenet", 1), ("resnet-50", 1)),
)
"""Network and batch, the most important first."""
