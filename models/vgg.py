"""VGG: stacks of 3×3 convolutions. `python -m models.vgg` trains one; `--help` lists the options.

K. Simonyan and A. Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (arXiv:1409.1556,
2014), in these variants:

cifar     Crossbow's (src/test/java/uk/ac/imperial/lsds/crossbow/VGG.java), after S. Liu and W. Deng, Very Deep
          Convolutional Neural Network Based Image Classification Using Small Training Sample Size (ACPR 2015), as in
          github.com/geifmany/cifar-vgg: the convolutions of configuration D, batch normalisation after every ReLU,
          dropout between the convolutions, one inner product of 512 before the last. 14,991,946 parameters with 10
          classes; 15,038,116 with the original's 100 classes of CIFAR-100.
imagenet  Configuration D, VGG-16: thirteen convolutions without normalisation, two inner products of 4,096 with
          dropout. 138,357,544 parameters with 1,000 classes of images 224×224.
a         Configuration A: eight convolutions; 132,863,336 parameters. The original's convnet benchmark ends in inner
          products of 4096-3072-3072 outputs by mistake; here they have 4096-4096-1000, as in the paper.
19        Configuration E, VGG-19: sixteen convolutions; 143,667,240 parameters.

Without normalisation, the defaults have the paper's momentum and weight decay, and a learning rate for small batches:
0.001 for 16 images, where the paper has 0.01 for 256. As in the paper, it decreases three times by a factor of ten
within 74 epochs. The paper decreases it when the validation accuracy stops improving; here, the epochs were chosen.

Weights are initialised with Xavier and the average fan, and biases with 0, as in the original and as section 3.1 of the
paper recommends.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, Sequential, SolverConf, Xavier
from crossbow.ops import BatchNorm, Conv, DataTransform, Dropout, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import classifier

VARIANTS = ("cifar", "imagenet", "a", "19")
WIDTHS = (64, 128, 256, 512, 512)
"""Numbers of outputs of the convolutions of each stage. A max pooling after each stage halves the image."""
DEPTHS = {"cifar": (2, 2, 3, 3, 3), "imagenet": (2, 2, 3, 3, 3), "a": (1, 1, 2, 2, 2), "19": (2, 2, 4, 4, 4)}
"""Number of convolutions of each stage, by variant."""
WEIGHTS = Xavier(norm="average")

Layers = list[tuple[str, Kernel]]


def vgg(
    variant: str = "cifar", *, number_of_outputs: int | None = None, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; CIFAR's are 3×32×32, ImageNet's 3×224×224.

    number_of_outputs  classes; by default 10 (cifar) or 1,000 (the others).
    transform          preprocessing of the images, if any.

    Raises ConfigurationError for an unknown variant.

    >>> [node.operator.name for node in vgg("imagenet").subgraph.nodes][:6]
    ['conv1-1', 'relu1-1', 'conv1-2', 'relu1-2', 'pool1', 'conv2-1']
    """
    if variant not in VARIANTS:
        raise ConfigurationError(f"variant must be one of {', '.join(VARIANTS)}. Received: {variant!r}")
    layers: Layers = [] if transform is None else [("transform", transform)]
    if variant == "cifar":
        layers += _cifar(10 if number_of_outputs is None else number_of_outputs)
    else:
        layers += _imagenet(DEPTHS[variant], 1000 if number_of_outputs is None else number_of_outputs)
    network = Sequential(*layers)
    return classifier(network.head, network.tail)


