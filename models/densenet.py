"""DenseNet: densely connected networks. `python -m models.densenet` trains one; `--help` lists the options.

G. Huang, Z. Liu, L. van der Maaten and K. Weinberger, Densely Connected Convolutional Networks (arXiv:1608.06993,
2016), with bottlenecks and compression (BC): a layer appends `growth` features to its input, by a 1×1 convolution
to 4 · growth features and a 3×3 convolution, each after normalisation and ReLU. Between two blocks, a 1×1 convolution
halves the features and a pooling the image.

100  For CIFAR, growth 12: three blocks of 16 layers; 769,162 parameters with 10 classes.
121  For ImageNet, growth 32: four blocks of 6, 12, 24 and 16 layers; 7,978,856 parameters with 1,000 classes.

The schedules are the paper's (section 4.2), with Nesterov's momentum.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow import MSRA, Dataflow, DataflowNode, SolverConf
from crossbow.conf import is_integer, shown
from crossbow.ops import BatchNorm, Concat, Conv, DataTransform, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import add, classifier, head_of, normalised_convolution

BOTTLENECK = 4
"""Features between the two convolutions of a layer, relative to the growth."""


@dataclass(frozen=True)
class _Network:
    layers: tuple[int, ...]
    """Number of layers of each block."""
    growth: int
    classes: int
    imagenet: bool


NETWORKS = {
    100: _Network(layers=(16, 16, 16), growth=12, classes=10, imagenet=False),
    121: _Network(layers=(6, 12, 24, 16), growth=32, classes=1000, imagenet=True),
}
"""The networks by depth."""


def densenet(
    depth: int = 100, *, number_of_outputs: int | None = None, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; CIFAR's are 3×32×32, ImageNet's 3×224×224.

    depth              layers with weights: 100 (for CIFAR) or 121 (for ImageNet).
    number_of_outputs  classes; by default 10 (100 layers) or 1,000 (121).
    transform          preprocessing of the images, if any.

    Raises ConfigurationError for another depth.

    >>> [node.operator.name for node in densenet().subgraph.nodes][:5]
    ['conv', 'layer1-1-norm1', 'layer1-1-relu1', 'layer1-1-conv1', 'layer1-1-norm2']
    """
    if not is_integer(depth) or depth not in NETWORKS:
        raise ConfigurationError(f"depth must be one of {', '.join(map(str, NETWORKS))}. Received: {shown(depth)}")
    network = NETWORKS[depth]
    inputs = () if transform is None else (add("transform", transform),)
    features = 2 * network.growth
    if network.imagenet:
        first = normalised_convolution("conv", _convolution(features, 7, stride=2), *inputs)
        x = add("pool0", Pool(method="max", kernel_size=3, stride=2, padding=1, rounding="floor"), first)
    else:
        first = x = add("conv", _convolution(features, 3), *inputs)
    for block, layers in enumerate(network.layers, start=1):
        if block > 1:
            features //= 2
            x = _activated(f"transition{block - 1}-conv", features, 1, x)
            x = add(f"transition{block - 1}-pool", Pool(method="average", kernel_size=2, stride=2, rounding="floor"), x)
        for layer in range(1, layers + 1):
            x = _layer(f"layer{block}-{layer}", x, network.growth)
            features += network.growth
    x = add("relu", ReLU(), add("norm", BatchNorm(), x))
    x = add("pool", Pool(method="average", global_pooling=True), x)
    classes = network.classes if number_of_outputs is None else number_of_outputs
    logits = add("ip", InnerProduct(number_of_outputs=classes), x)
    return classifier(head_of(first), logits)


def _layer(name: str, x: DataflowNode, growth: int) -> DataflowNode:
    y = _activated(f"{name}-conv1", BOTTLENECK * growth, 1, x)
    y = _activated(f"{name}-conv2", growth, 3, y)
    return add(f"{name}-concat", Concat(axis=1), x, y)


def _activated(name: str, outputs: int, size: int, x: DataflowNode) -> DataflowNode:
    """Normalisation, ReLU and a convolution, which share the prefix and the suffix of their names: "…-norm1", "…-relu1"
    and "…-conv1"."""
    norm, relu = (name.replace("conv", kind) for kind in ("norm", "relu"))
    return add(name, _convolution(outputs, size), add(relu, ReLU(), add(norm, BatchNorm(), x)))


def _convolution(outputs: int, size: int, stride: int = 1) -> Conv:
    return Conv(
        number_of_outputs=outputs,
        kernel_size=size,
        stride=stride,
        padding=size // 2,
        bias=False,
        weight_initialiser=MSRA(),
    )


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--depth",
        type=int,
        choices=tuple(NETWORKS),
        default=100,
        help="layers with weights: 100, growth 12, for CIFAR; 121, growth 32, for ImageNet (default: %(default)s)",
    )
    add_augmentation(group)


def _stepping_at(*epochs: int) -> SolverConf:
    """A solver whose learning rate decreases to a tenth at each of these epochs."""
    return SolverConf(
        learning_rate=0.1,
        policy="multistep",
        step_values=epochs,
        learning_rate_step_unit="epochs",
        momentum=0.9,
        momentum_method="nesterov",
        weight_decay=1e-4,
    )


CIFAR = Defaults(
    epochs={"cifar10": 300, "cifar100": 300, "cifar100_coarse": 300, "synthetic": 3},
    batch_size=64,
    solver=_stepping_at(150, 225),
)
IMAGENET = Defaults(
    epochs={"synthetic": 3},
    epochs_with_files=90,
    batch_size=256,
    solver=_stepping_at(30, 60),
    image_shape=(3, 224, 224),
    number_of_classes=1000,
)

SCRIPT = ModelScript(
    name="densenet",
    title="Trains a densely connected network (Huang et al., 2016: arXiv:1608.06993).",
    paper="arXiv:1608.06993",
    variants=(
        "",
        "--depth 121",
    ),
    build=lambda options: densenet(
        options.depth, number_of_outputs=options.classes, transform=image_transform(options)
    ),
    defaults=CIFAR,
    add_options=_add_options,
    choose_defaults=lambda options: IMAGENET if NETWORKS[options.depth].imagenet else CIFAR,
    variant=lambda options: f"{options.depth}, growth {NETWORKS[options.depth].growth}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
