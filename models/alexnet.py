"""AlexNet: the first large network for ImageNet. `python -m models.alexnet` trains it; `--help` lists the options.

A. Krizhevsky, I. Sutskever and G. Hinton, ImageNet Classification with Deep Convolutional Neural Networks (NIPS 2012).
Five convolutions, three max poolings and three inner products, in three variants; parameters with 1,000 classes:

one-tower  The variant of A. Krizhevsky, One weird trick for parallelizing convolutional neural networks
           (arXiv:1404.5997, 2014), as in the convnet benchmarks and torchvision: one tower instead of two, no
           normalisation; 61,100,840.
caffe      Caffe's (models/bvlc_alexnet): the second, fourth and fifth convolution have two groups, as the two towers of
           2012, and the first two are followed by local response normalisation; images 227×227; 60,965,224.
v2         Crossbow's (src/test/java/uk/ac/imperial/lsds/crossbow/AlexNetv2.java): the widths of 2012 without groups and
           normalisation; without dropout; 62,378,344.

The poolings of v2 and caffe round up, so that both take images of 224×224 and of 227×227.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow import Constant, Dataflow, Gaussian, Sequential, SolverConf
from crossbow.ops import LRN, Conv, DataTransform, Dropout, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import classifier

POOLED = (1, 2, 5)
"""Numbers of the convolutions that are followed by a max pooling."""


@dataclass(frozen=True)
class _Variant:
    """The settings in which the variants differ."""

    widths: tuple[int, ...]
    """Numbers of output channels of the convolutions."""
    padding: int = 0
    """Padding of the first convolution."""
    grouped: tuple[int, ...] = ()
    """Numbers of the convolutions with two groups."""
    normalised: tuple[int, ...] = ()
    """Numbers of the convolutions that are followed by a local response normalisation."""
    dropout: float = 0.5
    rounding: str = "ceil"
    bias_rate: float = 1.0
    """Multiplier of the learning rate for the biases."""


VARIANTS = {
    "one-tower": _Variant(widths=(64, 192, 384, 256, 256), padding=2, rounding="floor"),
    "caffe": _Variant(widths=(96, 256, 384, 384, 256), grouped=(2, 4, 5), normalised=(1, 2), bias_rate=2.0),
    "v2": _Variant(widths=(96, 256, 384, 384, 256), dropout=0.0),
}
SIZES = (11, 5, 3, 3, 3)
"""Kernel sizes of the convolutions."""
BIASES = (0.0, 0.1, 0.0, 0.1, 0.1)
"""Initial biases of the convolutions."""


def alexnet(
    variant: str = "one-tower",
    *,
    dropout: float | None = None,
    number_of_outputs: int = 1000,
    transform: DataTransform | None = None,
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of at least 63×63; ImageNet's are 3×224×224.

    dropout    ratio of the dropout before the first two inner products (one-tower) or after them (caffe), in [0, 1);
               0 omits it. The default is 0.5, and 0 in v2.
    transform  preprocessing of the images, if any.

    Raises ConfigurationError for an unknown variant.

    >>> [node.operator.name for node in alexnet("caffe").subgraph.nodes][:5]
    ['conv1', 'relu1', 'norm1', 'pool1', 'conv2']
    """
    if variant not in VARIANTS:
        raise ConfigurationError(f"variant must be one of {', '.join(VARIANTS)}. Received: {variant!r}")
    layers: list[tuple[str, Kernel]] = [] if transform is None else [("transform", transform)]
    chosen = VARIANTS[variant]
    ratio = chosen.dropout if dropout is None else dropout
    layers += _convolutions(chosen)
    for number in (6, 7):
        inner = [_inner_product(number, 4096, 0.005, 0.1, chosen), (f"relu{number}", ReLU())]
        drop: list[tuple[str, Kernel]] = [(f"dropout{number}", Dropout(ratio=ratio))] if ratio else []
        layers += [*drop, *inner] if variant == "one-tower" else [*inner, *drop]
    network = Sequential(*layers, _inner_product(8, number_of_outputs, 0.01, 0.0, chosen))
    return classifier(network.head, network.tail)