def _cifar(number_of_outputs: int) -> Layers:
    """The operators of the variant for CIFAR. Each convolution is followed by a ReLU, a normalisation and, except at
    the end of a stage, a dropout (0.3, from stage 2 on 0.4)."""
    layers: Layers = []
    for stage, (count, width) in enumerate(zip(DEPTHS["cifar"], WIDTHS, strict=True), start=1):
        for number in range(1, count + 1):
            place = f"{stage}-{number}"
            layers += [_convolution(place, width), (f"relu{place}", ReLU()), (f"norm{place}", _norm())]
            if number < count:
                layers.append((f"dropout{place}", Dropout(ratio=0.3 if stage == 1 else 0.4)))
        layers.append(_pool(stage))
    return [
        *layers,
        ("dropout1", Dropout(ratio=0.5)),
        _inner_product(1, 512),
        ("relu1", ReLU()),
        ("norm1", _norm()),
        ("dropout2", Dropout(ratio=0.5)),
        _inner_product(2, number_of_outputs),
    ]


def _imagenet(depths: Sequence[int], number_of_outputs: int) -> Layers:
    layers: Layers = []
    for stage, (count, width) in enumerate(zip(depths, WIDTHS, strict=True), start=1):
        for number in range(1, count + 1):
            layers += [_convolution(f"{stage}-{number}", width), (f"relu{stage}-{number}", ReLU())]
        layers.append(_pool(stage))
    for number in (1, 2):
        layers += [_inner_product(number, 4096), (f"relu{number}", ReLU()), (f"dropout{number}", Dropout(ratio=0.5))]
    return [*layers, _inner_product(3, number_of_outputs)]


def _convolution(place: str, width: int) -> tuple[str, Kernel]:
    return f"conv{place}", Conv(number_of_outputs=width, kernel_size=3, padding=1, weight_initialiser=WEIGHTS)


def _norm() -> BatchNorm:
    return BatchNorm(epsilon=1e-3, moving_average_fraction=0.99)


def _pool(stage: int) -> tuple[str, Kernel]:
    return f"pool{stage}", Pool(method="max", kernel_size=2, stride=2)


def _inner_product(number: int, width: int) -> tuple[str, Kernel]:
    return f"ip{number}", InnerProduct(number_of_outputs=width, weight_initialiser=WEIGHTS)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default=VARIANTS[0],
        help="cifar: VGG-16 with batch normalisation, 15 M parameters; the paper's networks for images 224×224, "
        "imagenet: VGG-16, 138 M parameters; a: 11 layers, 133 M; 19: VGG-19, 144 M (default: %(default)s)",
    )
    add_augmentation(group)


CIFAR = Defaults(
    epochs={"cifar10": 250, "cifar100": 250, "cifar100_coarse": 250, "synthetic": 3},
    batch_size=128,
    solver=SolverConf(
        learning_rate=0.1,
        policy="multistep",
        gamma=0.5,
        step_values=tuple(range(20, 241, 20)),
        learning_rate_step_unit="epochs",
        momentum=0.9,
        weight_decay=5e-4,
    ),
)
"""Defaults of scripts/benchmarks/vgg.sh, with the batch of VGG.java (the script's is 256)."""
IMAGENET = Defaults(
    epochs={"synthetic": 3, "cifar10": 74},
    epochs_with_files=74,
    batch_size=16,
    solver=SolverConf(
        learning_rate=0.001,
        policy="multistep",
        gamma=0.1,
        step_values=(30, 50, 65),
        learning_rate_step_unit="epochs",
        momentum=0.9,
        weight_decay=5e-4,
    ),
    image_shape=(3, 224, 224),
    number_of_classes=1000,
)
"""Defaults of the paper, except that the learning rate, 0.01 for 256 images, is reduced for a small batch, and that it
decreases at fixed epochs."""

SCRIPT = ModelScript(
    name="vgg",
    title="Trains a VGG network (Simonyan and Zisserman, 2014: arXiv:1409.1556).",
    paper="arXiv:1409.1556",
    variants=(
        "",
        "--dataset cifar100",
        "--variant imagenet",
        "--variant a",
        "--variant 19",
    ),
    build=lambda options: vgg(options.variant, number_of_outputs=options.classes, transform=image_transform(options)),
    defaults=CIFAR,
    add_options=_add_options,
    choose_defaults=lambda options: CIFAR if options.variant == "cifar" else IMAGENET,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
