"""LeNet: handwritten digits. `python -m models.lenet` trains it; `--help` lists the options.

The network of Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-Based Learning Applied to Document Recognition
(Proceedings of the IEEE 86, 1998), in three later variants:

original    Crossbow's (src/test/java/uk/ac/imperial/lsds/crossbow/LeNet.java), from TensorFlow's MNIST tutorial:
            32 and 64 feature maps, an inner product of 1,024, dropout; 1,111,946 parameters.
batch-norm  The same with batch normalisation after each convolution, as LeNetBatchNorm.java intends (its convolutions
            are commented out); 1,112,138 parameters.
caffe       Caffe's (examples/mnist/lenet_train_test.prototxt): 20 and 50 feature maps, an inner product of 500, no ReLU
            after the convolutions; 431,080 parameters.

The defaults are for several learners with small batches: momentum and weight decay of Caffe's lenet_solver.prototxt,
twice its learning rate, and a faster decay. The original has batches of 32, a constant rate of 0.01, and no momentum.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Constant, Dataflow, Gaussian, Sequential, SolverConf, Xavier
from crossbow.ops import BatchNorm, Conv, Dropout, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.layers import classifier

VARIANTS = ("original", "batch-norm", "caffe")


def lenet(variant: str = "original", *, dropout: float = 0.4, number_of_outputs: int = 10) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of at least 14×14; those of MNIST are (N, 1, 28, 28).

    dropout: the ratio of the dropout, in [0, 1); 0 omits it. The caffe variant has none.

    Raises ConfigurationError for an unknown variant.

    >>> [node.operator.name for node in lenet("caffe").subgraph.nodes]
    ['conv1', 'pool1', 'conv2', 'pool2', 'ip1', 'relu1', 'ip2', 'softmax', 'loss', 'accuracy']
    """
    if variant not in VARIANTS:
        raise ConfigurationError(f"variant must be one of {', '.join(VARIANTS)}. Received: {variant!r}")
    if variant == "caffe":
        layers = _caffe(number_of_outputs)
    else:
        layers = _original(dropout, number_of_outputs, normalised=variant == "batch-norm")
    network = Sequential(*layers)
    return classifier(network.head, network.tail)


def _original(dropout: float, number_of_outputs: int, *, normalised: bool) -> list[tuple[str, Kernel]]:
    """The operators with weights from N(0, 0.1) and biases of 0, 0.1, 0.1, 0.1, as in LeNet.java.

    Fixed from the original: the weights are truncated at two standard deviations, as intended. They were not, because
    the original's flag was inverted.
    """
    weights = Gaussian(std=0.1, truncate=True)
    first, later = Constant(0.0), Constant(0.1)
    layers: list[tuple[str, Kernel]] = [
        ("conv1", Conv(number_of_outputs=32, kernel_size=5, weight_initialiser=weights, bias_initialiser=first)),
        ("norm1", BatchNorm()),
        ("relu1", ReLU()),
        ("pool1", Pool(method="max", kernel_size=2, stride=2)),
        ("conv2", Conv(number_of_outputs=64, kernel_size=5, weight_initialiser=weights, bias_initialiser=later)),
        ("norm2", BatchNorm()),
        ("relu2", ReLU()),
        ("pool2", Pool(method="max", kernel_size=2, stride=2)),
        ("ip1", InnerProduct(number_of_outputs=1024, weight_initialiser=weights, bias_initialiser=later)),
        ("relu3", ReLU()),
        ("dropout", Dropout(ratio=dropout)),
        ("ip2", InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=weights, bias_initialiser=later)),
    ]
    omitted = {"dropout": not dropout, "norm1": not normalised, "norm2": not normalised}
    return [(name, kernel) for name, kernel in layers if not omitted.get(name)]


def _caffe(number_of_outputs: int) -> list[tuple[str, Kernel]]:
    """The operators with weights initialised with Xavier, and biases of 0."""
    weights, bias = Xavier(), Constant(0.0)
    return [
        ("conv1", Conv(number_of_outputs=20, kernel_size=5, weight_initialiser=weights, bias_initialiser=bias)),
        ("pool1", Pool(method="max", kernel_size=2, stride=2)),
        ("conv2", Conv(number_of_outputs=50, kernel_size=5, weight_initialiser=weights, bias_initialiser=bias)),
        ("pool2", Pool(method="max", kernel_size=2, stride=2)),
        ("ip1", InnerProduct(number_of_outputs=500, weight_initialiser=weights, bias_initialiser=bias)),
        ("relu1", ReLU()),
        ("ip2", InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=weights, bias_initialiser=bias)),
    ]


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default=VARIANTS[0],
        help="original: 32-64-1024, dropout 0.4, 1.11 M parameters; batch-norm: the same with batch normalisation; "
        "caffe: 20-50-500, 431 k (default: %(default)s)",
    )


SCRIPT = ModelScript(
    name="lenet",
    title="Trains LeNet on handwritten digits (LeCun et al., Proceedings of the IEEE 86, 1998).",
    paper="Proceedings of the IEEE 86, 1998",
    variants=(
        "",
        "--variant batch-norm",
        "--variant caffe",
    ),
    build=lambda options: lenet(options.variant, number_of_outputs=options.classes),
    defaults=Defaults(
        epochs={"digits": 30, "mnist": 8, "fashion_mnist": 15, "synthetic": 3},
        batch_size=16,
        solver=SolverConf(learning_rate=0.02, policy="inv", gamma=3e-4, momentum=0.9, weight_decay=5e-4),
        image_shape=(1, 28, 28),
    ),
    add_options=_add_options,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