def _convolutions(variant: _Variant) -> list[tuple[str, Kernel]]:
    """The convolutions with weights from N(0, 0.01) and biases of 0 or 0.1, as in all sources."""
    layers: list[tuple[str, Kernel]] = []
    for number, (width, size, bias) in enumerate(zip(variant.widths, SIZES, BIASES, strict=True), start=1):
        convolution = Conv(
            number_of_outputs=width,
            kernel_size=size,
            stride=4 if number == 1 else 1,
            padding=variant.padding if number == 1 else size // 2,
            groups=2 if number in variant.grouped else 1,
            weight_initialiser=Gaussian(std=0.01),
            bias_initialiser=Constant(bias),
            bias_learning_rate_multiplier=variant.bias_rate,
        )
        layers += [(f"conv{number}", convolution), (f"relu{number}", ReLU())]
        if number in variant.normalised:
            layers.append((f"norm{number}", LRN(size=5, alpha=1e-4, beta=0.75)))
        if number in POOLED:
            pool = Pool(method="max", kernel_size=3, stride=2, rounding=variant.rounding)
            layers.append((f"pool{number}", pool))
    return layers


def _inner_product(number: int, outputs: int, std: float, bias: float, variant: _Variant) -> tuple[str, Kernel]:
    kernel = InnerProduct(
        number_of_outputs=outputs,
        weight_initialiser=Gaussian(std=std),
        bias_initialiser=Constant(bias),
        bias_learning_rate_multiplier=variant.bias_rate,
    )
    return f"ip{number}", kernel


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default=next(iter(VARIANTS)),
        help="one-tower: the network of 2014, 61.1 M parameters; caffe: with groups and local response normalisation, "
        "61.0 M; v2: Crossbow's, 62.4 M (default: %(default)s)",
    )
    add_augmentation(group)


def _defaults(
    epochs: int,
    batch_size: int,
    image: int,
    learning_rate: float,
    steps: tuple[int, ...],
    weight_decay: float,
    gamma: float = 0.1,
) -> Defaults:
    solver = SolverConf(
        learning_rate=learning_rate,
        policy="multistep",
        gamma=gamma,
        step_values=steps,
        learning_rate_step_unit="epochs",
        momentum=0.9,
        weight_decay=weight_decay,
    )
    return Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=epochs,
        batch_size=batch_size,
        solver=solver,
        image_shape=(3, image, image),
        number_of_classes=1000,
    )


DEFAULTS = {
    "one-tower": _defaults(90, 128, 224, 0.01, (22, 45, 67), 5e-4, gamma=250 ** (-1 / 3)),
    "caffe": _defaults(90, 256, 227, 0.01, (20, 40, 60, 80), 5e-4),
    "v2": _defaults(160, 128, 224, 0.1, (82, 122), 1e-4),
}
"""Defaults of the paper of 2014 (90 epochs; steps after 25, 50 and 75 %), of bvlc_alexnet's solver (100,000 batches are
20 epochs) and of AlexNetv2.java, which does not state the number of epochs; 160 was chosen here."""

SCRIPT = ModelScript(
    name="alexnet",
    title="Trains AlexNet (Krizhevsky et al., NIPS 2012; one tower: arXiv:1404.5997).",
    paper="NIPS 2012; arXiv:1404.5997",
    variants=(
        "",
        "--variant caffe",
        "--variant v2",
    ),
    build=lambda options: alexnet(
        options.variant, number_of_outputs=options.classes, transform=image_transform(options)
    ),
    defaults=DEFAULTS["one-tower"],
    add_options=_add_options,
    choose_defaults=lambda options: DEFAULTS[options.variant],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
