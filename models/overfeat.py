"""OverFeat, the fast model: `python -m models.overfeat` trains it; `--help` lists the options.

P. Sermanet, D. Eigen, X. Zhang, M. Mathieu, R. Fergus and Y. LeCun, OverFeat: Integrated Recognition, Localization and
Detection using Convolutional Networks (arXiv:1312.6229, 2013), table 1: five convolutions, three max poolings and three
inner products; 145,920,872 parameters with 1,000 classes of images 231×231. It is one of the original's convnet
benchmarks (src/test/java/uk/ac/imperial/lsds/crossbow/convnet).

Batch, learning rate, momentum, weight decay, dropout and initial weights, N(0, 0.01), are as in section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossbow import Dataflow, Gaussian, Sequential, SolverConf
from crossbow.ops import Conv, DataTransform, Dropout, InnerProduct, Pool, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from models.images import add_augmentation, image_transform
from models.layers import classifier

WIDTHS, SIZES, STRIDES, PADDINGS = (96, 256, 512, 1024, 1024), (11, 5, 3, 3, 3), (4, 1, 1, 1, 1), (0, 0, 1, 1, 1)
"""Outputs, kernel sizes, strides and paddings of the convolutions."""
POOLED = (1, 2, 5)
"""Numbers of the convolutions that are followed by a max pooling."""
WEIGHTS = Gaussian(std=0.01)


def overfeat(
    *, dropout: float = 0.5, number_of_outputs: int = 1000, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of at least 71×71; the paper's are 3×231×231.

    dropout    ratio of the dropout before the first two inner products, in [0, 1); 0 omits it.
    transform  preprocessing of the images, if any.

    >>> [node.operator.name for node in overfeat(dropout=0).subgraph.nodes][-9:-3]
    ['pool5', 'ip6', 'relu6', 'ip7', 'relu7', 'ip8']
    """
    layers: list[tuple[str, Kernel]] = [] if transform is None else [("transform", transform)]
    for number, (width, size, stride, padding) in enumerate(zip(WIDTHS, SIZES, STRIDES, PADDINGS, strict=True), 1):
        convolution = Conv(
            number_of_outputs=width, kernel_size=size, stride=stride, padding=padding, weight_initialiser=WEIGHTS
        )
        layers += [(f"conv{number}", convolution), (f"relu{number}", ReLU())]
        if number in POOLED:
            layers.append((f"pool{number}", Pool(method="max", kernel_size=2, stride=2, rounding="floor")))
    for number, width in ((6, 3072), (7, 4096)):
        if dropout:
            layers.append((f"dropout{number}", Dropout(ratio=dropout)))
        layers += [_inner_product(number, width), (f"relu{number}", ReLU())]
    network = Sequential(*layers, _inner_product(8, number_of_outputs))
    return classifier(network.head, network.tail)


def _inner_product(number: int, outputs: int) -> tuple[str, Kernel]:
    return f"ip{number}", InnerProduct(number_of_outputs=outputs, weight_initialiser=WEIGHTS)


SCRIPT = ModelScript(
    name="overfeat",
    title="Trains the fast model of OverFeat (Sermanet et al., 2013: arXiv:1312.6229).",
    paper="arXiv:1312.6229",
    build=lambda options: overfeat(number_of_outputs=options.classes, transform=image_transform(options)),
    defaults=Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=90,
        batch_size=128,
        solver=SolverConf(
            learning_rate=0.05,
            policy="multistep",
            gamma=0.5,
            step_values=(30, 50, 60, 70, 80),
            learning_rate_step_unit="epochs",
            momentum=0.6,
            weight_decay=1e-5,
        ),
        image_shape=(3, 231, 231),
        number_of_classes=1000,
    ),
    add_options=add_augmentation,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
