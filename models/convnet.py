"""CIFAR-10 quick and full, small convolutional networks. `python -m models.convnet` trains one; `--help` lists the
options. Both are from A. Krizhevsky's cuda-convnet (2012), in the form of Caffe's examples/cifar10:

quick  cifar10_quick_train_test.prototxt: three convolutions 5×5 and two inner products; 145,578 parameters.
full   cifar10_full_train_test.prototxt: the same convolutions, with local response normalisation within the channel
       after the first two poolings, and one inner product; 89,578 parameters. The weight decay of its inner product is
       that of all variables here; Caffe multiplies it by 250.

Quick ports Crossbow's ConvNet.java (src/test/java/uk/ac/imperial/lsds/crossbow). Where the two differ, this module
follows Caffe's, whose parameters and accuracy are published:

pooling     The first pooling takes the maximum; the original takes the average. No pooling has padding, so the last
            output is 4×4; the original intended this, but its padding was 2, and its output 6×6.
images      Pixels have a range of 255, centred at 0, for which the first weights, N(0, 0.0001), are chosen. The
            original stores them in [−1, 1], for which the loss hardly decreases from ln 10.
momentum    0.9; the original has 0.001, the value of its learning rate (`--momentum 0.001`).
schedule    The learning rate, 0.001, decreases to a tenth after 8 of 10 epochs, with which Caffe reaches 75 % in
            batches of 100. The original: fixed, 200 epochs (`--learning-rate-policy fixed --epochs 200`).
batch       128, as in the original.

Biases have twice the learning rate, except that of the third convolution of full, as in Caffe's files. In training,
images are cropped and mirrored as in the other models for CIFAR. Caffe and the original do not do this
(`--no-augmentation`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, Gaussian, Sequential, SolverConf
from crossbow.ops import LRN, Conv, DataTransform, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import classifier

VARIANTS = ("quick", "full")


def convnet(variant: str = "quick", *, number_of_outputs: int = 10, transform: DataTransform | None = None) -> Dataflow:
    """The training dataflow, for images (N, C, H, W); CIFAR's are (N, 3, 32, 32). Their pixels should span 255.

    transform  preprocessing of the images, if any.

    Raises ConfigurationError for an unknown variant.

    >>> [node.operator.name for node in convnet().subgraph.nodes][:9]
    ['conv1', 'pool1', 'relu1', 'conv2', 'relu2', 'pool2', 'conv3', 'relu3', 'pool3']
    """
    if variant not in VARIANTS:
        raise ConfigurationError(f"variant must be one of {', '.join(VARIANTS)}. Received: {variant!r}")
    full = variant == "full"
    layers: list[tuple[str, Kernel]] = [] if transform is None else [("transform", transform)]
    layers += [
        ("conv1", _convolution(32, std=0.0001)),
        ("pool1", Pool(method="max", kernel_size=3, stride=2)),
        ("relu1", ReLU()),
        *([("norm1", _norm())] if full else []),
        ("conv2", _convolution(32, std=0.01)),
        ("relu2", ReLU()),
        ("pool2", Pool(method="average", kernel_size=3, stride=2)),
        *([("norm2", _norm())] if full else []),
        ("conv3", _convolution(64, std=0.01, bias_rate=1.0 if full else 2.0)),
        ("relu3", ReLU()),
        ("pool3", Pool(method="average", kernel_size=3, stride=2)),
    ]
    if full:
        layers.append(("ip1", _inner_product(number_of_outputs, std=0.01)))
    else:
        layers += [("ip1", _inner_product(64, std=0.1)), ("ip2", _inner_product(number_of_outputs, std=0.1))]
    network = Sequential(*layers)
    return classifier(network.head, network.tail)


def _convolution(outputs: int, std: float, bias_rate: float = 2.0) -> Conv:
    return Conv(
        number_of_outputs=outputs,
        kernel_size=5,
        padding=2,
        weight_initialiser=Gaussian(std=std),
        bias_learning_rate_multiplier=bias_rate,
    )


def _norm() -> LRN:
    return LRN(size=3, alpha=5e-5, beta=0.75, region="within_channel")


def _inner_product(outputs: int, std: float) -> InnerProduct:
    weights = Gaussian(std=std)
    return InnerProduct(number_of_outputs=outputs, weight_initialiser=weights, bias_learning_rate_multiplier=2.0)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default=VARIANTS[0],
        help="quick: 145,578 parameters; full: local response normalisation and one inner product, 89,578 parameters "
        "(default: %(default)s)",
    )
    add_augmentation(group)


def _stepping_at(*epochs: int) -> SolverConf:
    """A solver whose learning rate decreases to a tenth at each of these epochs."""
    return SolverConf(
        learning_rate=0.001,
        policy="multistep",
        step_values=epochs,
        learning_rate_step_unit="epochs",
        momentum=0.9,
        weight_decay=0.004,
    )


QUICK = Defaults(epochs={"cifar10": 10, "synthetic": 3}, batch_size=128, solver=_stepping_at(8))
FULL = Defaults(epochs={"cifar10": 140, "synthetic": 3}, batch_size=100, solver=_stepping_at(120, 130))
"""Defaults of cifar10_full_solver.prototxt, _lr1 and _lr2: 60,000, 5,000 and 5,000 batches."""

SCRIPT = ModelScript(
    name="convnet",
    title="Trains CIFAR-10 quick or full, small convolutional networks (Krizhevsky, cuda-convnet, 2012).",
    paper="cuda-convnet, 2012",
    variants=(
        "",
        "--variant full",
    ),
    build=lambda options: convnet(
        options.variant,
        number_of_outputs=options.classes,
        transform=image_transform(options, scale=255.0),
    ),
    defaults=QUICK,
    add_options=_add_options,
    choose_defaults=lambda options: FULL if options.variant == "full" else QUICK,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
